"""The connections of one process to PostgreSQL: opened when needed, kept for the next, not shared by a fork.

Every wait has an end: a statement that the server does not answer is given up, with its connection.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
import psycopg.conninfo
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from rowlock.errors import StoreBusy
from rowlock.stores.postgres import loaders
from rowlock.stores.postgres.url import Address

T = TypeVar("T")
_KEPT = 8  # idle connections; a burst may open more, which are closed when they come back
STAMP = (  # a transaction's own
    "SELECT CAST(pg_current_xact_id() AS text), "
    "CAST(date_part('epoch', pg_postmaster_start_time()) AS text), date_part('epoch', now())"
)
# The queue's statements are written for their indexes, and who claims takes the first few rows of one. The
# server cannot know how many there are, and if it guesses few it reads or sorts them all: 100,000 a claim.
_BY_INDEX = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
# A plan made while tables were small must not read all of them later, and none needs to be made anew for
# every call (1.2 against 0.6 ms).
_PLANS = {"plan_cache_mode": "force_generic_plan", "jit": "off", **_BY_INDEX}
_USUAL_PLANS = {"plan_cache_mode": "auto", "jit": "on", **dict.fromkeys(_BY_INDEX, "on")}
_FRESH = 0.5  # seconds after its last use in which nobody looks whether a connection is still there
_STATEMENT_TIMEOUT = 30.0  # seconds
_GRACE = 5.0  # seconds that the server has to end a statement by itself
_CANCEL = 5.0  # seconds to ask the server to stop
_LEAST_IDLE = 5.0  # seconds that a transaction may stand still with any lease: a machine may be busy


class Unanswered(psycopg.OperationalError):
    """The server has not answered in time; the connection is closed."""


class Stamp(NamedTuple):
    """A transaction's number, since when the server runs that gave it, and when that was."""

    number: str
    server: str
    began: float


