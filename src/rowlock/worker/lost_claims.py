"""Claims whose answer was lost on the way: the store calls them ours, and nobody here runs them.

Finds them; the exchanger gives them back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from rowlock.job import ClaimKey
from rowlock.stores.sql.store import Store
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.unwritten_outcomes import Unwritten

_LOOK_FOR_SECONDS = 60.0  # after a lost answer, in which the commit may still come through
LOOK_EVERY_SECONDS = 0.5


class LostClaims:
    """Looks for them for a while after an answer was lost."""

    def __init__(self, store: Store, heartbeat: Heartbeat, unwritten: Unwritten) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._unwritten = unwritten
        self._kept: set[ClaimKey] = set()  # held on purpose: the database refuses their outcomes
        self._expected_until = self._look_at = 0.0

    @property
    def expected(self) -> bool:
        """Whether an answer was lost a short while ago."""
        return time.monotonic() < self._expected_until

    def expect(self, kept: Collection[ClaimKey] = ()) -> None:
        """An answer was lost, so claims may be ours that we never saw; `kept` ones are held on purpose."""
        self._kept.update(kept)
        self._expected_until, self._look_at = math.inf, 0.0

    def look(self, in_flight: Collection[ClaimKey]) -> dict[ClaimKey, str]:
        """What the store calls ours and nobody here knows, each with its title for log lines.

        No exchange may be under way meanwhile, or claims that are just coming would count as lost.
        """
        moment = time.monotonic()
        if moment >= self._expected_until or moment < self._look_at:
            return {}
        before = self._known(in_flight)  # a run that its own transaction ends meanwhile is not lost
        held = self._store.held(self._heartbeat.id)
        if self._expected_until == math.inf:  # the store answers again
            self._expected_until = moment + _LOOK_FOR_SECONDS
        self._look_at = moment + LOOK_EVERY_SECONDS
        lost = sorted({(job, claim) for job, claim, _ in held} - before - self._known(in_flight))
        return dict(zip(lost, self._store.titles(lost), strict=True)) if lost else {}

    def _known(self, in_flight: Collection[ClaimKey]) -> set[ClaimKey]:
        """The claims that run here, or ended and are not written yet, or cannot be written; in this order."""
        return {*list(in_flight), *self._unwritten.keys(), *self._kept}
