"""An app, and what its jobs travel through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rowlock import Rowlock
from tests.relays.fleet import Fleet
from tests.servers.redis import RedisServer


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Rowlock]:
    made = Rowlock(f"sqlite:///{tmp_path / 'jobs.db'}", poll_interval=0.05, lease=2.0)
    yield made
    made.close()


@pytest.fixture
def fleet(app: Rowlock, redis: RedisServer) -> Iterator[Fleet]:
    made = Fleet(app, redis)
    yield made
    made.close()
