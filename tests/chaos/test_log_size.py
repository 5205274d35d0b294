"""Readers that never all leave SQLite's log do not make it grow without end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEGABYTE = 1024 * 1024
LIBRARIES = ["sqlite3"] if sys.platform == "win32" else ["sqlite3", "apsw"]


def run(path: Path, library: str, *, scale: int, slow: float, writes: int) -> dict[str, float]:
    words = [str(word) for word in (path, library, scale, slow, writes)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.log_run", *words], check=True, stdout=subprocess.PIPE, timeout=600
    )
    seen: dict[str, float] = json.loads(done.stdout)
    print(library, seen)  # noqa: T201
    return seen


def test_the_log_stays_small_while_readers_poll(tmp_path: Path) -> None:
    """With an eighth of the limits; if readers are not waited for, it becomes 39 MB large."""
    seen = run(tmp_path / "queue.db", "sqlite3", scale=8, slow=0.1, writes=300)
    assert seen["database"] > 12 * MEGABYTE
    assert seen["log"] < 24 * MEGABYTE


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_log_stays_below_64_megabytes_while_readers_poll(tmp_path: Path, library: str) -> None:
    seen = run(tmp_path / "queue.db", library, scale=1, slow=0.5, writes=4000)
    assert seen["database"] > 192 * MEGABYTE
    assert seen["log"] < 64 * MEGABYTE
