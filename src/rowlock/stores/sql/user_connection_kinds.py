"""The user's connection or session as one small face, whatever library made it.

Recognises it by the names of its classes, so that no driver is imported; and runs statements on it.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rowlock.errors import ConfigurationError, Fail, StoreError
from rowlock.stores.sql.user_connection import Answer, UserConnection

if TYPE_CHECKING:  # imported when needed: it takes 30 ms, and most programs never use it
    import asyncio

T = TypeVar("T")
_STATEMENT_TIMEOUT_SECONDS = 60.0  # for which a thread waits for a statement that the event loop runs for it
_DOLLAR = re.compile(r"\$([a-z_]+)")
_AUTOCOMMIT = "this connection is in autocommit mode and has no transaction to join: turn autocommit off"


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

    def hold(self, refusal: str) -> None:
        super().hold(refusal)
        self._given.commit = self._refuse_commit  # which also its `with` block calls

    def _refuse_commit(self) -> Any:
        # Closed instead, which undoes what was written: the block does not close what it could not commit.
        self._given.close()
        raise Fail(self._refusal)

    def let_go(self) -> None:
        if vars(self._given).get("commit") == self._refuse_commit:
            del self._given.commit


class Duckdb(UserConnection):
    """A `duckdb.DuckDBPyConnection`."""

    dialect, style = "duckdb", "dollar"

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        named = {name: values[name] for name in _DOLLAR.findall(sql) if name in values}
        done = self._given.execute(sql, named) if named else self._given.execute(sql)
        columns = [column[0] for column in done.description or ()]
        return counted_in_duckdb(columns, done.fetchall() if columns else [])

    def begin(self) -> None:
        if self._transaction_number() != self._transaction_number():  # each statement has one of its own
            self._given.begin()


class Alchemy(UserConnection):
    """A SQLAlchemy `Connection` or `Session`; a session is not flushed first."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._is_session = hasattr(given, "get_bind")
        self.dialect = _known((given.get_bind() if self._is_session else given).dialect.name)
        self._listener: tuple[Any, ...] | None = None  # while it is held
        self._close_asked = False

    def _connection(self) -> Any:
        return self._given.connection() if self._is_session else self._given

    def lines(self, block: str, on_loop: bool) -> str:
        opened, name, write = _alchemy_lines(self._is_session)
        if on_loop:
            return f"with {opened} as {name}:\n        async with ctx.{block}({name}):\n            {write}"
        return f"with {opened} as {name}, ctx.{block}({name}):\n        {write}"

    def hold(self, refusal: str) -> None:
        super().hold(refusal)
        self._given.close = self._put_off_close  # both call it at the end of their `with` block
        # Not by its `commit`, which the blocks of `Session.begin()` and `engine.begin()` do not call.
        event = "before_commit" if self._is_session else "commit"
        self._listener = (self._given, event, self._refuse_commit)
        import_module("sqlalchemy").event.listen(*self._listener)

    def _put_off_close(self) -> None:
        self._close_asked = True

    def _refuse_commit(self, given: Any) -> None:
        if not given.in_nested_transaction():  # savepoints are the task's own
            raise Fail(self._refusal)

    def let_go(self) -> None:
        if self._listener is not None:
            vars(self._given).pop("close", None)
            import_module("sqlalchemy").event.remove(*self._listener)
            self._listener = None

    def close(self) -> None:
        self.let_go()
        if self._close_asked:
            self._close_asked = False
            self._given.close()

    @property
    def key(self) -> object | None:
        return self._connection().connection.driver_connection  # type: ignore[no-any-return]

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        connection = self._connection()
        if self.dialect == "sqlite" and (begin := _missing_begin(sql, self.key)):
            connection.exec_driver_sql(begin)
        result = connection.execute(_text(sql), dict(values))
        if self.dialect == "duckdb":
            return counted_in_duckdb(list(result.keys()), [tuple(row) for row in result])
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

    def lines(self, block: str, on_loop: bool) -> str:
        return f"{'async ' * on_loop}with ctx.{block}(connection):\n        Order.objects.create(...)"

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
        self._is_session = hasattr(given, "get_bind")
        self.dialect = _known((given.get_bind() if self._is_session else given.sync_engine).dialect.name)
        self._face: Alchemy | None = None

    def lines(self, block: str, on_loop: bool) -> str:
        opened, name, write = _alchemy_lines(self._is_session, "await ")
        return f"async with {opened} as {name}, ctx.{block}({name}):\n        {write}"

    @property
    def key(self) -> object | None:
        return None

    async def acall(self, work: Callable[[UserConnection], T]) -> T:
        def on_face(given: Any) -> T:
            self._face = self._face or Alchemy(given)  # the same at each call: it may be held
            return work(self._face)

        result: T = await self._given.run_sync(on_face)
        return result


class AsyncPsycopg(UserConnection):
    """A `psycopg.AsyncConnection`; `acall` gives `work` the face that can run."""

    dialect, style, asynchronous = "postgresql", "pyformat", True
    _face: Bridge | None = None

    async def acall(self, work: Callable[[UserConnection], T]) -> T:
        import asyncio

        self._face = self._face or Bridge(self._given, asyncio.get_running_loop())
        thread = asyncio.ensure_future(asyncio.to_thread(work, self._face))
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
        self.let_go()
        self._wait(self._given.commit())

    def rollback(self) -> None:
        self.let_go()
        self._wait(self._given.rollback())

    async def _refuse_commit(self) -> None:
        await self._given.close()
        raise Fail(self._refusal)

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


def counted_in_duckdb(columns: list[str], rows: list[tuple[Any, ...]]) -> Answer:
    """DuckDB answers a write without RETURNING with one row, `Count`; its rowcount is -1 on 1.5."""
    if columns == ["Count"]:
        return Answer([], int(rows[0][0]) if rows else 0)
    return Answer(rows, len(rows))


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
    "a sqlite3.Connection, a psycopg Connection or AsyncConnection, a DuckDB connection, a SQLAlchemy "
    "Connection, Session, AsyncConnection or AsyncSession, or Django's connection"
)
_KINDS: dict[str, Callable[[Any], UserConnection]] = {
    "sqlite3.Connection": Sqlite,
    "psycopg.Connection": Psycopg,
    "psycopg.AsyncConnection": AsyncPsycopg,
    "_duckdb.DuckDBPyConnection": Duckdb,
    "duckdb.DuckDBPyConnection": Duckdb,
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


def _alchemy_lines(is_session: bool, wait: str = "") -> tuple[str, str, str]:
    """How a session or connection is opened, its name then, and how it is written to."""
    if is_session:
        return "SessionLocal()", "db", "db.add(...)"
    return "engine.connect()", "connection", f"{wait}connection.execute(...)"


def _known(dialect: str) -> str:
    if dialect not in ("sqlite", "postgresql", "duckdb"):
        raise ConfigurationError(
            f"cannot write jobs on a connection to {dialect}: only SQLite, PostgreSQL and DuckDB hold queues"
        )
    return dialect
