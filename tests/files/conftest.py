"""The stores on which files have to be treated alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.files.station import Station
from tests.stores.conformance.conftest import recycled_postgres, sqlite

STORES: dict[str, Callable[[pytest.FixtureRequest], str]] = {"sqlite": sqlite, "postgres": recycled_postgres}


@pytest.fixture(params=STORES)
def station(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Station]:
    made = Station(STORES[request.param](request), tmp_path / "recorder")
    yield made
    made.close()


@pytest.fixture
def sqlite_station(tmp_path: Path) -> Iterator[Station]:
    """For what has nothing to do with the database."""
    made = Station(f"sqlite:///{tmp_path / 'queue.db'}", tmp_path / "recorder")
    yield made
    made.close()
