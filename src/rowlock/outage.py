"""While something cannot be used: how long to wait between tries, and who says so, once for all that notice.

Each part of a process finds out, waits and tries again for itself.
"""

from __future__ import annotations

import random
import threading
import time

LATE_SECONDS = 5.0  # in which a part may still notice, by a connection that broke, what is over for others


def backoff(tries: int, first: float, most: float) -> float:
    """Seconds until the next try, after so many that failed: it doubles, and spreads those who try."""
    return min(most, first * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - hides nothing


class Outage:
    """What was said since something could be used last."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._over: dict[str, float] = {}  # and until when it is not said again
        self._lock = threading.Lock()

    def is_new(self, what: str = "", now: float | None = None) -> bool:
        """Whether this is to be said: nobody has; asked with each failure, by whoever then says it."""
        moment = time.monotonic() if now is None else now
        with self._lock:
            if what in self._said or moment < self._over.get(what, moment):
                return False
            self._said.add(what)
            return True

    def ends(self, what: str | None = None, now: float | None = None) -> bool:
        """For a part that can use it again: whether it is the first. `what` ends only that."""
        moment = time.monotonic() if now is None else now
        with self._lock:
            over = self._said if what is None else self._said & {what}
            self._said = self._said - over
            recent = {one: until for one, until in self._over.items() if until > moment}
            self._over = recent | dict.fromkeys(over, moment + LATE_SECONDS)
            return bool(over)
