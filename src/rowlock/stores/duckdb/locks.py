"""One lock for each DuckDB file in this process, held while rowlock writes to it.

Rowlock's own transactions then never clash with each other, only with those of the user.
"""

from __future__ import annotations

import os
import threading
from collections import deque


class FairLock:
    """A lock that goes to whoever has waited longest.

    With `threading.Lock`, a thread that wants it again at once gets it before another has woken up: on a busy
    machine the others waited until their time was up.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self.waiting: deque[threading.Lock] = deque()  # each is released when its owner's turn has come

    def acquire(self, timeout: float) -> bool:
        """Wait for it; False if that takes longer than so many seconds."""
        mine = threading.Lock()
        with self._guard:
            if not self._held:
                self._held = True
                return True
            mine.acquire()
            self.waiting.append(mine)
        if mine.acquire(timeout=timeout):
            return True
        with self._guard:
            if mine in self.waiting:
                self.waiting.remove(mine)
                return False
            return True  # it was given to us when our time was just up

    def release(self) -> None:
        """Give it to the next one."""
        with self._guard:
            if self.waiting:
                self.waiting.popleft().release()
            else:
                self._held = False


_guard = threading.Lock()
_locks: dict[str, FairLock] = {}


def lock_of(path: str) -> FairLock:
    """The lock of this file."""
    with _guard:
        return _locks.setdefault(os.path.realpath(path), FairLock())


def _forget() -> None:
    """A forked child has none of its parent's transactions."""
    globals()["_guard"] = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
