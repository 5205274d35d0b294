"""The connections of one process to PostgreSQL: opened when needed, kept for the next, not shared by a fork.

Every wait has an end: a statement that the server does not answer is given up, with its connection.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn, TypeVar

import psycopg
import psycopg.conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from rowlock.errors import StoreBusy
from rowlock.stores.postgres import loaders

T = TypeVar("T")
_KEPT = 8  # idle connections; a burst may open more, which are closed when they come back
_STAMP = (
    "SELECT pg_current_xact_id()::text, date_part('epoch', pg_postmaster_start_time())::text, "
    "date_part('epoch', now())"
)
# The queue's statements are written for their indexes, and who claims takes the first few rows of one. The
# server cannot know how many there are, and if it guesses few it reads or sorts them all: 100,000 a claim.
_NEVER = ("enable_seqscan", "enable_bitmapscan")
_FRESH = 0.5  # seconds after its last use in which nobody looks whether a connection is still there
_GRACE = 5.0  # seconds that the server has to end a statement by itself
_LOOK = 0.5  # seconds after which a wait sees a Ctrl-C that did not end it (on Windows none does)
_CANCEL = 5.0  # seconds to ask the server to stop
_LEAST_IDLE = 5.0  # seconds that a transaction may stand still with any lease: a machine may be busy


class Unanswered(psycopg.OperationalError):
    """The server has not answered in time; the connection is closed."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection that gives up on a server that does not answer."""

    answer_timeout = 60.0  # seconds
    guarded = False  # a task holds it: rowlock commits, and nobody else

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._until(gen, time.monotonic() + self.answer_timeout), *args, **kwargs)

    def give_up(self) -> NoReturn:
        """Close the connection: nobody knows what the server makes of the last statement."""
        self.pgconn.finish()
        raise Unanswered(f"the server has not answered for {self.answer_timeout:g} s")

    def _until(self, gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and time.monotonic() > deadline:
                    self.give_up()
                state = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value

    def commit(self) -> None:
        """End the transaction, unless it is a task's: rowlock commits that, with the completion."""
        self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        """Undo the transaction, unless it is a task's: raise an exception to undo that."""
        self._refuse("roll back")
        super().rollback()

    def _refuse(self, what: str) -> None:
        if self.guarded:
            raise psycopg.ProgrammingError(
                f"rowlock commits this transaction after the task has returned; do not {what} it "
                "(raise an exception to undo everything)"
            )


class Stamp(NamedTuple):
    """A transaction's number, since when the server runs that gave it, and when that was."""

    number: str
    server: str
    began: float


def _is_ready(line: int, seconds: float, also_to_write: bool = False) -> bool:
    """True if within this time there is something to read, or the other end is gone (or it takes more)."""
    if sys.platform == "win32":  # where `select` takes any number; elsewhere none above 1023
        return any(select.select([line], [line] if also_to_write else [], [], seconds))
    poll = select.poll()
    poll.register(line, select.POLLIN | select.POLLOUT if also_to_write else select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Link:
    """One connection with the one cursor that rowlock's own statements run on."""

    def __init__(self, connection: Connection, name: str, most_idle: float) -> None:
        self.connection = connection
        self._name = name
        self.most_idle = most_idle  # seconds, as the server knows it
        self.process = os.getpid()
        self.used_at = time.monotonic()
        self.prepared: set[bytes] = set()  # without a cursor, see `prepared.py`
        # One cursor for all: its loaders are rowlock's own, the connection's stay as users expect them.
        self.cursor: Any = psycopg.Cursor(connection, row_factory=tuple_row)  # what it runs is named SQL
        loaders.register(self.cursor)

    @property
    def name(self) -> str:
        """How the server knows this connection, and no other."""
        return self._name

    def begin(self, statement: str) -> Stamp:
        """Begin a transaction; returns by what its end can be looked up."""
        self.cursor.execute(statement)
        while self.cursor.nextset():
            pass
        return Stamp(*self.cursor.fetchone())

    def is_idle(self) -> bool:
        """True if it is open and no transaction is."""
        return (
            not self.connection.closed and self.connection.pgconn.transaction_status == TransactionStatus.IDLE
        )

    def is_usable(self) -> bool:
        """True if nothing came while nobody used it, such as the server's goodbye."""
        if time.monotonic() - self.used_at < _FRESH:
            return True
        return not _is_ready(self.connection.fileno(), 0)

    def wait(self, deadline: float, also_to_write: bool = False) -> None:
        """Wait for the server to say something (or to listen); gives up on one that does not until then."""
        line = self.connection.pgconn.socket
        while not _is_ready(line, max(0.0, min(_LOOK, deadline - time.monotonic())), also_to_write):
            if time.monotonic() >= deadline:
                self.connection.give_up()

    def cancel(self) -> None:
        """Let the server stop what it does for this connection, if anything, and close that."""
        if self.is_idle():
            return
        self.stop()
        self.close()

    def stop(self) -> None:
        """Let the server stop what it does for this connection; safe from another thread."""
        with suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=_CANCEL)

    def interrupt(self) -> None:
        """End a wait for the server in another thread, which closes the connection then."""
        with (
            suppress(OSError, ValueError, psycopg.Error),
            socket.socket(fileno=os.dup(self.connection.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, whatever state it is in."""
        with suppress(psycopg.Error, OSError):
            self.connection.close()


class Connections:
    """Hands out links; each is used by one thread at a time."""

    def __init__(
        self,
        conninfo: str,
        *,
        name: str,
        most: int,
        statement_timeout: float,
        lock_timeout: float,
        pooled: bool,
    ) -> None:
        self._conninfo = conninfo
        self._name = name
        self._lock_timeout = lock_timeout
        self._statement_timeout = statement_timeout
        self.pooled = pooled  # by pgbouncer in transaction mode: nothing may live in the session
        self._idle: list[Link] = []
        self._room = threading.Condition(threading.Lock())
        self._out = 0
        self._most = most
        self._process = os.getpid()
        self._most_idle = 10 * statement_timeout

    @property
    def begin_statement(self) -> str:
        """What begins a write; behind a pooler it brings the limits that a session cannot keep there."""
        return f"{self.limits_statement if self.pooled else 'BEGIN'}; {_STAMP}"

    @property
    def limits_statement(self) -> str:
        """What begins a transaction with limits of its own."""
        return (
            f"BEGIN; SET LOCAL statement_timeout = {int(self._statement_timeout * 1000)}; "
            f"SET LOCAL lock_timeout = {int(self._lock_timeout * 1000)}; "
            + "; ".join(f"SET LOCAL {name} = off" for name in _NEVER)
        )

    def begin_task(self, timeout: float | None) -> str:
        """What begins a task's own transaction: its statements may take as long as the task may."""
        limit = 0 if timeout is None else min(int(timeout * 1000) + 1, 2**31 - 1)
        return (
            f"BEGIN; SET LOCAL statement_timeout = {limit}; SET LOCAL lock_timeout = {limit}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {limit}; SET LOCAL plan_cache_mode = auto; "
            f"{'; '.join(f'SET LOCAL {name} = on' for name in (*_NEVER, 'jit'))}; {_STAMP}"
        )

    def limit_idle(self, lease: float) -> None:
        """Let the server end a transaction that stands still for as long as a worker may be silent.

        A process that was frozen in the middle of one holds its locks, and nobody could rescue its claims.
        """
        self._most_idle = min(self._most_idle, max(_LEAST_IDLE, lease))

    def borrow(self) -> Link:
        """An open, idle connection of this process; `give_back` it."""
        if self._process != os.getpid():
            self._forget()
        while True:
            link = self._taken()
            try:
                if link is None:
                    return self.open()
                if link.is_usable():
                    if link.most_idle != self._most_idle and not self.pooled:
                        milliseconds = int(self._most_idle * 1000)
                        link.cursor.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
                        link.most_idle = self._most_idle
                    return link
                link.close()
            except BaseException:
                if link is not None:
                    link.close()
                self._release()
                raise
            self._release()

    def _taken(self) -> Link | None:
        """An idle one, or None if one may be opened; either takes up room."""
        with self._room:
            if not self._room.wait_for(lambda: self._out < self._most, self._lock_timeout):
                raise StoreBusy(
                    f"all {self._most} connections of this process are in use; "
                    "use fewer threads, or add ?pool_size= to the database's URL"
                )
            self._out += 1
            return self._idle.pop() if self._idle else None

    def _release(self) -> None:
        with self._room:
            self._out -= 1
            self._room.notify()

    def give_back(self, link: Link, clean: bool = False) -> None:
        """Keep it for the next one, or close it if it is broken (`clean`: it is not) or there are enough."""
        usable = (clean or link.is_idle()) and link.process == self._process
        with self._room:
            kept = usable and len(self._idle) < _KEPT
            if kept:
                link.used_at = time.monotonic()
                self._idle.append(link)
            self._out -= 1
            self._room.notify()
        if not kept:
            link.close()

    @contextmanager
    def borrowed(self) -> Iterator[Link]:
        """Borrow for the length of a block."""
        link = self.borrow()
        try:
            yield link
        finally:
            self.give_back(link)

    def open(self) -> Link:
        """A new connection."""
        # The server cuts a name at 63 bytes, and its end must be whole: it finds a lost connection again.
        name = f"{self._name.encode('ascii', 'replace').decode()[:48]} {secrets.token_hex(6)}"
        settings: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": None if self.pooled else 3,
            "application_name": name,
            "client_encoding": "UTF8",  # whatever the database's own is: `prepared.py` and JSON rely on it
        }
        if not self.pooled:
            # A pooler would refuse these, or give them to somebody else.
            limits = {
                "statement_timeout": self._statement_timeout,
                "lock_timeout": self._lock_timeout,
                "idle_in_transaction_session_timeout": self._most_idle,
            }
            # A plan made while tables were small must not read all of them later, and none needs to be made
            # anew for every call (1.2 against 0.6 ms).
            plans = "-c plan_cache_mode=force_generic_plan -c jit=off "
            plans += " ".join(f"-c {name}=off" for name in _NEVER)
            given = psycopg.conninfo.conninfo_to_dict(self._conninfo).get("options") or ""
            settings["options"] = " ".join(
                [
                    *(f"-c {name}={int(seconds * 1000)}" for name, seconds in limits.items()),
                    plans,
                    str(given),
                    "-c extra_float_digits=1",  # times come as text, which would lose their microseconds
                ]
            )
        connection: Connection = Connection.connect(self._conninfo, **settings)
        connection.answer_timeout = self._statement_timeout + _GRACE
        connection.prepared_max = 400
        return Link(connection, name, self._most_idle)

    def close(self) -> None:
        """Close the idle ones; those in use are closed when they come back, later calls open anew."""
        with self._room:
            idle, self._idle = self._idle, []
        for link in idle:
            if link.process == os.getpid():
                link.close()

    def _forget(self) -> None:
        """After a fork: the parent's connections are not ours; closing one would end it for the parent."""
        _abandoned.extend(self._idle)
        self._idle = []
        self._room = threading.Condition(threading.Lock())
        self._out = 0
        self._process = os.getpid()


_abandoned: list[Link] = []  # kept alive, so that nothing says goodbye to the server in the parent's name
