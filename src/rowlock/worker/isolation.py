"""Keeps a job whose last worker died under it away from others, until it has shown that it does not kill.

Decides only; the store knows such jobs by their `alone` seconds, the worker does the claiming.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from rowlock.job import Claim
from rowlock.pools.base import Run
from rowlock.stores.base import Store

_IDLE_WORKER_TIMEOUT_SECONDS = (
    10.0  # seconds that such a job waits for an idle worker before it takes a busy one
)
_LOOK_EVERY_SECONDS = 0.25


class Isolation:
    """One worker's view: may it claim now, and may it claim such a job?"""

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        soon_over: Callable[[], bool],
        unknown: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._store = store
        self._queues = queues
        self._unknown = unknown
        self._soon_over = soon_over
        self._looked_at = -math.inf
        self._waiting_since: float | None = None
        self._makes_way = False

    def blocks(self, runs: Sequence[Run]) -> bool:
        """True while one of the runs needs this process for itself, or should get it in a moment."""
        moment = time.monotonic()
        if any(
            run.claim.isolate and moment < run.started + run.claim.isolate and not run.context.lost
            for run in runs
        ):
            return True
        # What is over soon is waited for: then such a job has its turn, and need not find an idle worker.
        return self._makes_way and not _is_free(runs) and self._soon_over()

    def may_start(self, runs: Sequence[Run]) -> bool:
        """True if such a job may be claimed: nothing else is at stake here, or it has waited too long."""
        if _is_free(runs):
            self._waiting_since = None
            return True
        if time.monotonic() - self._looked_at >= _LOOK_EVERY_SECONDS:
            self.look()
        return (
            self._waiting_since is not None
            and time.monotonic() - self._waiting_since > _IDLE_WORKER_TIMEOUT_SECONDS
        )

    def look(self) -> None:
        """See whether such a job waits: now and then, and when a dead worker's jobs have just come back."""
        self._looked_at = moment = time.monotonic()
        self._makes_way = self._store.isolated_waiting(self._queues, self._unknown())
        if not self._makes_way:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = moment

    def took(self, claims: Sequence[Claim]) -> None:
        """These were claimed when such a job might have been: if none is, others come before it for now."""
        self._makes_way = any(claim.isolate for claim in claims)


def _is_free(runs: Sequence[Run]) -> bool:
    """Lost ones belong to others already: a death of this process would not charge them."""
    return all(run.context.lost for run in runs)
