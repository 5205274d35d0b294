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
        self._changed = threading.Condition()
        self.queue: deque[object] = deque()  # the first one has the lock

    def acquire(self, timeout: float) -> bool:
        """Wait for it; False if that takes longer than so many seconds."""
        me, got = object(), False
        with self._changed:
            self.queue.append(me)
            try:
                got = self._changed.wait_for(lambda: self.queue[0] is me, timeout)
            finally:
                if not got:  # also if an interrupt has ended the wait
                    self.queue.remove(me)
                    self._changed.notify_all()
        return got

    def release(self) -> None:
        """Give it to the next one."""
        with self._changed:
            self.queue.popleft()
            self._changed.notify_all()


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
