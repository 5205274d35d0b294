"""When to poll: wake-ups, waits that grow while nothing comes, maintenance, and the counts of polls.

Claims nothing itself; the worker and the poller each have one.
"""

from __future__ import annotations

import math
import random
import time

from rowlock.errors import StoreError
from rowlock.liveness import Liveness
from rowlock.maintenance import Maintenance
from rowlock.stores.base import Bell, Wake, rung
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.profile import Profile
from rowlock.workload import App, Workload

_LIVELY_POLLS = 3  # empty polls after which a worker may look for wake-ups less often
_LONGEST_WAIT_SECONDS = 60.0
_MAINTENANCE_SECONDS = 0.5  # between two rounds of maintenance of a busy worker, at most


class Polls:
    """One worker's polls: how many there were, and when the next is due."""

    def __init__(
        self, app: App, workload: Workload, profile: Profile, heartbeat: Heartbeat, bell: Bell
    ) -> None:
        self._app = app
        self._workload = workload
        self._profile = profile
        self._heartbeat = heartbeat
        self._bell = bell
        self.wake: Wake | None = None
        self._maintenance: Maintenance | None = None
        self._maintenance_at = self._hold_until = 0.0
        self._maintenance_needed_at = 0.0 if workload.needs_maintenance else math.inf
        self.total = self.successful = self.empty = self.busy = 0
        self.consecutive_empty = 0
        self.running = False

    # -- counting --------------------------------------------------------------------------------

    def before_claim(self) -> None:
        """A claim is about to be made: what is committed after this ends the next wait."""
        if self.wake is None:
            heartbeat = self._heartbeat
            self.wake = self._workload.store.wake(lambda: heartbeat.id, lambda: self._bell.put(None))
        self.wake.before_claim(idle=self.consecutive_empty > 0)

    def claimed(self, count: int, leaves_some: bool) -> None:
        """A claim was made, and brought so many jobs."""
        self.total += 1
        if count:
            self.successful += 1
            self.consecutive_empty = 0
            if self.wake is not None:
                self.wake.claimed(leaves_some=leaves_some)
        else:
            self.empty += 1
            self.consecutive_empty += 1

    def found_busy(self) -> None:
        """The database was locked: that counts as an empty poll."""
        self.total += 1
        self.empty += 1
        self.busy += 1
        self.consecutive_empty += 1

    # -- maintenance -----------------------------------------------------------------------------

    def maintain(self) -> bool:
        """Do the store's maintenance if it is time; True if it brought back what a dead worker had."""
        self._heartbeat.ensure()
        if not self._workload.needs_maintenance:
            return False
        liveness: Liveness = self._heartbeat.liveness
        if self._maintenance is None:
            self._maintenance = Maintenance(
                self._workload.store,
                lease=liveness.lease,
                keep=self._app.retention,
                failed_after=self._app.settings.failed_after,
                may_rescue=liveness.may_rescue,
            )
        moment = time.monotonic()
        if moment < self._maintenance_at:
            return False
        done = self._maintenance.run_once(self._heartbeat.id)
        self._maintenance_at = moment + min(done.next_in, _MAINTENANCE_SECONDS)
        self._maintenance_needed_at = moment + done.next_in
        self._hold_until = self._maintenance_needed_at if done.rescue.waited else 0.0
        return bool(done.rescue.workers)

    def poll_again(self) -> bool:
        """After an empty poll: whether something has fallen due meanwhile; then both count as one poll."""
        needed = self._workload.store.next_needed(self._heartbeat.id)
        if needed is None or needed > 0 or time.monotonic() < self._hold_until:
            return False
        self._maintenance_at = 0.0
        self.maintain()
        self.total -= 1
        self.empty -= 1
        self.consecutive_empty -= 1
        return True

    # -- waiting ---------------------------------------------------------------------------------

    def idle_wait(self) -> float:
        """How long to wait after an empty poll: the interval, growing while nothing comes, with jitter.

        It grows only because a wake-up can end it, and never past the next moment something falls due. So it
        does not grow where there may be work that nobody announces.
        """
        wait = self._profile.poll_interval
        beyond = self.consecutive_empty - self._profile.max_idle_polls
        announced = self.wake is not None and self.wake.alive and self._workload.store.announces_all_work
        if beyond > 0 and announced:
            wait = min(wait * 2.0 ** min(beyond, 16), max(_LONGEST_WAIT_SECONDS, wait))
            wait *= random.uniform(0.75, 1.0)  # noqa: S311 - spreads the workers, hides nothing
        try:
            needed = self._workload.store.next_needed(self._heartbeat.id)
        except StoreError:
            return self._profile.poll_interval
        moment = time.monotonic()
        if needed is not None and needed < wait:
            # A worker that may not rescue yet waits for its own next beat.
            wait = max(needed, min(wait, self._hold_until - moment))
            self._maintenance_at = min(self._maintenance_at, moment + needed)
        return max(0.0, min(wait, self._maintenance_needed_at - moment))

    def wait(self, seconds: float, *, for_jobs: bool = True) -> None:
        """Wait until time is up, the bell rings, or (for jobs) somebody else commits."""
        if seconds <= 0:
            return
        if for_jobs and self.wake is not None:
            is_rung = self.wake.wait(self._bell, seconds, lively=self.consecutive_empty < _LIVELY_POLLS)
        else:
            is_rung = rung(self._bell, seconds)
        while is_rung and not self._bell.empty():
            self._bell.get()

    def close(self) -> None:
        """Let go of what receives wake-ups; the next claim asks for it anew."""
        if self.wake is not None:
            self.wake.close()
            self.wake = None
