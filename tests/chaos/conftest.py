"""The stores that a storm is let loose on, and the storm itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.storm import Storm

StartStorm = Callable[..., Storm]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("postgres_schema"))


@pytest.fixture
def start_storm(url: str, tmp_path: Path) -> Any:
    """Starts a storm on the store of this test: `start_storm(lease=2.0, concurrency=2)`."""
    if sys.platform == "win32":
        pytest.skip("uses POSIX signals and fork")
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(Storm(url, tmp_path, **how))
