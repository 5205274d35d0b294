"""One small face over a connection or session that belongs to the user, whatever library made it.

Recognises and runs; what is written and when it is committed, others decide. Imports no driver by itself.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from rowlock.errors import ConfigurationError, StoreError
from rowlock.stores.sql.held_session import HeldSession

if TYPE_CHECKING:  # imported when needed: it takes 30 ms, and most programs never use it
    import asyncio

T = TypeVar("T")
_STATEMENT_TIMEOUT_SECONDS = (
    60.0  # seconds that a thread waits for a statement which the event loop runs for it
)
_AUTOCOMMIT = "this connection is in autocommit mode and has no transaction to join: turn autocommit off"


class Answer(NamedTuple):
    """What a statement gave back; of one that returns rows, `changed` is their number."""

    rows: list[tuple[Any, ...]]
    changed: int


class UserConnection:
    """A user's connection: runs statements in the user's transaction, and ends it only when told to."""

    dialect: str  # "sqlite" or "postgresql"
    style = "named"  # parameters are :name; with "pyformat", %(name)s
    asynchronous = False

    def __init__(self, given: Any) -> None:
        self._given = given

    @property
    def key(self) -> object | None:
        """The driver's own connection, or None where it cannot be had."""
        return self._given  # type: ignore[no-any-return]

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        """Execute one statement and fetch all of its rows."""
        raise NotImplementedError

    def begin(self) -> None:
        """Make sure that a transaction is open."""
        raise NotImplementedError

    def commit(self) -> None:
        """Commit the user's transaction."""
        self._given.commit()

    def rollback(self) -> None:
        """Roll the user's transaction back."""
        self._given.rollback()

    def hold(self) -> HeldSession | None:
        """Keep it open although the task may close it; None where that cannot be done."""
        return None

    def call(self, work: Callable[[UserConnection], T]) -> T:
        """Do `work` on this connection."""
        if self.asynchronous:
            kind = type(self._given).__name__
            raise ConfigurationError(f"{kind} is asynchronous: write `await task.using(…).aenqueue(…)`")
        return work(self)

    async def acall(self, work: Callable[[UserConnection], T]) -> T:
        """Do `work` from a coroutine; a synchronous connection stays on the caller's thread."""
        return work(self)


class Sqlite(UserConnection):
    """A `sqlite3.Connection`."""

    dialect = "sqlite"

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        # Made by hand and not by .cursor(): it knows nothing of the connection's row_factory.
        cursor = sqlite3.Cursor(self._given)
        try:
            if begin := _missing_begin(sql, self._given):
                cursor.execute(begin)
            return _fetched(cursor.execute(sql, values))
        finally:
            cursor.close()

    def begin(self) -> None:
        _refuse_autocommit(self._given)
        if not self._given.in_transaction:
            self.run("BEGIN IMMEDIATE", {})


class Psycopg(UserConnection):
    """A `psycopg.Connection`."""

    dialect, style = "postgresql", "pyformat"

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        psycopg: Any = import_module("psycopg")
        with psycopg.Cursor(self._given, row_factory=psycopg.rows.tuple_row) as cursor:
            return _fetched(cursor.execute(sql, values, prepare=False))

    def begin(self) -> None:
        _refuse_autocommit(self._given)


