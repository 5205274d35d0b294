"""A queue to copy, and where to: every pair of stores; a new store is one more entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from rowlock import Rowlock
from tests.copying.queues import Pair
from tests.servers.postgres import fresh_schema

Request = pytest.FixtureRequest


def sqlite(request: Request, stack: ExitStack, name: str) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{folder / name}.db"


def postgres(request: Request, stack: ExitStack, name: str) -> str:
    return stack.enter_context(fresh_schema(request.getfixturevalue("postgres")))


def duckdb(request: Request, stack: ExitStack, name: str) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"duckdb:///{folder / name}.duckdb"


STORES: dict[str, Callable[[Request, ExitStack, str], str]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "duckdb": duckdb,
}
ALL = [f"{one}-to-{other}" for one, other in product(STORES, STORES)]


def make(request: Request) -> Iterator[Pair]:
    with ExitStack() as stack:
        source, target = request.param.split("-to-")
        made = Pair(STORES[source](request, stack, "from"), STORES[target](request, stack, "to"))
        yield stack.enter_context(made)


@pytest.fixture(params=ALL)
def every_pair(request: Request) -> Iterator[Pair]:
    """Each store as the source and as the target."""
    yield from make(request)


# Each store once as the source and once as the target.
SOME = ("sqlite-to-postgres", "postgres-to-duckdb", "duckdb-to-sqlite")


@pytest.fixture(
    params=[name if name in SOME else pytest.param(name, marks=pytest.mark.chaos) for name in ALL]
)
def some_pair(request: Request) -> Iterator[Pair]:
    """Where it matters which store is the source and which the target, not which meets which."""
    yield from make(request)


@pytest.fixture(params=[name for name in ALL if "duckdb" not in name])
def pair(request: Request) -> Iterator[Pair]:
    """The same, where DuckDB does nothing that is its own."""
    yield from make(request)


@pytest.fixture
def files(request: Request) -> Iterator[Pair]:
    """One pair, where stores make no difference."""
    with ExitStack() as stack, Pair(sqlite(request, stack, "from"), sqlite(request, stack, "to")) as made:
        yield made


@pytest.fixture
def another(request: Request) -> Iterator[Rowlock]:
    """One more queue."""
    with ExitStack() as stack:
        app = Rowlock(sqlite(request, stack, "another"))
        yield app
        app.close()
