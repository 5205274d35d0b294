"""The face over a user's connection: every kind keeps the user's transaction, rows and refusals alike."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from django.db import connection as django_connection
from django.db import connections, transaction
from django.db.backends.dummy.base import DatabaseWrapper as DummyWrapper
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from rowlock import Rowlock
from rowlock.errors import ConfigurationError, StoreBusy
from rowlock.stores.sql.user_connection import Answer, UserConnection
from rowlock.stores.sql.user_connection_kinds import borrow
from tests.django_setup import set_up_django

# -- a place to write to -------------------------------------------------------------------------


@dataclass
class Place:
    """A table `note`, and how somebody else sees it."""

    url: str
    table: str
    read: Callable[[], list[tuple[Any, ...]]]

    def alchemy(self, driver: str) -> sqlalchemy.URL:
        return sqlalchemy.make_url(self.url).set(drivername=driver)


@contextmanager
def sqlite_place(folder: Path) -> Iterator[Place]:
    file = folder / "app.db"

    def other(sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file)) as connection:
            return connection.execute(sql).fetchall()

    other("CREATE TABLE note (id INTEGER PRIMARY KEY, word TEXT)")
    yield Place(f"sqlite:///{file}", "note", lambda: other("SELECT id, word FROM note ORDER BY id"))


@contextmanager
def postgres_place(url: str) -> Iterator[Place]:
    schema = f"borrowed_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"CREATE SCHEMA {schema}")
        with table_in(schema, url, other) as place:
            yield place
        other.execute(f"DROP SCHEMA {schema} CASCADE")


@contextmanager
def table_in(schema: str, url: str, other: psycopg.Connection) -> Iterator[Place]:
    other.execute(f"CREATE TABLE {schema}.note (id bigint PRIMARY KEY, word text)")
    select = f"SELECT id, word FROM {schema}.note ORDER BY id"
    yield Place(url, f"{schema}.note", lambda: other.execute(select).fetchall())
    other.execute(f"SET lock_timeout = '10s'; DROP TABLE {schema}.note")


# -- the kinds: how each is opened, and how its user ends a transaction --------------------------


@dataclass
class Case:
    """Something to borrow, its place, and a user of it."""

    given: Any
    place: Place
    commit: Callable[[], object]
    rollback: Callable[[], object]
    loop: asyncio.AbstractEventLoop | None = None
    start: Callable[[], object] = lambda: None  # Django alone wants to be told

    def do(self, work: Callable[[UserConnection], Any]) -> Any:
        borrowed = borrow(self.given)
        return self.loop.run_until_complete(borrowed.acall(work)) if self.loop else borrowed.call(work)

    def run(self, face: UserConnection, sql: str, **values: Any) -> Answer:
        """SQL with :name parameters and {note} for the table, as the face likes it."""
        sql = sql.format(note=self.place.table)
        return face.run(re.sub(r":(\w+)", r"%(\1)s", sql) if face.style == "pyformat" else sql, values)

    def insert(self, face: UserConnection, number: int, word: str | None = "x") -> Answer:
        sql = "INSERT INTO {note} (id, word) VALUES (CAST(:id AS bigint), CAST(:word AS text))"
        return self.run(face, sql, id=number, word=word)


Opened = Iterator[Case]


@contextmanager
def plain_sqlite(place: Place) -> Opened:
    with closing(sqlite3.connect(str(sqlalchemy.make_url(place.url).database))) as given:
        yield Case(given, place, given.commit, given.rollback)


@contextmanager
def plain_psycopg(place: Place) -> Opened:
    with closing(psycopg.connect(place.url)) as given:
        yield Case(given, place, given.commit, given.rollback)


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.new_event_loop()) as loop:
        yield loop
        loop.run_until_complete(loop.shutdown_default_executor())


def on(loop: asyncio.AbstractEventLoop, method: Callable[[], Any]) -> Callable[[], object]:
    return lambda: loop.run_until_complete(method())


@contextmanager
def async_psycopg(place: Place) -> Opened:
    with event_loop() as loop:
        given = loop.run_until_complete(psycopg.AsyncConnection.connect(place.url))
        yield Case(given, place, on(loop, given.commit), on(loop, given.rollback), loop)
        loop.run_until_complete(given.close())


def alchemy(driver: str, shape: str) -> Callable[[Place], Any]:
    @contextmanager
    def opened(place: Place) -> Opened:
        engine = sqlalchemy.create_engine(place.alchemy(driver), poolclass=NullPool)
        makers: dict[str, Callable[[], Any]] = {
            "connection": engine.connect,
            "session": lambda: Session(engine),
            "scoped": lambda: scoped_session(sessionmaker(engine)),
        }
        with closing(makers[shape]()) as given:
            yield Case(given, place, given.commit, given.rollback)

    return opened


def async_alchemy(driver: str, shape: str) -> Callable[[Place], Any]:
    @contextmanager
    def opened(place: Place) -> Opened:
        engine = create_async_engine(place.alchemy(driver), poolclass=NullPool)
        makers: dict[str, Callable[[], Any]] = {
            "connection": engine.connect,
            "session": lambda: AsyncSession(engine),
            "scoped": lambda: async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1),
        }
        with event_loop() as loop:
            given = makers[shape]()
            if shape == "connection":
                loop.run_until_complete(given.start())
            yield Case(given, place, on(loop, given.commit), on(loop, given.rollback), loop)
            loop.run_until_complete(given.close())

    return opened


def django(shape: str) -> Callable[[Place], Any]:
    @contextmanager
    def opened(place: Place) -> Opened:
        url = sqlalchemy.make_url(place.url)
        set_up_django()
        alias = "default" if shape == "proxy" else "other"
        database = {
            "ENGINE": f"django.db.backends.{'sqlite3' if url.drivername == 'sqlite' else 'postgresql'}",
            "NAME": url.database,
            "USER": url.username or "",
            "PASSWORD": url.password or "",
            "HOST": url.host or "",
            "PORT": url.port or "",
        }
        # What `DATABASES` says is read once; a test has a database of its own.
        connections.settings = connections.configure_settings({"default": {}} | {alias: database})
        given = django_connection if shape == "proxy" else connections[alias]
        atomic = transaction.atomic(using=alias)

        def leave(failed: bool) -> None:
            given.set_rollback(failed)
            atomic.__exit__(None, None, None)

        yield Case(given, place, lambda: leave(False), lambda: leave(True), start=atomic.__enter__)
        given.close()
        del connections[alias]

    return opened


SQLITE = {
    "sqlite3": plain_sqlite,
    "pysqlite connection": alchemy("sqlite+pysqlite", "connection"),
    "pysqlite session": alchemy("sqlite+pysqlite", "session"),
    "pysqlite scoped session": alchemy("sqlite+pysqlite", "scoped"),
    "aiosqlite connection": async_alchemy("sqlite+aiosqlite", "connection"),
    "aiosqlite session": async_alchemy("sqlite+aiosqlite", "session"),
    "aiosqlite scoped session": async_alchemy("sqlite+aiosqlite", "scoped"),
    "django connection": django("proxy"),
    "django connections": django("wrapper"),
}
POSTGRES = {
    "psycopg": plain_psycopg,
    "psycopg async": async_psycopg,
    **{f"{driver} {shape}": alchemy(f"postgresql+{driver}", shape)
       for driver in ("psycopg", "psycopg2", "pg8000") for shape in ("connection", "session", "scoped")},
    **{f"{driver} async {shape}": async_alchemy(f"postgresql+{driver}", shape)
       for driver in ("psycopg", "asyncpg") for shape in ("connection", "session", "scoped")},
    "django connection": django("proxy"),
    "django connections": django("wrapper"),
}  # fmt: skip


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Iterator[Place]:
    with sqlite_place(tmp_path) as place:
        yield place


@pytest.fixture
def postgres_table(postgres_url: str) -> Iterator[Place]:
    with postgres_place(postgres_url) as place:
        yield place


def opened(request: pytest.FixtureRequest) -> Iterator[Case]:
    place, opener = request.param
    with opener(request.getfixturevalue(place)) as case:
        yield case


on_sqlite = [pytest.param(("sqlite_file", SQLITE[name]), id=f"sqlite-{name}") for name in SQLITE]
on_postgres = [pytest.param(("postgres_table", POSTGRES[name]), id=f"postgres-{name}") for name in POSTGRES]
waiting = [one for one in on_postgres if "async" in str(one.id)]
case = pytest.fixture(opened, name="case", params=[*on_sqlite, *on_postgres])
# Django's atomic() begins as its own settings say, and by default takes no lock.
locking = [one for one in on_sqlite if "django" not in str(one.id)]
sqlite_case = pytest.fixture(opened, name="sqlite_case", params=locking)
any_sqlite_case = pytest.fixture(opened, name="any_sqlite_case", params=on_sqlite)
async_case = pytest.fixture(opened, name="async_case", params=waiting)


# -- the user's transaction ----------------------------------------------------------------------


def test_what_the_user_rolls_back_is_gone(case: Case) -> None:
    case.start()
    case.do(lambda face: case.insert(face, 1))
    case.rollback()
    assert case.place.read() == []


def test_what_the_user_commits_stays(case: Case) -> None:
    case.start()
    case.do(lambda face: case.insert(face, 1, "kept"))
    assert case.place.read() == []
    case.commit()
    assert case.place.read() == [(1, "kept")]


def test_an_insert_behind_with_is_the_users_to_roll_back(case: Case) -> None:
    case.start()
    sql = "WITH new AS (SELECT 1 AS id) INSERT INTO {note} (id) SELECT id FROM new"
    case.do(lambda face: case.run(face, sql))
    case.rollback()
    assert case.place.read() == []


def test_the_face_commits_when_told_to(case: Case) -> None:
    def work(face: UserConnection) -> None:
        face.begin()
        case.insert(face, 1)
        assert case.place.read() == []
        face.commit()

    case.do(work)
    assert case.place.read() == [(1, "x")]


def test_the_face_rolls_back_when_told_to(case: Case) -> None:
    def work(face: UserConnection) -> None:
        face.begin()
        case.insert(face, 1)
        face.rollback()

    case.do(work)
    case.start()
    case.do(lambda face: case.insert(face, 2))
    case.commit()
    assert case.place.read() == [(2, "x")]


def test_begin_joins_a_transaction_that_is_open_already(case: Case) -> None:
    def work(face: UserConnection) -> None:
        case.insert(face, 1)
        face.begin()
        case.insert(face, 2)
        face.commit()

    case.start()
    case.do(work)
    case.commit()
    assert case.place.read() == [(1, "x"), (2, "x")]


def test_after_begin_nobody_else_can_change_a_sqlite_file(sqlite_case: Case) -> None:
    file = str(sqlalchemy.make_url(sqlite_case.place.url).database)

    def work(face: UserConnection) -> None:
        face.begin()
        with closing(sqlite3.connect(file, timeout=0)) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
        face.rollback()

    sqlite_case.do(work)


def test_who_enqueues_beside_its_own_open_session_is_told_of_using(any_sqlite_case: Case) -> None:
    app = Rowlock(any_sqlite_case.place.url, busy_timeout=0.01)
    app.store.open()
    any_sqlite_case.start()
    any_sqlite_case.do(lambda face: any_sqlite_case.insert(face, 1))
    with pytest.raises(
        StoreBusy, match=r"this program itself has a transaction open .*task\.using\(session\)"
    ):
        app.enqueue("work")
    any_sqlite_case.rollback()
    app.enqueue("work")
    app.close()


def test_inside_an_atomic_block_of_the_user_rollback_undoes_its_own_part(postgres_table: Place) -> None:
    with django("proxy")(postgres_table) as case:
        case.start()
        case.do(lambda face: case.insert(face, 1))

        def work(face: UserConnection) -> None:
            face.begin()
            case.insert(face, 2)
            face.rollback()

        case.do(work)
        case.commit()
        assert case.place.read() == [(1, "x")]


# -- what comes back -----------------------------------------------------------------------------


def test_rows_and_counts_come_back_alike(case: Case) -> None:
    def work(face: UserConnection) -> list[Answer]:
        return [
            case.run(face, "INSERT INTO {note} (id, word) VALUES (1, 'a'), (2, NULL)"),
            case.run(face, "UPDATE {note} SET word = 'b' WHERE id = CAST(:id AS bigint)", id=9),
            case.run(face, "UPDATE {note} SET word = CAST(:word AS text) WHERE id > 0", word="100% :b?"),
            case.run(face, "INSERT INTO {note} (id) VALUES (3), (4) RETURNING id, word"),
            case.run(
                face, "SELECT word, id FROM {note} WHERE id <= CAST(:most AS bigint) ORDER BY id", most=3
            ),
            case.run(face, "SELECT id FROM {note} WHERE id > 9"),
            case.run(face, "DROP TABLE IF EXISTS {note}_none"),
        ]

    case.start()
    answers = case.do(work)
    case.rollback()
    assert answers == [
        ([], 2),
        ([], 0),
        ([], 2),
        ([(3, None), (4, None)], 2),
        ([("100% :b?", 1), ("100% :b?", 2), (None, 3)], 3),
        ([], 0),
        ([], 0),
    ]
    assert {type(row) for answer in answers for row in answer.rows} == {tuple}
    assert {type(answer.rows) for answer in answers} == {list}


def test_a_face_names_its_dialect(case: Case) -> None:
    dialect = "sqlite" if case.place.url.startswith("sqlite") else "postgresql"
    borrowed = borrow(case.given)
    assert borrowed.dialect == dialect
    assert borrowed.asynchronous == (case.loop is not None)
    assert case.do(lambda face: (face.dialect, face.style, face.asynchronous)) == (
        dialect,
        borrowed.style,
        False,
    )


def test_a_key_is_the_drivers_connection_and_stays_the_same(case: Case) -> None:
    first = case.do(lambda face: face.key)
    second = case.do(lambda face: face.key)
    assert first is not None and first is second
    assert type(first).__module__.partition(".")[0] in {
        "sqlite3", "aiosqlite", "django", "psycopg", "psycopg2", "asyncpg", "pg8000"
    }  # fmt: skip


class Loud(sqlite3.Connection):
    """What an application may make of a connection."""

    def cursor(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("asked for a cursor of the application's own")


def test_rows_do_not_depend_on_a_sqlite_row_factory(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db", factory=Loud)) as given:
        given.row_factory = lambda cursor, row: {"row": row}
        assert borrow(given).run("SELECT :a, 2", {"a": 1}).rows == [(1, 2)]


def test_rows_do_not_depend_on_a_psycopg_row_factory(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as given:
        assert borrow(given).run("SELECT CAST(%(a)s AS int), 2", {"a": 1}).rows == [(1, 2)]


def test_rows_do_not_depend_on_an_async_psycopg_row_factory(postgres_url: str) -> None:
    async def rows() -> list[tuple[Any, ...]]:
        connect = psycopg.AsyncConnection.connect(
            postgres_url, row_factory=dict_row, cursor_factory=psycopg.AsyncClientCursor
        )
        async with await connect as given:
            return await borrow(given).acall(
                lambda face: face.run("SELECT CAST(%(a)s AS int), 2", {"a": 1}).rows
            )

    assert asyncio.run(rows()) == [(1, 2)]


def test_psycopg_prepares_no_statements(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, prepare_threshold=0) as given:
        for _ in range(3):
            borrow(given).run("SELECT CAST(%(a)s AS int)", {"a": 1})
        assert given.execute("SELECT name FROM pg_prepared_statements", prepare=False).fetchall() == []


# -- coroutines ----------------------------------------------------------------------------------


def test_a_coroutine_may_use_a_synchronous_connection(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as given:
        answer = asyncio.run(borrow(given).acall(lambda face: face.run("SELECT 1", {})))
    assert answer == ([(1,)], 1)


def test_the_event_loop_goes_on_while_a_statement_waits(async_case: Case, postgres_url: str) -> None:
    async def scene(holder: psycopg.AsyncConnection[Any]) -> Answer:
        await holder.execute("SELECT pg_advisory_lock(hashtext(%s))", [async_case.place.table])
        sql = f"SELECT pg_advisory_xact_lock(hashtext('{async_case.place.table}'))"
        waiting = asyncio.ensure_future(borrow(async_case.given).acall(lambda face: face.run(sql, {})))
        await somebody_waits(holder)
        await holder.execute("SELECT pg_advisory_unlock(hashtext(%s))", [async_case.place.table])
        return await waiting

    assert async_case.loop is not None
    assert async_case.loop.run_until_complete(with_other(postgres_url, scene)).changed == 1
    async_case.rollback()


def test_a_cancelled_call_writes_nothing_after_the_users_rollback(
    async_case: Case, postgres_url: str
) -> None:
    def work(face: UserConnection) -> None:
        face.run(f"SELECT pg_advisory_xact_lock(hashtext('{async_case.place.table}'))", {})
        async_case.insert(face, 1)

    async def scene(holder: psycopg.AsyncConnection[Any]) -> None:
        await holder.execute("SELECT pg_advisory_lock(hashtext(%s))", [async_case.place.table])
        waiting = asyncio.ensure_future(borrow(async_case.given).acall(work))
        await somebody_waits(holder)
        waiting.cancel()
        await holder.execute("SELECT pg_advisory_unlock(hashtext(%s))", [async_case.place.table])
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert async_case.loop is not None
    async_case.loop.run_until_complete(with_other(postgres_url, scene))
    async_case.rollback()
    async_case.do(lambda face: async_case.insert(face, 2))
    async_case.commit()
    assert async_case.place.read() == [(2, "x")]


async def with_other(url: str, scene: Callable[[psycopg.AsyncConnection[Any]], Any]) -> Any:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        return await scene(other)


async def somebody_waits(holder: psycopg.AsyncConnection[Any]) -> None:
    """Returns when a statement waits for an advisory lock that `holder` has."""
    sql = """
        SELECT 1 FROM pg_locks AS held JOIN pg_locks AS wanted USING (database, classid, objid, objsubid)
        WHERE held.pid = pg_backend_pid() AND held.granted AND NOT wanted.granted
    """
    while not await (await holder.execute(sql)).fetchone():
        pass


# -- refusals ------------------------------------------------------------------------------------


def test_an_asynchronous_connection_has_to_be_awaited(async_case: Case) -> None:
    with pytest.raises(ConfigurationError, match=r"is asynchronous: write `await task\.using\(…\)\.aenqueue"):
        borrow(async_case.given).call(lambda face: face.run("SELECT 1", {}))


def test_an_autocommit_connection_has_no_transaction_to_join(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as given:
        borrowed = borrow(given)
        with pytest.raises(ConfigurationError, match="autocommit mode and has no transaction to join"):
            borrowed.begin()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_an_autocommit_engine_has_no_transaction_to_join(postgres_url: str, driver: str) -> None:
    url = sqlalchemy.make_url(postgres_url).set(drivername=f"postgresql+{driver}")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as given:
        borrowed = borrow(given)
        with pytest.raises(ConfigurationError, match="autocommit mode and has no transaction to join"):
            borrowed.begin()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", None])
def test_an_async_autocommit_connection_has_no_transaction_to_join(
    postgres_url: str, driver: str | None
) -> None:
    async def begin() -> None:
        if driver is None:
            async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as plain:
                return await borrow(plain).acall(lambda face: face.begin())
        url = sqlalchemy.make_url(postgres_url).set(drivername=f"postgresql+{driver}")
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        async with engine.connect() as given:
            return await borrow(given).acall(lambda face: face.begin())

    with pytest.raises(ConfigurationError, match="autocommit mode and has no transaction to join"):
        asyncio.run(begin())


def cursor_of_nothing() -> sqlite3.Cursor:
    with closing(sqlite3.connect(":memory:")) as connection:
        return connection.cursor()


UNUSABLE: dict[str, tuple[Callable[[], object], str]] = {
    "a number": (
        lambda: 42,
        r"on a builtins\.int: pass a sqlite3\.Connection, a psycopg .* Django's connection",
    ),
    "nothing": (lambda: None, r"on a builtins\.NoneType: pass"),
    "an Engine": (
        lambda: sqlalchemy.create_engine("sqlite://"),
        r"\(an Engine makes connections: pass one of them",
    ),
    "an AsyncEngine": (
        lambda: create_async_engine("sqlite+aiosqlite://"),
        "an AsyncEngine makes connections",
    ),
    "a sessionmaker": (sessionmaker, r"\(a sessionmaker makes sessions: pass one of them"),
    "an async_sessionmaker": (async_sessionmaker, "an async_sessionmaker makes sessions"),
    "a pool": (
        lambda: psycopg_pool.ConnectionPool("", open=False),
        "a ConnectionPool makes connections: pass",
    ),
    "Django's handler": (lambda: connections, "a ConnectionHandler makes connections: pass one of them"),
    "a cursor": (cursor_of_nothing, r"on a sqlite3\.Cursor \(pass the cursor's connection\)"),
    "another dialect": (
        lambda: Session(sqlalchemy.create_engine("mysql://", module=sqlite3)),
        "a connection to mysql: only SQLite, PostgreSQL and DuckDB hold queues",
    ),
    "another backend": (
        lambda: DummyWrapper({}),
        "a connection to unknown: only SQLite, PostgreSQL and DuckDB hold queues",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_holds_no_queue_is_refused_by_name(name: str) -> None:
    make, message = UNUSABLE[name]
    with pytest.raises(ConfigurationError, match=message):
        borrow(make())


def test_a_psycopg_cursor_is_refused_by_name(postgres_url: str) -> None:
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(ConfigurationError, match="the cursor's con"),
    ):
        borrow(connection.cursor())


# -- what it costs those who use none of it ------------------------------------------------------


def test_recognising_imports_no_driver() -> None:
    script = """
import sqlite3, sys
from rowlock.stores.sql.user_connection_kinds import borrow
connection = sqlite3.connect(":memory:")
borrow(connection).run("SELECT 1", {})
connection.close()
try:
    borrow(object())
except ValueError:
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "rowlock" in loaded.split()
    assert {"sqlalchemy", "django", "psycopg", "greenlet"}.isdisjoint(loaded.split())
