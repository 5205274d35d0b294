"""Keeps a job whose last worker died under it away from others, until it has shown that it does not kill.

Decides only; the store knows such jobs by their `alone` seconds, the worker does the claiming.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from rowlock.running.pools.base import Run
from rowlock.stores.base import Store

_PATIENCE = 10.0  # seconds that such a job waits for an idle worker before it takes a busy one
_LOOK_EVERY = 1.0


class Probation:
    """One worker's view: may it claim now, and may it claim such a job?"""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked_at = 0.0
        self._waiting_since: float | None = None

    def blocks(self, runs: Iterable[Run]) -> bool:
        """True while one of the runs needs this process for itself."""
        moment = time.monotonic()
        return any(
            run.claim.alone and moment < run.started + run.claim.alone and not run.context.lost
            for run in list(runs)
        )

    def may_start(self, runs: Iterable[Run]) -> bool:
        """True if such a job may be claimed: nothing else is at stake here, or it has waited too long."""
        # Lost ones belong to others already: a death of this process would not charge them.
        if all(run.context.lost for run in list(runs)):
            self._waiting_since = None
            return True
        moment = time.monotonic()
        if moment - self._looked_at >= _LOOK_EVERY:
            self._looked_at = moment
            if not self._store.alone_waiting():
                self._waiting_since = None
            elif self._waiting_since is None:
                self._waiting_since = moment
        return self._waiting_since is not None and moment - self._waiting_since > _PATIENCE
