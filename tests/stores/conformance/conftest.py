"""The stores that have to behave alike; a new one is one more entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rowlock.stores.address import store_for
from rowlock.stores.sql.store import Store
from tests.stores.owned_duckdb import OwnedDuckdb

Request = pytest.FixtureRequest
HERE = Path(__file__).parent


def sqlite(request: Request) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{folder / 'queue.db'}"


def postgres(request: Request) -> str:
    return str(request.getfixturevalue("postgres_schema"))


def postgres_old(request: Request) -> str:
    return str(request.getfixturevalue("old_postgres_schema"))


def duckdb_file(request: Request) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"duckdb:///{folder / 'queue.duckdb'}"


def recycled_duckdb(request: Request) -> str:
    return str(request.getfixturevalue("owned_duckdb").emptied())


def recycled_postgres(request: Request) -> str:
    return str(request.getfixturevalue("postgres_queue"))


def recycled_postgres_old(request: Request) -> str:
    return str(request.getfixturevalue("old_postgres_queue"))


NOWHERE: dict[str, Callable[[Request], str]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "postgres-old": postgres_old,
    "duckdb-file": duckdb_file,
}
STORES: dict[str, Callable[[Request], str]] = {
    "sqlite": sqlite,
    "postgres": recycled_postgres,
    "postgres-old": recycled_postgres_old,
    "duckdb": recycled_duckdb,
    "duckdb-file": duckdb_file,
}
EXEMPT = {
    ("duckdb", "processes"): "in owner mode one process has the file, and no other can open it",
    ("duckdb", "test_handing_over"): "the relay is refused on DuckDB",
    ("duckdb-file", "test_handing_over"): "the relay is refused on DuckDB",
    ("duckdb", "test_refused"): "DuckDB has no triggers by which a user could refuse a write",
    ("duckdb-file", "test_refused"): "DuckDB has no triggers by which a user could refuse a write",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, by a stated reason, what a store cannot do; and what another of its cases does."""
    is_whole = config.getoption("whole_file_mode")
    dropped = []
    for item in items:
        chosen = getattr(item, "callspec", None)
        kind = chosen.params.get("url", chosen.params.get("new_url")) if chosen else None
        module = item.path.stem
        if item.path.parent != HERE or kind is None:
            continue
        # A turn with the file takes 20 to 60 ms, for the same statements in the same transactions as in owner
        # mode: `make test` runs the tests that are marked, `make matrix` all of them.
        is_left = kind == "duckdb-file" and not is_whole and item.get_closest_marker("file_mode") is None
        is_postgres_path = kind.startswith("duckdb") and chosen.params.get("path") == "fused"
        if is_left or is_postgres_path:
            dropped.append(item)
        for (store, what), reason in EXEMPT.items():
            if kind == store and (what == module or what in item.name):
                item.add_marker(pytest.mark.skip(reason=reason))
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


@pytest.fixture(params=NOWHERE)
def new_url(request: Request) -> str:
    """Where there is no queue yet, not even its tables."""
    return NOWHERE[request.param](request)


@pytest.fixture(params=STORES)
def url(request: Request) -> str:
    """Where there is an empty queue, or none yet."""
    return STORES[request.param](request)


@pytest.fixture(scope="session")
def owned_duckdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnedDuckdb]:
    """A DuckDB file that this process has open, for many tests, one after the other."""
    owned = OwnedDuckdb(tmp_path_factory.mktemp("duckdb") / "queue.duckdb")
    yield owned
    owned.close()


@pytest.fixture
def store(request: Request, url: str) -> Iterator[Store]:
    is_owner = request.node.callspec.params["url"] == "duckdb"
    made = request.getfixturevalue("owned_duckdb").store() if is_owner else store_for(url)
    made.open()
    yield made
    made.close()
