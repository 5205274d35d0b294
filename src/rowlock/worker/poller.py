"""Claims jobs one at a time, for code that runs them itself and says how each ended.

Makes its exchanges and waits like a worker, with one slot; knows no pools.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from rowlock import codec
from rowlock.claim_outcomes import after_error, ended
from rowlock.endings import Event
from rowlock.error_text import storable
from rowlock.errors import TRANSIENT, InvalidPayload, StoreBusy, StoreError, WorkerGone
from rowlock.job import Claim, ClaimKey, ClaimRequest, Ending, Outcome
from rowlock.liveness import Lease, Liveness
from rowlock.options import check_seconds
from rowlock.retry import DEFAULT, Retry
from rowlock.stores.base import Bell
from rowlock.worker.exchanger import Exchanger
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.maintenance_schedule import MaintenanceSchedule
from rowlock.worker.poll_timing import PollTiming
from rowlock.worker.profile import Profile
from rowlock.worker.unwritten_outcomes import Unwritten
from rowlock.workload import App, Workload

log = logging.getLogger("rowlock.poller")


class ManualClaim(Claim, frozen=True, kw_only=True, gc=True):
    """A claim with `complete`, `fail` and `release`.

    Each is False if nothing of it is kept: the claim was lost meanwhile, or the database refused it (then the
    job has failed with what was said).
    """

    settle: Callable[[Outcome], bool]
    retry: Retry
    limit: int

    def complete(self, result: Any = None) -> bool:
        """End the job as completed."""
        try:
            text = codec.encode(result, f"the result of {self.task}", self.limit)
        except InvalidPayload as error:
            return self.settle(ended(self, Event.RESULT, self.retry, storable(str(error))))
        return self.settle(self.ended(Ending.COMPLETED, result=text))

    def fail(self, error: BaseException | str) -> bool:
        """End this attempt with an error: tried again while the budget lasts, else failed."""
        raised = error if isinstance(error, BaseException) else RuntimeError(error)
        return self.settle(after_error(self, raised, self.retry))

    def release(self, delay: float | None = None) -> bool:
        """Give the job back without charge, at once or after a delay."""
        return self.settle(ended(self, Event.RELEASED, self.retry, wait=check_seconds("delay", delay)))


class Poller:
    """Polls one app's jobs, or another workload, under one worker id."""

    def __init__(
        self,
        app: App,
        worker_id: str | None = None,
        strategy: str = "PRIORITY",
        poll_interval: float = 1.0,
        max_idle_polls: int = 12,
        *,
        queues: Sequence[str] = (),
        workload: Workload | None = None,
    ) -> None:
        self._app = app
        self._workload = workload = workload or app.workload(queues)
        self._profile = Profile(
            worker_id,
            workload.queues,
            strategy,
            poll_interval,
            max_idle_polls=max_idle_polls,
            takes_every_task=True,
        )
        self._bell: Bell = queue.SimpleQueue()
        self._unwritten = Unwritten()
        liveness = Liveness(Lease(app.settings.lease))
        self._heartbeat = Heartbeat(workload, self._profile, liveness, self._bell)
        maintenance = MaintenanceSchedule(app, workload, self._heartbeat)
        self._polls = PollTiming(workload, self._profile, self._heartbeat, maintenance, self._bell)
        self._exchanger = Exchanger(workload.store, self._heartbeat, self._polls, self._unwritten)
        self._lock = threading.RLock()  # of exchanges; a signal handler may close the poller during one
        self._unsettled: set[ClaimKey] = set()  # claims that a user of this poller has not settled yet
        self._stopped = self._complained = False

    # -- what users call -------------------------------------------------------------------------

    poll_interval = property(attrgetter("_profile.poll_interval"))
    max_idle_polls = property(attrgetter("_profile.max_idle_polls"))
    polls_total = property(attrgetter("_polls.total"))
    polls_successful = property(attrgetter("_polls.successful"))
    polls_empty = property(attrgetter("_polls.empty"))
    polls_busy = property(attrgetter("_polls.busy"))
    consecutive_empty = property(attrgetter("_polls.consecutive_empty"))
    running = property(attrgetter("_polls.running"))

    @property
    def strategy(self) -> str:
        """The order of claiming; may be changed at any time."""
        return self._profile.strategy

    @strategy.setter
    def strategy(self, name: str) -> None:
        self._profile.strategy = name

    @property
    def worker_id(self) -> str:
        """The id of this incarnation, as claims and `rowlock workers` show it."""
        return self._heartbeat.id

    def claim(self) -> ManualClaim | None:
        """Claim one job, or return None if there is none (or the database is busy: counted and logged)."""
        return self._claim(self._settle)

    def _claim(self, settle: Callable[[Outcome], bool]) -> ManualClaim | None:
        try:
            maintenance = self._polls.maintenance
            maintenance.take()
            with self._lock:
                self._exchanger.release_lost_claims(self._unsettled)
                profile = self._profile
                request = ClaimRequest(count=1, strategy=profile.strategy, queues=profile.queues)
                got = self._exchanger.exchange(self._exchanger.prepare(), request)
                if not got.claims and maintenance.take_if_needed():
                    self._polls.repeats()
                    got = self._exchanger.exchange(self._exchanger.prepare(), request)
                self._unsettled.update((claim.id, claim.claim) for claim in got.claims)
        except WorkerGone:
            self._heartbeat.declared_dead(self.worker_id)
            return None
        except StoreBusy as error:
            self._polls.found_busy()
            self._complain(error)
            return None
        self._complained = False
        if not got.claims:
            return None
        plain = got.claims[0]
        fields = {name: getattr(plain, name) for name in Claim.__struct_fields__}
        task, limit = self._workload.registry.find(plain.task), self._app.settings.max_payload_bytes
        return ManualClaim(**fields, settle=settle, retry=task.retry if task else DEFAULT, limit=limit)

    def poll_once(
        self, on_job: Callable[[ManualClaim], Any], on_idle: Callable[[], Any] | None = None
    ) -> bool:
        """Claim and pass on at most one job: returning completes it, raising fails it. Never sleeps."""
        try:
            claim = self._claim(self._settle_or_keep)
        except TRANSIENT as error:
            self._polls.found_busy()
            self._complain(error)
            claim = None
        if claim is None:
            if on_idle is not None:
                on_idle()
            return False
        try:
            result = on_job(claim)
        except Exception as error:
            claim.fail(error)
        except BaseException:
            claim.release()
            raise
        else:
            claim.complete(result)
        return True

    def run(
        self,
        on_job: Callable[[ManualClaim], Any],
        on_idle: Callable[[], Any] | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Poll until `stop()`, or for so many polls; waits between empty ones."""
        self._polls.running = True
        try:
            done = 0
            while not self._stopped and (max_iterations is None or done < max_iterations):
                done += 1
                if not self.poll_once(on_job, on_idle) and done != max_iterations and not self._stopped:
                    self._polls.wait(self.idle_wait())
        finally:
            self._polls.running = self._stopped = False
            self.close()

    def stop(self) -> None:
        """End `run()` after its job, and waits at once; from any thread, or from a signal handler.

        When `run()` is not running it closes the poller, and the next `run()` ends before it begins.
        """
        self._stopped = True
        self._bell.put(None)
        if not self._polls.running:
            self.close()

    def close(self) -> None:
        """Retire this incarnation; claims it still holds go back. A later claim registers anew."""
        if self._unwritten:
            try:
                with self._lock:
                    self._exchanger.exchange(self._exchanger.prepare())
            except StoreError as error:
                log.warning("the last outcomes could not be written, their jobs will run again: %s", error)
        self._polls.close()
        self._heartbeat.leave()

    def stats(self) -> dict[str, Any]:
        """Counts since this poller was made, and how it stands."""
        names = ("polls_total", "polls_successful", "polls_empty", "polls_busy", "consecutive_empty")
        stats = {name: getattr(self, name) for name in (*names, "running", "strategy", "worker_id")}
        return stats | {"success_rate": self.polls_successful / max(1, self.polls_total)}

    def idle_wait(self) -> float:
        """How many seconds `run()` would wait now, after an empty poll."""
        return self._polls.idle_wait()

    # -- inside ----------------------------------------------------------------------------------

    def _settle(self, outcome: Outcome) -> bool:
        kept = self._exchanger.write(outcome)
        self._unsettled.discard((outcome.id, outcome.claim))
        return kept

    def _settle_or_keep(self, outcome: Outcome) -> bool:
        """Settle now, or with the next exchange if the database is busy: never a crash."""
        try:
            return self._settle(outcome)
        except TRANSIENT as error:
            self._exchanger.keep(outcome)
            self._unsettled.discard((outcome.id, outcome.claim))
            self._complain(error)
            return True

    def _complain(self, error: StoreError) -> None:
        if not self._complained:  # once, not per poll
            log.warning("the database cannot be used now, polling goes on: %s", error)
        self._complained = True
