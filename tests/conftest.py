"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rowlock import Rowlock


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
