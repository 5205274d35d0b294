"""Claims jobs, waits well between polls, and counts: usable by itself and inside the worker.

Does not run tasks and knows no pools; what to do with a claim is the caller's.
"""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rowlock.errors import TRANSIENT, ConfigurationError, StoreBusy, StoreError, WorkerGone
from rowlock.job import Claim, ClaimRequest, ExchangeResult, Key, Minute, Outcome, Report
from rowlock.maintenance import Maintenance
from rowlock.options import check_name
from rowlock.retry import DEFAULT, Retry
from rowlock.stores.base import Bell, Retention, Wake
from rowlock.strategies import get_strategy
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.heartbeat import Host as HeartbeatHost
from rowlock.worker.lost_claims import LostClaims
from rowlock.worker.manual_claim import ManualClaim

log = logging.getLogger("rowlock.poller")

_LIVELY = 3  # empty polls after which a worker may listen with less attention
_LONGEST_WAIT = 60.0
_MAINTENANCE_AT_LEAST = 0.5  # seconds; between claims of a busy worker


def check_queues(names: Sequence[str]) -> tuple[str, ...]:
    """The queues' names, each checked; one bare text is refused, because it is a sequence, too."""
    if isinstance(names, str):
        raise ConfigurationError(f"queues={names!r}: must be a list of names")
    return tuple(check_name("queue", name) for name in names)


class Host(HeartbeatHost, Protocol):
    """What a poller needs of its app."""

    @property
    def retention(self) -> Retention:
        """How long finished jobs are kept."""
        ...

    @property
    def failed_after(self) -> float:
        """After how many seconds a job that is still queued or running fails; 0: never."""
        ...

    @property
    def max_payload_bytes(self) -> int:
        """The largest size of arguments and results, as JSON."""
        ...

    def retry_policy(self, task: str) -> Retry | None:
        """The retry policy of a registered task; None if there is no such task."""
        ...


