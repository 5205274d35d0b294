"""How a poller on DuckDB learns that somebody has committed: in this process it is told, else it looks.

A hint only: polling alone is correct. `os.stat` is harmless; to open the file would drop DuckDB's lock on it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable

from rowlock.stores.base import Bell, LookingWake


def look_at(path: str) -> Hashable:
    """What changes with every commit: sizes and times of the file and of its write-ahead log."""
    seen: list[tuple[int, int] | None] = []
    for name in (path, f"{path}.wal"):
        try:
            found = os.stat(name)
        except OSError:
            seen.append(None)
        else:
            seen.append((found.st_size, found.st_mtime_ns))
    return tuple(seen)


class Hints:
    """Those in this process who wait for work in one file."""

    def __init__(self) -> None:
        self._waiting: weakref.WeakSet[FileWake] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.told = 0  # how often

    def add(self, wake: FileWake) -> None:
        """This one wants to be told."""
        with self._lock:
            self._waiting.add(wake)

    def tell(self) -> None:
        """There may be work."""
        with self._lock:
            self.told += 1
            waiting = list(self._waiting)
        for wake in waiting:
            wake.tell()


class FileWake(LookingWake):
    """Waits for a commit: told of it, or looking."""

    def __init__(self, change: Callable[[], Hashable], ring: Callable[[], None]) -> None:
        super().__init__(change)
        self._ring = ring
        self._is_waiting = False

    def tell(self) -> None:
        """Called in any thread after a commit that may have brought work."""
        if self._is_waiting:
            self._ring()

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait until the bell rings (True), somebody commits, or time is up."""
        self._is_waiting = True
        try:
            if self._change() != self._seen:  # before it could be told
                return False
            return super().wait(bell, seconds, lively)
        finally:
            self._is_waiting = False