class Connection(psycopg.Connection[TupleRow]):
    """A connection that gives up on a server that does not answer, and is not shared by a fork."""

    name = ""  # how the server knows this connection, and no other
    answer_timeout = 60.0  # seconds
    most_idle = 0.0  # seconds that a transaction may stand still, as the server knows it
    guarded = False  # a task holds it: rowlock commits, and nobody else

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.process = os.getpid()
        self.used_at = time.monotonic()
        self.prepared: set[bytes] = set()  # statements that are run without a cursor, see `prepared.py`
        # One cursor for all of rowlock's own statements, which are named SQL: it has loaders of its own, and
        # those of the connection stay as users expect them.
        self.own_cursor: Any = psycopg.Cursor(self, row_factory=tuple_row)
        loaders.register(self.own_cursor)

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._until(gen, time.monotonic() + self.answer_timeout), *args, **kwargs)

    def _until(self, gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
        try:
            state = next(gen)
            while True:
                ready = yield state
                if time.monotonic() > deadline and not (ready and self._is_in_pipeline()):
                    self.pgconn.finish()  # nobody knows what the server makes of the last statement
                    raise Unanswered(f"the server has not answered for {self.answer_timeout:g} s")
                state = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value

    def _is_in_pipeline(self) -> bool:
        """True while many statements share one wait, in which each answer is progress."""
        return self.pgconn.pipeline_status != PipelineStatus.OFF

    def begin(self, statement: str) -> Stamp:
        """Begin a transaction; returns by what its end can be looked up."""
        self.own_cursor.execute(statement)
        while self.own_cursor.nextset():
            pass
        return Stamp(*self.own_cursor.fetchone())

    def is_idle(self) -> bool:
        """True if it is open and no transaction is."""
        return not self.closed and self.pgconn.transaction_status == TransactionStatus.IDLE

    def is_answering(self) -> bool:
        """True if the server is at work on a statement whose answer nobody has read."""
        return not self.closed and self.pgconn.transaction_status == TransactionStatus.ACTIVE

    def is_usable(self) -> bool:
        """True if nothing came while nobody used it, such as the server's goodbye."""
        if time.monotonic() - self.used_at < _FRESH:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            return not selector.select(timeout=0)

    def stop(self) -> None:
        """Let the server stop what it does for this connection; safe from another thread."""
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=_CANCEL)

    def interrupt(self) -> None:
        """End a wait for the server in another thread, which closes the connection then."""
        with (
            suppress(OSError, ValueError, psycopg.Error),
            socket.socket(fileno=os.dup(self.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, whatever state it is in; a forked child leaves it to its parent."""
        if self.process == os.getpid():
            with suppress(psycopg.Error, OSError):
                super().close()

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


class Connections:
    """Hands them out; each is used by one thread at a time."""

    def __init__(self, address: Address, lock_timeout: float) -> None:
        self._address = address
        self._lock_timeout = lock_timeout
        self._limits = _milliseconds(statement_timeout=_STATEMENT_TIMEOUT, lock_timeout=lock_timeout)
        self._idle: list[Connection] = []
        self._room = threading.Semaphore(address.pool_size)
        self._process = os.getpid()
        self._most_idle = 10 * _STATEMENT_TIMEOUT
        # Behind a pooler a transaction brings the limits that a session cannot keep there.
        self.begin_read = _begin(self._limits | _BY_INDEX)
        self.begin_write = f"{self.begin_read if address.pooled else 'BEGIN'}; {STAMP}"

    def begin_task(self, timeout: float | None) -> str:
        """What begins a task's own transaction: its statements may take as long as the task may."""
        limit = 0 if timeout is None else min(int(timeout * 1000) + 1, 2**31 - 1)
        limits = dict.fromkeys((*self._limits, "idle_in_transaction_session_timeout"), limit)
        return f"{_begin({**limits, **_USUAL_PLANS})}; {STAMP}"

    def limit_idle(self, lease: float) -> None:
        """Let the server end a transaction that stands still for as long as a worker may be silent.

        A process that was frozen in the middle of one holds its locks, and nobody could rescue its claims.
        """
        limit = min(self._most_idle, max(_LEAST_IDLE, lease))
        if limit < self._most_idle:
            self._most_idle = limit  # those that were opened without it are not kept

    def borrow(self) -> Connection:
        """An open, idle connection of this process; `give_back` it."""
        if self._process != os.getpid():
            self._forget()
        if not self._room.acquire(timeout=self._lock_timeout):
            raise StoreBusy(
                f"all {self._address.pool_size} connections of this process are in use; "
                "use fewer threads, or add ?pool_size= to the database's URL"
            )
        try:
            return self._kept() or self.open()
        except BaseException:
            self._room.release()
            raise

    def _kept(self) -> Connection | None:
        """An idle one that still works; the others are closed."""
        with suppress(IndexError):  # there is none, or another thread was faster
            while True:
                connection = self._idle.pop()
                if connection.most_idle == self._most_idle and connection.is_usable():
                    return connection
                connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next one, or close it if it is broken or there are enough."""
        if connection.process == self._process and connection.is_idle() and len(self._idle) < _KEPT:
            connection.used_at = time.monotonic()
            self._idle.append(connection)
        else:
            if connection.process == self._process and connection.is_answering():
                connection.stop()  # an interrupt came before the wait, and the server would go on for nobody
            connection.close()
        self._room.release()

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """Borrow for the length of a block."""
        connection = self.borrow()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def open(self) -> Connection:
        """A new connection."""
        # The server cuts a name at 63 bytes, and its end must be whole: it finds a lost connection again.
        name = f"{self._address.name.encode('ascii', 'replace').decode()[:48]} {secrets.token_hex(6)}"
        most_idle = self._most_idle  # another thread may limit it meanwhile
        settings: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": None if self._address.pooled else 3,
            "application_name": name,
            "client_encoding": "UTF8",  # whatever the database's own is: `prepared.py` and JSON rely on it
        }
        if not self._address.pooled:
            # A pooler would refuse these, or give them to somebody else.
            idle = _milliseconds(idle_in_transaction_session_timeout=most_idle)
            own = {**self._limits, **idle, **_PLANS}
            given = psycopg.conninfo.conninfo_to_dict(self._address.conninfo).get("options") or ""
            settings["options"] = " ".join(
                [
                    *(f"-c {name}={value}" for name, value in own.items()),
                    str(given),
                    "-c extra_float_digits=1",  # times come as text, which would lose their microseconds
                ]
            )
        connection: Connection = Connection.connect(self._address.conninfo, **settings)
        connection.name = name
        connection.most_idle = most_idle
        connection.answer_timeout = _STATEMENT_TIMEOUT + _GRACE
        connection.prepared_max = 400
        return connection

    def close(self) -> None:
        """Close the idle ones; those in use are kept when they come back, later calls open anew."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _forget(self) -> None:
        """After a fork: the parent's connections are not ours."""
        _abandoned.extend(self._idle)
        self._idle = []
        self._room = threading.Semaphore(self._address.pool_size)
        self._process = os.getpid()


def _begin(settings: Mapping[str, object]) -> str:
    """What begins a transaction with settings of its own."""
    return "; ".join(["BEGIN", *(f"SET LOCAL {name} = {value}" for name, value in settings.items())])


def _milliseconds(**seconds: float) -> dict[str, object]:
    return {name: int(value * 1000) for name, value in seconds.items()}


# Kept alive, so that nothing says goodbye to the server in the parent's name.
_abandoned: list[Connection] = []
