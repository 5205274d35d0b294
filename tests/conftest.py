"""Fixtures that every room's tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rowlock import Rowlock
from tests.measuring import Measuring, leave_out_repetitions
from tests.memory import MEMORY
from tests.servers.folders import Folder
from tests.servers.pgbouncer import PgBouncer, pgbouncer_program
from tests.servers.postgres import (
    PostgresServer,
    fresh_schema,
    old_binaries,
    own_server,
    shared_server,
    wheel_binaries,
)
from tests.servers.recycled import RecycledQueue, recycled_queue
from tests.servers.redis import RedisServer, redis_server

settings.register_profile("same examples each time", derandomize=True)
# Else every process that the tests start looks through all installed packages for some: 0.04 s of its time.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
if MEMORY:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; inherited by programs
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make test` runs a part of, and `make matrix` whole."""
    parser.addoption(
        "--whole-file-mode", action="store_true", help="run all of the stores' tests in DuckDB's file mode"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let no test fail by the examples that were drawn; `make chaos` draws new ones."""
    if config.getoption("markexpr") != "chaos":
        settings.load_profile("same examples each time")
    if config.pluginmanager.hasplugin("_cov"):
        config.pluginmanager.register(Measuring())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure no lines a second time."""
    leave_out_repetitions(items)


def pytest_collection_finish() -> None:
    """Leave the objects of 5,600 tests out whenever Python, or rowlock, looks at all objects there are."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let Python clear away the objects of the tests at its end, as it would have."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests must not decide them."""
    for name in list(os.environ):
        if (
            name.startswith("ROWLOCK_")
            or name.endswith("_TIMEOUT_SECONDS")
            or name in ("POLLER_INTERVAL_SECONDS", "REDIS_URL")
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
_recycled_with_tables = _recycled("postgres")


@pytest.fixture
def postgres_queue(_recycled_postgres: RecycledQueue) -> str:
    """The URL of an empty queue whose tables are there; one that the tests of this process take in turn."""
    return _recycled_postgres.emptied()


@pytest.fixture
def postgres_as_new(_recycled_with_tables: RecycledQueue) -> str:
    """The same in a schema that is named anew, for tests that make tables of their own in it."""
    return _recycled_with_tables.as_new()


@pytest.fixture(scope="session")
def _redis(_unix: None) -> Iterator[RedisServer]:
    """The Redis of this process of the tests, which take it in turn."""
    with redis_server() as server:
        yield server


@pytest.fixture
def redis(_redis: RedisServer) -> RedisServer:
    """An empty Redis; the test may flush and restart it."""
    if not _redis.answers():
        _redis.start()
    with _redis.client() as client:
        client.flushall()
    return _redis


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
def own_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL for this test alone, which may stop and restart it."""
    with own_server(wheel_binaries(), like=postgres) as server:
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