class Alchemy(UserConnection):
    """A SQLAlchemy `Connection` or `Session`; a session is not flushed first."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._is_session = "sqlalchemy.Session" in _names(given)
        self.dialect = _alchemy_dialect(given)

    def _connection(self) -> Any:
        return self._given.connection() if self._is_session else self._given

    def hold(self) -> HeldSession:
        return HeldSession(self._given)

    @property
    def key(self) -> object | None:
        return self._connection().connection.driver_connection  # type: ignore[no-any-return]

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        connection = self._connection()
        if self.dialect == "sqlite" and (begin := _missing_begin(sql, self.key)):
            connection.exec_driver_sql(begin)
        result = connection.execute(_text(sql), dict(values))
        return _answer([tuple(row) for row in result] if result.returns_rows else None, result.rowcount)

    def begin(self) -> None:
        connection, driver = self._connection(), cast("Any", self.key)
        _refuse_autocommit(connection.connection.dbapi_connection)
        if self.dialect == "sqlite" and not driver.in_transaction:  # elsewhere the first statement begins
            connection.exec_driver_sql("BEGIN IMMEDIATE")


class Django(UserConnection):
    """Django's `connection`, or one of its `connections`."""

    style = "pyformat"

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.dialect = _known(given.vendor)
        self._atomic: Any = None

    @property
    def key(self) -> object | None:
        self._given.ensure_connection()
        return self._given.connection  # type: ignore[no-any-return]

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        with self._given.cursor() as cursor:
            cursor.execute(sql, values)
            return _fetched(cursor)

    def begin(self) -> None:
        self._atomic = import_module("django.db.transaction").atomic(using=self._given.alias, durable=False)
        self._atomic.__enter__()

    def commit(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:  # else a commit that failed has rolled back and left the block already
            atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        if self._atomic is not None:
            self._given.set_rollback(True)
            self.commit()


class AsyncAlchemy(UserConnection):
    """A SQLAlchemy `AsyncConnection` or `AsyncSession`; `acall` gives `work` the face that can run."""

    asynchronous = True

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.dialect = _alchemy_dialect(given if hasattr(given, "get_bind") else given.sync_engine)

    @property
    def key(self) -> object | None:
        return None

    async def acall(self, work: Callable[[UserConnection], T]) -> T:
        result: T = await self._given.run_sync(lambda given: work(Alchemy(given)))
        return result


class AsyncPsycopg(UserConnection):
    """A `psycopg.AsyncConnection`; `acall` gives `work` the face that can run."""

    dialect, style, asynchronous = "postgresql", "pyformat", True

    async def acall(self, work: Callable[[UserConnection], T]) -> T:
        import asyncio

        bridge = Bridge(self._given, asyncio.get_running_loop())
        thread = asyncio.ensure_future(asyncio.to_thread(work, bridge))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            # The thread ends first: what it wrote after the caller's rollback would be kept.
            await asyncio.gather(thread, return_exceptions=True)
            raise


class Bridge(Psycopg):
    """Lets a thread use a `psycopg.AsyncConnection`, whose statements run on the event loop."""

    def __init__(self, given: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(given)
        self._loop = loop

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        return self._wait(self._execute(sql, values))

    def commit(self) -> None:
        self._wait(self._given.commit())

    def rollback(self) -> None:
        self._wait(self._given.rollback())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        import asyncio
        import concurrent.futures

        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_STATEMENT_TIMEOUT_SECONDS)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise StoreError(
                f"the connection gave no answer within {_STATEMENT_TIMEOUT_SECONDS:g} s"
            ) from error

    async def _execute(self, sql: str, values: Mapping[str, Any]) -> Answer:
        psycopg: Any = import_module("psycopg")
        async with psycopg.AsyncCursor(self._given, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, values, prepare=False)
            return _answer(await cursor.fetchall() if cursor.description else None, cursor.rowcount)


# -- what the kinds share ------------------------------------------------------------------------


def _answer(rows: list[tuple[Any, ...]] | None, rowcount: int) -> Answer:
    # Counted, because Python 3.10 reads SQLite's rowcount before a RETURNING is through.
    return Answer([], max(rowcount, 0)) if rows is None else Answer(rows, len(rows))


def _fetched(cursor: Any) -> Answer:
    return _answer(cursor.fetchall() if cursor.description else None, cursor.rowcount)


def _refuse_autocommit(driver: Any) -> None:
    if getattr(driver, "autocommit", False) is True:  # sqlite3 knows -1 as well: the old, implicit BEGIN
        raise ConfigurationError(_AUTOCOMMIT)


def _missing_begin(sql: str, driver: Any) -> str | None:
    # sqlite3 opens a transaction before INSERT, UPDATE, DELETE and REPLACE, but not before WITH … INSERT:
    # that one would be committed at once, and outlive the user's rollback.
    if driver.in_transaction or driver.isolation_level is None or getattr(driver, "autocommit", -1) is True:
        return None
    return f"BEGIN {driver.isolation_level}" if sql.lstrip()[:4].upper() == "WITH" else None


@functools.lru_cache(maxsize=256)
def _text(sql: str) -> Any:
    return import_module("sqlalchemy").text(sql)  # to parse one costs tens of microseconds


# -- recognising ---------------------------------------------------------------------------------

_ACCEPTED = (
    "a sqlite3.Connection, a psycopg Connection or AsyncConnection, a SQLAlchemy Connection, Session, "
    "AsyncConnection or AsyncSession, or Django's connection"
)
_KINDS: dict[str, Callable[[Any], UserConnection]] = {
    "sqlite3.Connection": Sqlite,
    "psycopg.Connection": Psycopg,
    "psycopg.AsyncConnection": AsyncPsycopg,
    "sqlalchemy.Connection": Alchemy,
    "sqlalchemy.Session": Alchemy,
    "sqlalchemy.scoped_session": lambda registry: Alchemy(registry()),
    "sqlalchemy.AsyncConnection": AsyncAlchemy,
    "sqlalchemy.AsyncSession": AsyncAlchemy,
    "sqlalchemy.async_scoped_session": lambda registry: AsyncAlchemy(registry()),
}
_HINTS = {
    "sqlalchemy.Engine": "an {} makes connections: pass one of them",
    "sqlalchemy.AsyncEngine": "an {} makes connections: pass one of them",
    "sqlalchemy.sessionmaker": "a {} makes sessions: pass one of them",
    "sqlalchemy.async_sessionmaker": "an {} makes sessions: pass one of them",
    "psycopg_pool.BasePool": "a {} makes connections: pass one of them",
    "django.BaseConnectionHandler": "a {} makes connections: pass one of them",
    "sqlite3.Cursor": "pass the cursor's connection",
    "psycopg.BaseCursor": "pass the cursor's connection",
}


def borrow(given: object) -> UserConnection:
    """The face over `given`; raises ConfigurationError if it is nothing that rowlock can write on."""
    names = _names(given)
    for name in names:
        if name in _KINDS:
            return _KINDS[name](given)
    if hasattr(given, "settings_dict") and hasattr(given, "vendor"):
        return Django(given)
    kind = type(given)
    hint = next((f" ({_HINTS[name].format(kind.__name__)})" for name in names if name in _HINTS), "")
    raise ConfigurationError(
        f"cannot write jobs on a {kind.__module__}.{kind.__qualname__}{hint}: pass {_ACCEPTED}"
    )


def _names(given: object) -> list[str]:
    """The given's classes as "package.Class": to look them up by name takes no import."""
    return [f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in given.__class__.__mro__]


def _alchemy_dialect(given: Any) -> str:
    return _known((given.get_bind() if hasattr(given, "get_bind") else given).dialect.name)


def _known(dialect: str) -> str:
    if dialect not in ("sqlite", "postgresql"):
        raise ConfigurationError(
            f"cannot write jobs on a connection to {dialect}: only SQLite and PostgreSQL hold queues"
        )
    return dialect
