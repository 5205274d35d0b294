"""A proxy in front of a PostgreSQL server that loses connections at the worst moments, as told.
It reads the protocol as far as to know which statement is sent and when it is answered; no TLS."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

from tests.servers.postgres import through

COMMIT = re.compile(r"\A\s*(commit|end)(\s+(work|transaction))?\s*;?\s*\Z", re.IGNORECASE)
BEGIN = re.compile(r"\s*begin\b", re.IGNORECASE)
END = re.compile(r"\s*(commit|end|rollback)\b", re.IGNORECASE)
ENCRYPTION_REQUESTS = (80877103, 80877104)  # TLS and GSSAPI


@dataclass
class Fault:
    """What is to be lost: the statement itself, or only the answer to it."""

    pattern: re.Pattern[str]
    times: int
    reaches_server: bool
    meanwhile: Callable[[], object] | None = None  # done in the silence before the connection is cut
    instead: bytes = b""  # what the client reads in place of the answer
    after: str = ""  # it is meant for a transaction in which this was run; a heartbeat commits, too


class Proxy:
    """Listens from the start; a context manager that closes every connection at the end."""

    def __init__(self, port: int) -> None:
        self.server_port = port
        self.dropped = 0
        self.questions = 0  # round trips: however many statements a pipeline holds, it is one
        self.flowing = threading.Event()
        self.flowing.set()
        self._faults: list[Fault] = []
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    def url(self, url: str) -> str:
        """The URL of a database of the server, by way of this proxy."""
        return through(self.port, url)

    def drop_reply_to_commit(
        self, times: int = 1, meanwhile: Callable[[], object] | None = None, after: str = ""
    ) -> None:
        """Cut the connection after the server has committed, before the client knows."""
        self._faults.append(Fault(COMMIT, times, reaches_server=True, meanwhile=meanwhile, after=after))

    def drop_commit(
        self, times: int = 1, meanwhile: Callable[[], object] | None = None, after: str = ""
    ) -> None:
        """Cut the connection before the server has seen the COMMIT; until then something else may happen."""
        self._faults.append(Fault(COMMIT, times, reaches_server=False, meanwhile=meanwhile, after=after))

    def drop_reply_to(self, pattern: str, times: int = 1) -> None:
        """Cut the connection after the server has run a statement in which the pattern is found."""
        self._faults.append(Fault(re.compile(pattern), times, reaches_server=True))

    def garble_reply_to(self, pattern: str, times: int = 1) -> None:
        """The same, but before the end comes something that is no answer."""
        self._faults.append(
            Fault(re.compile(pattern), times, reaches_server=True, instead=b"\1 no message of a server")
        )

    def freeze(self) -> None:
        """Pass nothing on, in neither direction, and close nothing: a network that has gone silent."""
        self.flowing.clear()

    def thaw(self) -> None:
        """Pass on what has been held back, and all that follows."""
        self.flowing.set()

    def cut(self) -> None:
        """Close all connections now; new ones are welcome."""
        with self._lock:
            for link in self._links:
                link.cut()

    def fault(self, statement: str, before: list[str] | None) -> Fault | None:
        """Use up the first fault that is meant for this statement, with what its transaction ran before."""
        with self._lock:
            for fault in self._faults:
                meant = not fault.after or any(fault.after in one for one in before or ())
                if fault.times > 0 and meant and fault.pattern.search(statement):
                    fault.times -= 1
                    return fault
        return None

    def drop(self, link: Link) -> None:
        """Cut one connection and count it."""
        with self._lock:
            self.dropped += 1
            link.cut()

    def count(self) -> None:
        """Count a question that wants an answer before the next."""
        with self._lock:
            self.questions += 1

    def close(self) -> None:
        with self._lock:
            self._closed = True
        # Cut before the thaw: what was held back must not arrive after all.
        self.cut()
        self.thaw()
        # Closing a socket does not wake the thread that accepts on it; a client does.
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._accepting.join()
        self._listener.close()
        for link in self._links:
            link.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with self._lock:
                if self._closed:
                    client.close()
                    return
                link = Link(self, client)
                self._links.append(link)
            link.start()


class Link(threading.Thread):
    """One client's connection: this thread carries the questions, a second one the answers."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        super().__init__(name="proxy-questions", daemon=True)
        self._proxy = proxy
        self._client = client
        self._server = socket.socket()
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._transaction: list[str] | None = None  # what was run since BEGIN
        # "Ready for query" once per question, and once unasked when the session begins.
        self._asked = 1
        self._answered = 0
        self._lost_answer: int | None = None
        self._lost_by: Fault | None = None

    def run(self) -> None:
        answers = threading.Thread(target=self._carry_answers, name="proxy-answers", daemon=True)
        # OSError: the other thread has cut the connection, or the server is not there.
        with self._client, self._server, self._client.makefile("rb") as questions:
            with suppress(OSError):
                self._server.connect(("127.0.0.1", self._proxy.server_port))
                # Messages are passed on one by one; waiting to fill a packet costs 40 ms each time.
                for end in (self._client, self._server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._carry_greeting(questions):
                    answers.start()
                    self._carry_questions(questions)
            self._part()
            if answers.ident is not None:
                answers.join()

    def cut(self) -> None:
        """Close both sides; the threads notice and end."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _part(self) -> None:
        # On a silent network, one side's leaving does not reach the other either.
        self._proxy.flowing.wait()
        self.cut()

    def _carry_greeting(self, questions: BinaryIO) -> bool:
        while len(size := questions.read(4)) == 4:
            body = questions.read(int.from_bytes(size, "big") - 4)
            self._pass(self._server, size + body)
            if int.from_bytes(body[:4], "big") not in ENCRYPTION_REQUESTS:
                return True
            # One byte, "N": not a message like the others, so it is carried here.
            if not (answer := self._server.recv(1)):
                return False
            self._pass(self._client, answer)
        return False

    def _carry_questions(self, questions: BinaryIO) -> None:
        for message in _messages(questions):
            kind = message[:1]
            statement = self._about_to_run(kind, message[5:])
            fault = self._proxy.fault(statement, self._transaction) if statement is not None else None
            self._note(statement or "")
            if fault and not fault.reaches_server:
                self._lose(fault)
                return
            if fault and self._lost_answer is None:
                self._lost_answer, self._lost_by = self._asked + 1, fault
            if kind in (b"Q", b"S", b"F"):
                self._asked += 1
                self._proxy.count()
            self._pass(self._server, message)

    def _note(self, statement: str) -> None:
        """Keep in mind what the transaction has run."""
        if BEGIN.match(statement):
            self._transaction = []
        elif END.match(statement):
            self._transaction = None
        elif self._transaction is not None:
            self._transaction.append(statement)

    def _carry_answers(self) -> None:
        with suppress(OSError), self._server.makefile("rb") as answers:
            for message in _messages(answers):
                kind = message[:1]
                lost = self._lost_answer is not None and self._answered + 1 >= self._lost_answer
                if kind == b"Z":
                    self._answered += 1
                    if lost and self._lost_by is not None:
                        self._lose(self._lost_by)
                        return
                # "G" asks for the rows of a COPY: without it the statement would never end.
                if not lost or kind == b"G":
                    self._pass(self._client, message)
        self._part()

    def _lose(self, fault: Fault) -> None:
        if fault.meanwhile is not None:
            self._proxy.freeze()
            fault.meanwhile()
            self._proxy.thaw()
        if fault.instead:
            self._pass(self._client, fault.instead)
        self._proxy.drop(self)

    def _about_to_run(self, kind: bytes, body: bytes) -> str | None:
        """The SQL that this message makes the server run; a prepared one runs when it is executed."""
        if kind == b"Q":
            return _text(body)
        first, _, rest = body.partition(b"\0")
        if kind == b"P":
            self._statements[first] = _text(rest)
        elif kind == b"B":
            self._portals[first] = self._statements.get(rest.partition(b"\0")[0], "")
        elif kind == b"E":
            return self._portals.get(first)
        return None

    def _pass(self, end: socket.socket, data: bytes) -> None:
        self._proxy.flowing.wait()
        end.sendall(data)


def _messages(stream: BinaryIO) -> Iterator[bytes]:
    """Whole messages: a letter, four bytes of size that count themselves, the body."""
    while len(head := stream.read(5)) == 5:
        yield head + stream.read(int.from_bytes(head[1:], "big") - 4)


def _text(body: bytes) -> str:
    return body.partition(b"\0")[0].decode(errors="replace")
