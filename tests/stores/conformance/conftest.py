"""The stores that have to behave alike; a new one is one more entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rowlock.stores.address import store_for
from rowlock.stores.base import Store

Request = pytest.FixtureRequest


def sqlite(request: Request) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{folder / 'queue.db'}"


def postgres(request: Request) -> str:
    return str(request.getfixturevalue("postgres_schema"))


def postgres_old(request: Request) -> str:
    return str(request.getfixturevalue("old_postgres_schema"))


def recycled_postgres(request: Request) -> str:
    return str(request.getfixturevalue("postgres_queue"))


def recycled_postgres_old(request: Request) -> str:
    return str(request.getfixturevalue("old_postgres_queue"))


NOWHERE: dict[str, Callable[[Request], str]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "postgres-old": postgres_old,
}
STORES: dict[str, Callable[[Request], str]] = {
    "sqlite": sqlite,
    "postgres": recycled_postgres,
    "postgres-old": recycled_postgres_old,
}


@pytest.fixture(params=NOWHERE)
def new_url(request: Request) -> str:
    """Where there is no queue yet, not even its tables."""
    return NOWHERE[request.param](request)


@pytest.fixture(params=STORES)
def url(request: Request) -> str:
    """Where there is an empty queue, or none yet."""
    return STORES[request.param](request)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = store_for(url)
    made.open()
    yield made
    made.close()