class Poller:
    """Polls one app's store under one worker id."""

    def __init__(
        self,
        app: Host,
        worker_id: str | None = None,
        strategy: str = "PRIORITY",
        poll_interval: float = 1.0,
        max_idle_polls: int = 12,
        *,
        queues: Sequence[str] = (),
        heartbeat: Heartbeat | None = None,
    ) -> None:
        if (
            isinstance(poll_interval, bool)
            or not isinstance(poll_interval, (int, float))
            or not poll_interval > 0
        ):
            raise ValueError(f"poll_interval={poll_interval!r}: must be more than 0 seconds")
        self._app = app
        self.strategy = strategy
        self.poll_interval = poll_interval
        self.max_idle_polls = max_idle_polls
        self._queues = check_queues(queues)
        self._heartbeat = heartbeat or Heartbeat(
            app,
            name=None if worker_id is None else check_name("worker_id", worker_id),
            queues=self._queues,
            concurrency=lambda: 1,
            strategy=lambda: self.strategy,
            ring=self.ring,
            takes_every_task=True,
        )
        self._maintenance: Maintenance | None = None
        self._maintenance_at = self._maintenance_needed_at = self._hold_until = 0.0
        self._last_queue = ""
        self._owed: list[Outcome] = []
        self._bell: Bell = queue.SimpleQueue()
        self._wake: Wake | None = None
        self._unsure = False  # the last outcomes may have been written, or not
        self._in_hand: set[Key] = set()  # claims that a user of this poller has not settled yet
        self.unwritten: set[Key] = set()  # claims that stay ours, because the database refuses their outcomes
        self.lost_claims = LostClaims(lambda: self._app.store, lambda: self._in_hand | self.unwritten)
        self._stopped = False
        self.running = False
        self.polls_total = self.polls_successful = self.polls_empty = self.polls_busy = 0
        self.consecutive_empty = 0
        self._complained = False

    # -- what users call -------------------------------------------------------------------------

    @property
    def strategy(self) -> str:
        """The order of claiming; may be changed at any time."""
        return self._strategy

    @strategy.setter
    def strategy(self, name: str) -> None:
        self._strategy = get_strategy(name).name

    @property
    def worker_id(self) -> str:
        """The id of this incarnation, as claims and `rowlock workers` show it."""
        return self._heartbeat.id

    def claim(self) -> ManualClaim | None:
        """Claim one job, or return None if there is none (or the database is busy: counted and logged)."""
        return self._claim(self._settle)

    def _claim(self, settle: Callable[[Outcome], bool]) -> ManualClaim | None:
        try:
            self.maintain()
            if self.lost_claims.suspected:
                held = self._app.store.held(self.worker_id)
                self.lost_claims.run_once(self.worker_id, [(job, claim) for job, claim, _ in held])
            got = self.exchange(1)
        except WorkerGone:
            self._heartbeat.declared_dead(self.worker_id)
            return None
        except StoreBusy as error:
            self.count_busy()
            self._complain(error)
            return None
        if not got.claims:
            return None
        plain = got.claims[0]
        self._in_hand.add((plain.id, plain.claim))
        fields = {name: getattr(plain, name) for name in Claim.__struct_fields__}
        retry = self._app.retry_policy(plain.task) or DEFAULT
        return ManualClaim(**fields, settle=settle, retry=retry, limit=self._app.max_payload_bytes)

    def poll_once(
        self, on_job: Callable[[ManualClaim], Any], on_idle: Callable[[], Any] | None = None
    ) -> bool:
        """Claim and hand over at most one job: returning completes it, raising fails it. Never sleeps."""
        try:
            claim = self._claim(self._settle_or_owe)
        except TRANSIENT as error:
            self.count_busy()
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
        self.running = True
        try:
            done = 0
            while not self._stopped and (max_iterations is None or done < max_iterations):
                done += 1
                if not self.poll_once(on_job, on_idle) and done != max_iterations and not self._stopped:
                    self.wait(self.idle_wait())
        finally:
            self.running = self._stopped = False
            self.close()

    def stop(self) -> None:
        """End `run()` after the job in hand, and waits at once; from any thread, or from a signal handler.

        When `run()` is not running it closes the poller, and the next `run()` ends before it begins.
        """
        self._stopped = True
        self.ring()
        if not self.running:
            self.close()

    def close(self) -> None:
        """Retire this incarnation; claims it still holds go back. A later claim registers anew."""
        if self._owed:
            try:
                self.exchange(0)
            except StoreError as error:
                log.warning("the last outcomes could not be written, their jobs will run again: %s", error)
        self.deafen()
        self._heartbeat.leave()

    def deafen(self) -> None:
        """Let go of what hears wake-ups; the next claim listens anew."""
        if self._wake is not None:
            self._wake.close()
            self._wake = None

    def stats(self) -> dict[str, Any]:
        """Counts since this poller was made, and how it stands."""
        return {
            "polls_total": self.polls_total,
            "polls_successful": self.polls_successful,
            "polls_empty": self.polls_empty,
            "polls_busy": self.polls_busy,
            "success_rate": self.polls_successful / self.polls_total if self.polls_total else 0.0,
            "consecutive_empty": self.consecutive_empty,
            "running": self.running,
            "strategy": self.strategy,
            "worker_id": self.worker_id,
        }

    # -- what the worker uses, too ---------------------------------------------------------------

    def exchange(
        self,
        count: int,
        outcomes: Sequence[Outcome] = (),
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        isolate: bool = True,
        unknown: tuple[str, ...] = (),
    ) -> ExchangeResult:
        """Hand outcomes back and take up to `count` claims, in one transaction; count it as a poll."""
        self._heartbeat.ensure()
        request = None
        if count > 0:
            if self._wake is None:
                self._wake = self._app.store.wake(lambda: self.worker_id, self.ring)
            self._wake.before_claim(idle=self.consecutive_empty > 0)
            request = ClaimRequest(
                count=count,
                strategy=self.strategy,
                queues=self._queues,
                after=self._last_queue,
                isolate=isolate,
                unknown=unknown,
            )
        owed = [*self._owed, *outcomes]
        try:
            got = self._app.store.exchange(
                self.worker_id, owed, request, reports, minutes, again=self._unsure
            )
        except WorkerGone:
            raise
        except StoreError:  # some of it may be written all the same, and claims may be ours that we never saw
            self._unsure = True
            self.lost_claims.suspect()
            raise
        self._unsure = False
        self._take_note(got)
        self._owed.clear()
        self._complained = False
        if request is not None:
            self.polls_total += 1
            if got.claims:
                self.polls_successful += 1
                self.consecutive_empty = 0
                self._last_queue = got.last_queue
                if self._wake is not None:  # one that runs alone leaves no place for more
                    full = len(got.claims) >= count or got.claims[0].isolate > 0
                    self._wake.claimed(leaves_some=full or bool(unknown))
            else:
                self.polls_empty += 1
                self.consecutive_empty += 1
        return got

    def maintain(self) -> bool:
        """Do the store's maintenance if it is time; True if it brought back what a dead worker had."""
        self._heartbeat.ensure()
        if self._maintenance is None:
            self._maintenance = Maintenance(
                self._app.store,
                lease=self._heartbeat.lease,
                keep=self._app.retention,
                failed_after=self._app.failed_after,
                may_rescue=self._heartbeat.liveness.may_rescue,
            )
        moment = time.monotonic()
        if moment >= self._maintenance_at:
            done = self._maintenance.run_once(self.worker_id)
            self._maintenance_at = moment + min(done.next_in, _MAINTENANCE_AT_LEAST)
            self._maintenance_needed_at = moment + done.next_in
            self._hold_until = self._maintenance_needed_at if done.rescue.waited else 0.0
            return bool(done.rescue.workers)
        return False

    def idle_wait(self) -> float:
        """How long to wait after an empty poll: the interval, growing while nothing comes, with jitter.

        It grows only because a wake-up can end it, and never past the next moment something falls due. So it
        does not grow where there may be work that nobody announces.
        """
        wait = self.poll_interval
        beyond = self.consecutive_empty - self.max_idle_polls
        announced = self._wake is not None and self._wake.alive and self._app.store.announces_all_work
        if beyond > 0 and announced:
            wait = min(wait * 2.0 ** min(beyond, 16), max(_LONGEST_WAIT, wait))
            wait *= random.uniform(0.75, 1.0)  # noqa: S311 - spreads the workers, hides nothing
        try:
            needed = self._app.store.next_needed(self.worker_id)
        except StoreError:
            return self.poll_interval
        moment = time.monotonic()
        if needed is not None and needed < wait:
            wait = max(
                needed, min(wait, self._hold_until - moment)
            )  # a careful rescuer waits for its own beat
            self._maintenance_at = min(self._maintenance_at, moment + needed)
        return max(0.0, min(wait, self._maintenance_needed_at - moment))

    def wait(self, seconds: float, *, for_jobs: bool = True) -> None:
        """Wait until time is up, the bell rings, or (for jobs) somebody else commits."""
        if seconds <= 0:
            return
        if for_jobs and self._wake is not None:
            rung = self._wake.wait(self._bell, seconds, lively=self.consecutive_empty < _LIVELY)
        else:
            try:
                self._bell.get(timeout=seconds)
                rung = True
            except queue.Empty:
                rung = False
        while rung and not self._bell.empty():
            self._bell.get()

    def ring(self) -> None:
        """End a wait at once; safe from any thread or signal handler."""
        self._bell.put(None)

    # -- inside ----------------------------------------------------------------------------------

    def _settle_or_owe(self, outcome: Outcome) -> bool:
        """Settle now, or with the next exchange if the database is busy: never a crash."""
        try:
            return self._settle(outcome)
        except TRANSIENT as error:
            self._owed.append(outcome)
            self._unsure = True
            self._complain(error)
            return True

    def _settle(self, outcome: Outcome) -> bool:
        got = self._app.store.exchange(self.worker_id, [outcome])
        self._take_note(got)
        self._in_hand.discard((outcome.id, outcome.claim))
        if got.lost:
            log.warning(
                "%s: claim %d was lost, its outcome %s is dropped",
                outcome.title,
                outcome.claim,
                outcome.ending,
            )
        return not (got.lost or got.refused)

    def _take_note(self, got: ExchangeResult) -> None:
        """Something was refused: of what was to be claimed with it, some may be ours all the same."""
        if got.apart:
            self.unwritten.update(got.unwritten)
            self.lost_claims.suspect()

    def count_busy(self) -> None:
        """Count a poll that found the database locked; it is an empty one."""
        self.polls_total += 1
        self.polls_empty += 1
        self.polls_busy += 1
        self.consecutive_empty += 1

    def _complain(self, error: StoreError) -> None:
        if not self._complained:  # once, not per poll
            log.warning("the database cannot be used now, polling goes on: %s", error)
        self._complained = True
