"""What the tests' own servers promise: the proxy loses what it says, and only that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import nullcontext
from pathlib import Path

import psycopg
import pytest

from tests.servers.folders import Folder, run
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer, wheel_binaries
from tests.servers.proxy import Proxy


@pytest.fixture
def table(postgres: PostgresServer, postgres_schema: str) -> str:
    name = postgres_schema.rpartition("schema=")[2] + ".notes"
    postgres.execute(f"CREATE TABLE {name} (note text)")
    return name


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


def notes(server: PostgresServer, table: str) -> list[str]:
    return [note for (note,) in server.execute(f"SELECT note FROM {table} ORDER BY note")]


def insert(url: str, table: str, note: str = "one", *, autocommit: bool = False) -> None:
    with psycopg.connect(url, autocommit=autocommit) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (%s)".encode(), [note])


def commit(connection: psycopg.Connection, *, pipeline: bool) -> None:
    # In a pipeline it is sent as Parse, Bind and Execute, otherwise as one Query.
    with connection.pipeline() if pipeline else nullcontext():
        connection.commit()


def test_the_proxy_passes_everything_on_until_told_otherwise(
    postgres: PostgresServer, proxy: Proxy, table: str
) -> None:
    with psycopg.connect(proxy.url(postgres.url)) as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES (%s)".encode(), [["a"], ["b"], ["c"]])
        with cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
            copy.write_row(["d"])
    assert notes(postgres, table) == ["a", "b", "c", "d"]
    assert proxy.dropped == 0


@pytest.mark.parametrize("pipeline", [False, True], ids=["simple", "pipeline"])
def test_a_commit_whose_reply_is_dropped_has_happened(
    postgres: PostgresServer, proxy: Proxy, table: str, pipeline: bool
) -> None:
    proxy.drop_reply_to_commit()
    with psycopg.connect(proxy.url(postgres.url)) as connection:
        connection.execute(f"INSERT INTO {table} VALUES ('one')".encode())
        with pytest.raises(psycopg.OperationalError):
            commit(connection, pipeline=pipeline)
    assert notes(postgres, table) == ["one"]
    assert proxy.dropped == 1
    insert(proxy.url(postgres.url), table, "two")
    assert notes(postgres, table) == ["one", "two"]


def test_a_dropped_commit_has_not_happened(postgres: PostgresServer, proxy: Proxy, table: str) -> None:
    proxy.drop_commit(times=2)
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError):
            insert(proxy.url(postgres.url), table)
    assert notes(postgres, table) == []
    assert proxy.dropped == 2
    insert(proxy.url(postgres.url), table)
    assert notes(postgres, table) == ["one"]


def test_the_commit_of_a_certain_transaction_can_be_dropped(
    postgres: PostgresServer, proxy: Proxy, table: str
) -> None:
    proxy.drop_commit(after="'two'")
    for note in ("one", "two", "three"):
        with psycopg.connect(proxy.url(postgres.url)) as connection:
            connection.execute(f"INSERT INTO {table} VALUES ('{note}')".encode())
            with pytest.raises(psycopg.OperationalError) if note == "two" else nullcontext():
                connection.commit()
    assert notes(postgres, table) == ["one", "three"]


def test_the_reply_to_any_statement_can_be_dropped(
    postgres: PostgresServer, proxy: Proxy, table: str
) -> None:
    proxy.drop_reply_to(r"INSERT INTO \S+notes")
    with pytest.raises(psycopg.OperationalError):
        insert(proxy.url(postgres.url), table, autocommit=True)
    assert notes(postgres, table) == ["one"]
    assert proxy.dropped == 1


def test_a_prepared_statement_is_known_by_its_text(
    postgres: PostgresServer, proxy: Proxy, table: str
) -> None:
    sql = f"INSERT INTO {table} VALUES (%s)".encode()
    with psycopg.connect(proxy.url(postgres.url), autocommit=True) as connection:
        connection.execute(sql, ["prepared"], prepare=True)
        proxy.drop_reply_to("INSERT")
        with pytest.raises(psycopg.OperationalError):
            connection.execute(sql, ["executed"], prepare=True)
    assert notes(postgres, table) == ["executed", "prepared"]


def test_a_frozen_connection_is_silent_and_thaws(postgres: PostgresServer, proxy: Proxy) -> None:
    with (
        psycopg.connect(proxy.url(postgres.url), autocommit=True) as connection,
        ThreadPoolExecutor(1) as thread,
    ):
        proxy.freeze()
        answer = thread.submit(lambda: connection.execute("SELECT 1").fetchone())
        with pytest.raises(StillWaiting):
            answer.result(timeout=0.3)
        proxy.thaw()
        assert answer.result(timeout=60) == (1,)


def test_what_was_held_back_is_lost_when_the_connection_is_cut(
    postgres: PostgresServer, proxy: Proxy, table: str
) -> None:
    with ThreadPoolExecutor(1) as thread:
        with psycopg.connect(proxy.url(postgres.url), autocommit=True) as connection:
            proxy.freeze()
            answer = thread.submit(connection.execute, f"INSERT INTO {table} VALUES ('late')".encode())
            with pytest.raises(StillWaiting):
                answer.result(timeout=0.1)
            proxy.cut()
            with pytest.raises(psycopg.OperationalError):
                answer.result(timeout=60)
        proxy.thaw()
    assert notes(postgres, table) == []
    insert(proxy.url(postgres.url), table)


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_restart_keeps_what_was_committed(own_postgres: PostgresServer, mode: str) -> None:
    own_postgres.execute("CREATE TABLE notes (note text)")
    with psycopg.connect(own_postgres.url) as connection:
        connection.execute("INSERT INTO notes VALUES ('committed')")
        connection.commit()
        connection.execute("INSERT INTO notes VALUES ('open')")
        own_postgres.restart(mode)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert notes(own_postgres, "notes") == ["committed"]


@pytest.mark.parametrize("which", ["postgres", "old_postgres"])
def test_a_server_is_of_its_version_and_syncs(which: str, request: pytest.FixtureRequest) -> None:
    server: PostgresServer = request.getfixturevalue(which)
    [(number,)] = server.execute("SELECT current_setting('server_version_num')::int / 10000")
    assert server.version == number
    assert server.execute("SHOW fsync") == [("on",)]


@pytest.mark.usefixtures("_unix")
def test_programs_in_a_folder_that_only_root_can_enter_are_brought_within_reach(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts servers as another user")
    tmp_path.chmod(0o700)
    binaries = wheel_binaries()
    site = binaries.parents[2]
    (tmp_path / "closed").symlink_to(site)
    with Folder.create() as folder:
        for _ in ("the one that starts it", "one that joins"):
            server = PostgresServer(tmp_path / "closed" / binaries.relative_to(site), folder.path)
            # Unlike the server itself it is linked to a library of the wheel.
            assert "initdb (PostgreSQL)" in run(server.binaries / "initdb", "--version", folder=folder.path)


def test_pgbouncer_gives_a_session_of_the_server_for_one_transaction_only(
    postgres: PostgresServer, pgbouncer: PgBouncer, table: str
) -> None:
    with psycopg.connect(pgbouncer.url(postgres.url)) as first:
        [mine] = first.execute("SELECT pg_backend_pid()").fetchone() or [None]
        first.commit()
        with psycopg.connect(pgbouncer.url(postgres.url)) as second:
            [shared] = second.execute("SELECT pg_backend_pid()").fetchone() or [None]
            first.execute(f"INSERT INTO {table} VALUES ('through')".encode())
        first.commit()
    assert shared == mine
    assert notes(postgres, table) == ["through"]
