"""What a worker does while its store cannot be used: says so once, and tries less and less often.

Whether it goes on at all is the worker's to decide; here it is only told what it waits for.
"""

from __future__ import annotations

import logging
import random

from rowlock.errors import StoreBusy, StoreError

log = logging.getLogger("rowlock.worker")

_FIRST, _MOST = 0.1, 4.0  # seconds: it goes on within five when the cause is gone


class StoreBackoff:
    """How long it has lasted, in tries, and what was said about it."""

    def __init__(self) -> None:
        self.failing = 0
        self._said: set[str] = set()
        self._held: object = None
        self._held_since = 0.0

    def held_for(self, error: StoreError, now: float) -> float:
        """For how many seconds the same transaction of this process has been open on the locked store."""
        held = error.own_transaction if isinstance(error, StoreBusy) else None
        if held is None or held != self._held:
            self._held, self._held_since = held, now
        return now - self._held_since

    def met(self, error: StoreError) -> float:
        """The store could not be used; returns how many seconds to wait."""
        if str(error) not in self._said:  # once for each kind of trouble
            log.error("the store cannot be used, the worker keeps what it has and goes on trying: %s", error)
        self._said.add(str(error))
        self.failing += 1
        wait = min(_MOST, _FIRST * 2.0 ** min(self.failing, 10))
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the workers, hides nothing

    def over(self) -> None:
        """The store answered."""
        if self.failing:
            log.info("the store can be used again")
            self._said.clear()
        self.failing, self._held = 0, None
