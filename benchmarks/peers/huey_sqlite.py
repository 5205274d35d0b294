"""Huey on SQLite, with `fsync=True`, which its documentation offers for durability.

Drained by `dequeue` and `execute` in this thread, without its consumer's threads: the fastest way it has.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from benchmarks.apps import add


class HueyPeer:
    """A `SqliteHuey` with results."""

    durability = "WAL, synchronous=FULL by fsync=True; arguments are pickled"
    difference = "at most once: a job is deleted before it runs; then its result is stored"

    def __init__(self, path: Path) -> None:
        self._huey: Any = importlib.import_module("huey").SqliteHuey(
            filename=str(path), fsync=True, journal_mode="wal", strict_fifo=True
        )
        self._add: Any = self._huey.task()(add)

    def enqueue(self, a: int, b: int) -> None:
        self._add(a, b=b)

    def drain(self) -> int:
        done = 0
        while (task := self._huey.dequeue()) is not None:
            self._huey.execute(task)
            done += 1
        return done

    def close(self) -> None:
        self._huey.storage.close()


def open_peer(path: Path) -> HueyPeer:
    """The adapter, on a new file."""
    return HueyPeer(path)
