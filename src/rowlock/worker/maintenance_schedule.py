"""When a worker does the store's maintenance: as soon as something is due, but not between any two jobs.

What is done then is in `rowlock.maintenance`.
"""

from __future__ import annotations

import math
import time

from rowlock.maintenance import Maintenance
from rowlock.worker.heartbeat import Heartbeat
from rowlock.workload import App, Workload

_BETWEEN_TURNS_SECONDS = 0.5  # of a busy worker, at most


class MaintenanceSchedule:
    """One worker's turns; none if its workload is looked after by a relay."""

    def __init__(self, app: App, workload: Workload, heartbeat: Heartbeat) -> None:
        self._store = workload.store
        self._heartbeat = heartbeat
        self._maintenance = Maintenance(
            workload.store,
            lease=heartbeat.liveness.lease,
            keep=app.retention,
            failed_after=app.settings.failed_after,
            may_rescue=heartbeat.liveness.may_rescue,
        )
        self._is_ours = workload.needs_maintenance
        self._next_at = 0.0
        self._needed_at = 0.0 if self._is_ours else math.inf  # if nothing falls due before
        self._hold_until = 0.0  # it may not rescue before, whatever is due

    def take(self) -> bool:
        """Do the maintenance if it is time; True if it brought back what a dead worker had."""
        self._heartbeat.ensure()
        moment = time.monotonic()
        if not self._is_ours or moment < self._next_at:
            return False
        done = self._maintenance.run_once(self._heartbeat.id)
        self._next_at = moment + min(done.next_in, _BETWEEN_TURNS_SECONDS)
        self._needed_at = moment + done.next_in
        self._hold_until = self._needed_at if done.rescue.waited else 0.0
        return bool(done.rescue.workers)

    def take_if_needed(self) -> bool:
        """Do it now if something has fallen due since the last turn; says whether it was done."""
        needed = self._store.next_needed(self._heartbeat.id)
        if needed is None or needed > 0 or time.monotonic() < self._hold_until:
            return False
        self._next_at = 0.0
        self.take()
        return True

    def needed_within(self, seconds: float) -> float:
        """In how many seconds it is needed, if that is less than these; else these."""
        needed = self._store.next_needed(self._heartbeat.id)
        moment = time.monotonic()
        if needed is not None and needed < seconds:
            # A worker that may not rescue yet waits for its own next beat.
            seconds = max(needed, min(seconds, self._hold_until - moment))
            self._next_at = min(self._next_at, moment + needed)
        return max(0.0, min(seconds, self._needed_at - moment))
