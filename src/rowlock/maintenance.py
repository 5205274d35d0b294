"""Promote due jobs, rescue the claims of silent workers, expire, prune: one `run_once()`.

Every worker does it, without a leader; each step is a bounded transaction that is safe to run twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from rowlock.liveness import Lease
from rowlock.stores.base import Rescue, Retention
from rowlock.stores.sql.store import Store

log = logging.getLogger("rowlock.maintenance")

_BATCH = 1_000
_HEAD = 20  # jobs at the head of each priority level that are looked at
_OVERDUE_EVERY = 1.0
_PRUNE_EVERY = 60.0
_PRUNE_PAUSE = 0.1
_RECORDS_KEPT = 30 * 86_400.0
_LONGEST = 60.0  # seconds until the next look when nothing is known to be due


class MaintenanceResult(msgspec.Struct, frozen=True):
    """What one round did, and in how many seconds the next is needed."""

    promoted: int = 0
    expired: int = 0
    pruned: int = 0
    overdue: int = 0
    rescue: Rescue = Rescue()
    next_in: float = _LONGEST


class Maintenance:
    """The maintenance of one store, done by one worker."""

    def __init__(
        self,
        store: Store,
        *,
        lease: Lease,
        keep: Retention,
        failed_after: float = 0.0,
        may_rescue: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._may_rescue = may_rescue
        self._lease = lease
        self._keep = keep
        self._failed_after = failed_after
        self._prune_at = 0.0
        self._prune_after = 0

    def run_once(self, worker: str, now: float | None = None) -> MaintenanceResult:
        """Do what is due now; `now` is Unix seconds, None the store's clock."""
        promoted = self._store.promote(_BATCH, now)
        expired = self._store.expire(_BATCH, now)
        overdue = self._fail_overdue(now)
        rescue = self._store.rescue(
            worker, careful_age=self._lease.rescue_below, now=now, may_rescue=self._may_rescue
        )
        if rescue.workers:
            happened = rescue.requeued or rescue.failed or rescue.cancelled
            log.log(
                logging.WARNING if happened else logging.DEBUG,
                "rescued the claims of silent workers %s: %d back in their queues, %d failed, %d cancelled",
                ", ".join(rescue.workers),
                rescue.requeued,
                rescue.failed,
                rescue.cancelled,
            )
        if rescue.requeued:  # which may have waited with a dead worker for too long
            overdue += self._fail_overdue(now)
        pruned = self._prune(now)
        self._store.checkpoint()
        if self._prune_after:  # in the middle of a pass
            next_in = _PRUNE_PAUSE
        elif rescue.waited:  # our own beat is old: all may have been frozen, so beat first and look again
            next_in = self._lease.beat_every
        elif overdue or promoted == _BATCH or expired == _BATCH:
            next_in = 0.0
        else:
            needed = self._store.next_needed(worker, now)
            longest = _OVERDUE_EVERY if self._failed_after else _LONGEST
            next_in = longest if needed is None else min(needed, longest)
        return MaintenanceResult(promoted, expired, pruned, overdue, rescue, next_in)

    def _fail_overdue(self, now: float | None) -> int:
        return self._store.fail_overdue(self._failed_after, _HEAD, now) if self._failed_after else 0

    def _prune(self, now: float | None) -> int:
        moment = time.time() if now is None else now
        if self._prune_at - _PRUNE_EVERY <= moment < self._prune_at:
            return 0
        pruned, self._prune_after = self._store.prune(self._keep, self._prune_after, _BATCH // 2, now)
        if not self._prune_after:  # this pass came to the rows that are too young
            self._store.prune_records(_RECORDS_KEPT, now)
            self._prune_at = moment + _PRUNE_EVERY
        return pruned
