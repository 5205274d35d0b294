"""Isolation: a job whose last worker died is run without company, so that it can take no other job along.

Says whether such a job may be claimed here, and whether others have to wait meanwhile. What a death costs,
and for how long a job is isolated, is decided in `endings.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from rowlock.job import Claim
from rowlock.pools.base import Run
from rowlock.stores.sql.store import Store
from rowlock.worker.prefetch import LONGEST_WAIT_SECONDS
from rowlock.worker.profile import Profile

_IDLE_WORKER_SECONDS = 10.0  # that an isolated job waits for an idle worker before it takes a busy one
_LOOK_EVERY_SECONDS = 0.25


class Isolation:
    """What one worker knows about isolated jobs that wait."""

    def __init__(self, store: Store, profile: Profile) -> None:
        self._store = store
        self._profile = profile
        self._looked_at = -math.inf
        self._waiting_since: float | None = None  # since when an isolated job is known to wait
        self._keeps_slots_free = False  # one should get this process for itself in a moment

    def look(self, unknown: Sequence[str]) -> None:
        """See whether an isolated job waits whose task is not among the unknown ones."""
        self._looked_at = moment = time.monotonic()
        self._keeps_slots_free = self._store.isolated_waiting(self._profile.queues, unknown)
        if not self._keeps_slots_free:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = moment

    def asked_for(self, claims: Sequence[Claim]) -> None:
        """An isolated job could have been claimed: if none came, no slots are kept free for one."""
        self._keeps_slots_free = any(claim.isolate for claim in claims)

    def may_start(self, runs: Sequence[Run], unknown: Callable[[], Sequence[str]]) -> bool:
        """Whether one may be claimed: nothing is at stake here, or it waited too long for an idle worker."""
        if _nothing_at_stake(runs):
            self._waiting_since = None
            return True
        if time.monotonic() - self._looked_at >= _LOOK_EVERY_SECONDS:
            self.look(unknown())
        since = self._waiting_since
        return since is not None and time.monotonic() - since > _IDLE_WORKER_SECONDS

    def blocks(self, runs: Sequence[Run], is_quick: Callable[[Run], bool]) -> bool:
        """Whether nothing else may be claimed: an isolated job runs here, or should begin in a moment."""
        moment = time.monotonic()
        isolated = [run for run in runs if run.claim.isolate and not run.context.lost]
        if any(moment < run.started + run.claim.isolate for run in isolated):
            return True
        if not self._keeps_slots_free or _nothing_at_stake(runs):
            return False
        # Quick runs are waited for: then the isolated job begins here, and need not find an idle worker.
        since = moment - LONGEST_WAIT_SECONDS
        return all(run.started > since and is_quick(run) for run in runs if not run.context.lost)


def _nothing_at_stake(runs: Sequence[Run]) -> bool:
    """Lost runs belong to others already: a death of this process would not charge them."""
    return all(run.context.lost for run in runs)
