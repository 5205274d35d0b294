"""Gives back claims that the store calls ours and nobody here knows: the answer with them was lost.

Looks only after such a loss; until then it costs nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection

from rowlock.job import Ending, Outcome
from rowlock.stores.base import Store

log = logging.getLogger("rowlock.poller")

Key = tuple[int, int]  # job, claim
_SUSPICIOUS = 60.0  # seconds after a loss in which a commit that was still under way may come through


class Strays:
    """One worker's look for claims that it never received."""

    def __init__(self, store: Callable[[], Store], known: Callable[[], Collection[Key]]) -> None:
        self._store = store
        self._known = known
        self._until = 0.0
        self._seen: set[Key] = set()

    @property
    def suspected(self) -> bool:
        """True for a while after an answer was lost."""
        return time.monotonic() < self._until

    def suspect(self) -> None:
        """An answer was lost: there may be claims that we have not heard of."""
        self._until = math.inf
        self._seen = set()

    def run_once(self, worker: str, held: Collection[Key]) -> int:
        """Give back what is unknown here and was so at the last look, too; returns how many."""
        if self._until == math.inf:  # the store answers again: from now on it can be waited for
            self._until = time.monotonic() + _SUSPICIOUS
        unknown = set(held) - set(self._known())
        strays, self._seen = sorted(unknown & self._seen), unknown
        if strays:
            titles = self._store().titles(strays)
            self._store().exchange(
                worker, [Outcome(id=job, claim=claim, ending=Ending.RELEASED) for job, claim in strays]
            )
            log.warning(
                "%d claims came with an answer that was lost: given back, free of charge: %s",
                len(strays),
                "; ".join(titles),
            )
        return len(strays)
