"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock
from tests.servers.folders import Folder
from tests.servers.pgbouncer import PgBouncer, pgbouncer_program
from tests.servers.postgres import (
    PostgresServer,
    RecycledQueue,
    fresh_schema,
    old_binaries,
    own_server,
    recycled_queue,
    shared_server,
    wheel_binaries,
)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests must not decide them."""
    for name in list(os.environ):
        if (
            name.startswith("ROWLOCK_")
            or name.endswith("_TIMEOUT_SECONDS")
            or name == "POLLER_INTERVAL_SECONDS"
        ):
            monkeypatch.delenv(name)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Rowlock]:
    """An app on a file of its own."""
    made = Rowlock(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the whole run, also when pytest-xdist runs it in several processes."""
    mine = tmp_path_factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine


@pytest.fixture(scope="session")
def _unix() -> None:
    if sys.platform == "win32":
        pytest.skip("the servers for the tests run on Unix only")


@pytest.fixture(scope="session")
def postgres(_unix: None, shared_folder: Path) -> Iterator[PostgresServer]:
    """The run's PostgreSQL: shared by all tests, so each keeps to a schema of its own."""
    with shared_server(wheel_binaries(), shared_folder / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.url


@pytest.fixture
def postgres_schema(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty schema that nobody else uses."""
    with fresh_schema(postgres) as url:
        yield url


def _recycled(server: str) -> Any:
    """A fixture: a queue in this server that is emptied instead of made anew."""

    @pytest.fixture(scope="session")
    def made(request: pytest.FixtureRequest) -> Iterator[RecycledQueue]:
        with recycled_queue(request.getfixturevalue(server)) as queue:
            yield queue

    return made


_recycled_postgres = _recycled("postgres")
_recycled_old_postgres = _recycled("old_postgres")


@pytest.fixture
def postgres_queue(_recycled_postgres: RecycledQueue) -> str:
    """The URL of an empty queue whose tables are there; one that the tests of this process take in turn."""
    return _recycled_postgres.emptied()


@pytest.fixture(scope="session")
def old_postgres(_unix: None, shared_folder: Path) -> Iterator[PostgresServer]:
    """An older PostgreSQL, the machine's own or the wheel's other one; shared by all tests like the first."""
    with shared_server(old_binaries(), shared_folder / "old-postgres") as server:
        yield server


@pytest.fixture
def old_postgres_schema(old_postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty schema in the older PostgreSQL."""
    with fresh_schema(old_postgres) as url:
        yield url


@pytest.fixture
def old_postgres_queue(_recycled_old_postgres: RecycledQueue) -> str:
    """The same in the older PostgreSQL."""
    return _recycled_old_postgres.emptied()


@pytest.fixture
def own_postgres(_unix: None) -> Iterator[PostgresServer]:
    """A PostgreSQL for this test alone, which may stop and restart it."""
    with own_server(wheel_binaries()) as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode, in front of the run's PostgreSQL."""
    program = pgbouncer_program()
    if program is None:
        pytest.skip("PgBouncer is not installed on this machine")
    with Folder.create() as folder:
        pooler = PgBouncer(program, postgres.port, folder.path)
        pooler.start()
        yield pooler
