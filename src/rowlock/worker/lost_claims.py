"""Gives back claims that the store calls ours and nobody here knows: the answer with them was lost.

Looks only after such a loss; until then it costs nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection

from rowlock.job import Ending, Key, Outcome
from rowlock.stores.base import Store

log = logging.getLogger("rowlock.poller")

_SUSPICIOUS = 60.0  # seconds after a loss in which a commit that was still under way may come through


class LostClaims:
    """One worker's look for claims that it never received."""

    def __init__(
        self,
        store: Callable[[], Store],
        known: Callable[[], Collection[Key]],
        asked: Callable[[], int] = lambda: 0,
        answered: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store = store
        self._known = known
        self._asked = asked
        self._answered = answered
        self._until = 0.0
        self._seen: dict[Key, int] = {}  # and how many exchanges had begun by then
        self._known_before: Collection[Key] = ()
        self._answered_before = 0
        self._refused: set[Key] = set()  # the database refuses to give these back

    @property
    def suspected(self) -> bool:
        """True for a while after an answer was lost."""
        return time.monotonic() < self._until

    def suspect(self) -> None:
        """An answer was lost: there may be claims that we have not heard of."""
        self._until = math.inf
        self._seen = {}

    def before_look(self) -> None:
        """Note how things stand here; call it before the store is asked what it calls ours."""
        self._answered_before = self._answered()
        self._known_before = self._known()

    def run_once(self, worker: str, held: Collection[Key]) -> int:
        """Give back what was unknown here at an earlier look and still is; returns how many.

        A busy worker makes one exchange after the other, so that claims may be on their way at every look.
        Those seen earlier came with an exchange that had begun by then: when that is over, they are known.
        """
        if self._until == math.inf:  # the store answers again: from now on it can be waited for
            self._until = time.monotonic() + _SUSPICIOUS
        unknown = set(held).difference(self._known_before, self._known(), self._refused)
        seen, asked = self._seen, self._asked()
        lost_claims = sorted(key for key in unknown if key in seen and seen[key] <= self._answered_before)
        self._seen = {key: seen.get(key, asked) for key in unknown}
        if not lost_claims:
            return 0
        titles = dict(zip(lost_claims, self._store().titles(lost_claims), strict=True))
        outcomes = [Outcome(id=job, claim=claim, ending=Ending.RELEASED) for job, claim in lost_claims]
        got = self._store().exchange(worker, outcomes)
        self._refused.update(got.unwritten)
        for late in (*got.lost, *got.refused):  # it ended while we looked
            del titles[late.id, late.claim]
        if titles:
            log.warning(
                "%d claims came with an answer that was lost: given back, free of charge: %s",
                len(titles),
                "; ".join(titles.values()),
            )
        return len(titles)
