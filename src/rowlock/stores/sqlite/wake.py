"""How a poller on SQLite learns that somebody has committed: it looks at `PRAGMA data_version`, cheaply.

A hint only: polling alone is correct.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from rowlock.errors import StoreError
from rowlock.stores.base import Bell, Wake, rung

# Seconds between looks. A look costs 200 us when the core is cold: 50 a second are 1.2 % of it, 20 are 0.6 %.
# So they become rarer after the first few empty polls.
_LOOK_EVERY, _LOOK_EVERY_IDLE = 0.02, 0.05


class DataVersionWake(Wake):
    """Looks at a number that changes with every commit."""

    def __init__(self, change: Callable[[], int]) -> None:
        self._change = change
        self._seen: int | None = None

    def before_claim(self, idle: bool) -> None:
        """Note where we are: what is committed after this ends the wait.

        While claims succeed nobody waits, and an older value costs no more than one poll too many.
        """
        if self._seen is None or idle:
            self._seen = self._change()

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait until the bell rings (True), somebody commits, or time is up."""
        deadline = time.monotonic() + seconds
        look = _LOOK_EVERY if lively else _LOOK_EVERY_IDLE
        while (left := deadline - time.monotonic()) > 0:
            if rung(bell, min(left, look)):
                return True
            with suppress(StoreError):
                if self._change() != self._seen:
                    return False
        return False
