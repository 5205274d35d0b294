"""The stores that have to behave alike; a new one is one more entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rowlock.stores.base import Store
from rowlock.stores.sqlite import SqliteStore


def sqlite(folder: Path) -> Store:
    return SqliteStore(str(folder / "queue.db"))


STORES: dict[str, Callable[[Path], Store]] = {"sqlite": sqlite}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = STORES[request.param](tmp_path)
    made.open()
    yield made
    made.close()
