"""When a worker or a poller looks for jobs: wake-ups, waits that grow while nothing comes, counts of polls.

Claims nothing itself; what falls due is told by `maintenance_schedule.py`.
"""

from __future__ import annotations

import random

from rowlock.errors import StoreError
from rowlock.stores.base import Bell, Wake, rung
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.maintenance_schedule import MaintenanceSchedule
from rowlock.worker.profile import Profile
from rowlock.workload import Workload

_LIVELY_POLLS = 3  # empty polls after which a worker may look for wake-ups less often
_LONGEST_WAIT_SECONDS = 60.0


class PollTiming:
    """One worker's polls: how many there were, and when the next is due."""

    def __init__(
        self,
        workload: Workload,
        profile: Profile,
        heartbeat: Heartbeat,
        maintenance: MaintenanceSchedule,
        bell: Bell,
    ) -> None:
        self._store = workload.store
        self._profile = profile
        self._heartbeat = heartbeat
        self.maintenance = maintenance
        self._bell = bell
        self.wake: Wake | None = None
        self.total = self.successful = self.empty = self.busy = 0
        self.consecutive_empty = 0
        self.running = False

    # -- counting --------------------------------------------------------------------------------

    def before_claim(self) -> None:
        """A claim is about to be made: what is committed after this ends the next wait."""
        if self.wake is None:
            heartbeat = self._heartbeat
            self.wake = self._store.wake(lambda: heartbeat.id, lambda: self._bell.put(None))
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
            self._was_empty(1)

    def found_busy(self) -> None:
        """The database was locked: that counts as an empty poll."""
        self.total += 1
        self.busy += 1
        self._was_empty(1)

    def repeats(self) -> None:
        """The last poll, an empty one, is made anew: both count as one."""
        self.total -= 1
        self._was_empty(-1)

    def _was_empty(self, change: int) -> None:
        self.empty += change
        self.consecutive_empty += change

    # -- waiting ---------------------------------------------------------------------------------

    def idle_wait(self) -> float:
        """How long to wait after an empty poll: the interval, growing while nothing comes, with jitter.

        It grows only because a wake-up can end it, and never past the next moment something falls due. So it
        does not grow where there may be work that nobody announces.
        """
        wait = self._profile.poll_interval
        beyond = self.consecutive_empty - self._profile.max_idle_polls
        announced = self.wake is not None and self.wake.alive and self._store.announces_all_work
        if beyond > 0 and announced:
            wait = min(wait * 2.0 ** min(beyond, 16), max(_LONGEST_WAIT_SECONDS, wait))
            wait *= random.uniform(0.75, 1.0)  # noqa: S311 - spreads the workers, hides nothing
        try:
            return self.maintenance.needed_within(wait)
        except StoreError:
            return self._profile.poll_interval

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
