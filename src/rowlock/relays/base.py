"""A relay: a worker that runs nothing itself, but hands its claims to another engine, the target.

Knows no target; each is one file beside this one. What was sent is looked after in `handed_over.py`.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from rowlock.errors import StoreError, WorkerGone
from rowlock.job import Claim, ClaimRequest
from rowlock.liveness import Lease, Liveness
from rowlock.maintenance import Maintenance
from rowlock.outage import Outage, backoff
from rowlock.relays.handed_over import HandedOver
from rowlock.relays.messages import TargetError
from rowlock.relays.target import Target
from rowlock.relays.workload import target_queues
from rowlock.stores.base import Bell, Wake, rung
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.profile import Profile
from rowlock.worker.store_backoff import StoreBackoff
from rowlock.worker.unknown_tasks import UnknownTasks
from rowlock.workload import App, Workload

log = logging.getLogger("rowlock.relay")

AHEAD = 32  # claims of one queue that wait in the target; the others stay in the database, in their order
_FULL_FIRST = 0.01  # seconds until the next look at a target that is full; then twice as long each time
_MAINTENANCE_AT_LEAST = 1.0
_LONGEST_BETWEEN_LOOKS = 10.0
_CANCELS_EVERY = 1.0
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 2.0


class Relay:
    """Hands a workload, jobs or the rows of a consumer, to a target."""

    def __init__(
        self,
        app: App,
        workload: Workload,
        target: Target,
        *,
        strategy: str = "PRIORITY",
        poll_interval: float | None = None,
        worker_id: str | None = None,
        ahead: int = AHEAD,
        outage: Outage | None = None,
    ) -> None:
        self._app = app
        self._registry = workload.registry
        self._store = workload.store
        self._target = target
        self._outage = outage or Outage()
        self._of_rows = workload.consumer is not None
        self._queues = target_queues(workload)
        self._strategy = strategy
        self._poll_interval = app.settings.poll_interval if poll_interval is None else poll_interval
        self._ahead = ahead
        self._few = ahead // 8
        self._bell: Bell = queue.SimpleQueue()
        profile = Profile(worker_id, workload.queues, strategy, self._poll_interval)
        profile.concurrency = ahead
        self._lease = Lease(app.settings.lease)
        self._heartbeat = Heartbeat(workload, profile, Liveness(self._lease), self._bell)
        self._maintenance = Maintenance(
            workload.store,
            lease=self._lease,
            keep=app.retention,
            failed_after=app.settings.failed_after_in_relay,
            may_rescue=self._heartbeat.liveness.may_rescue,
        )
        self._maintenance_at = self._look_at = self._cancels_at = self._retry_at = self._names_at = 0.0
        self.sent = HandedOver(workload.store, target)
        self._served: set[str] = set()  # queues of which something was handed over
        self._unknown = UnknownTasks(workload.registry, "this relay")
        self._look_again_in = math.inf  # seconds after which a claim may find more, though nobody tells of it
        self._wake: Wake | None = None
        self._backoff = StoreBackoff(workload.store.database.outage)
        self._failing = 0  # tries in a row in which the target could not be used
        self._full_wait = _FULL_FIRST
        self._empty_polls = 0
        self._told_as = ""
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self.handed_over = 0

    @property
    def id(self) -> str:
        """The id of this incarnation."""
        return self._heartbeat.id

    # -- what users call -------------------------------------------------------------------------

    def start(self, until_empty: bool = False, on_failure: Callable[[], None] = lambda: None) -> None:
        """Hand over, in a thread of this program, until stopped, or until nothing is due or running.

        `join` waits for its end, `finish` brings it about.
        `on_failure` is called in that thread when an error has ended it.
        """
        self._failure = None
        self._thread = threading.Thread(
            target=self._work_in_thread, args=(until_empty, on_failure), name="rowlock-relay", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended; raises what ended it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Stop, if it runs, and wait for that."""
        if self._thread is not None:
            self.stop()
            self.join()

    def stop(self) -> None:
        """Take back what nobody has begun, and end; from any thread, or from a signal handler."""
        self._stopped = True
        self.ring()

    def ring(self) -> None:
        """End a wait at once; safe from any thread or signal handler."""
        self._bell.put(None)

    def register(self) -> str:
        """Register this incarnation now rather than with the first cycle; returns its id."""
        self._heartbeat.ensure()
        return self.id

    # -- the loop --------------------------------------------------------------------------------

    def _work_in_thread(self, until_empty: bool, on_failure: Callable[[], None]) -> None:
        try:
            self._work(until_empty)
        except Exception as error:
            log.error("relay %s ends after an error: %s", self.id, error)  # noqa: TRY400 - raised by `join`
            self._failure = error
            on_failure()

    def _work(self, until_empty: bool) -> None:
        self._app.load_tasks()
        try:
            while not self._stopped:
                seconds = self.run_once()
                if until_empty and self._nothing_left():
                    break
                if not self._stopped:
                    self._wait(seconds)
        finally:
            self.close()
            self._stopped = False

    def run_once(self) -> float:
        """One cycle: fail expired and overdue, rescue, look after what was handed over, hand over.

        Returns how long to wait for the next.
        """
        try:
            self._heartbeat.ensure()
            self._tell()
            self._maintain()
            self._look_for_unwanted()
            seconds = self._with_target()
            self._backoff.succeeded()
            return min(seconds, _CANCELS_EVERY) if self.sent else seconds
        except WorkerGone:
            self._heartbeat.declared_dead(self.id)
            self.sent.clear()
            return 0.0
        except StoreError as error:
            if not self._heartbeat.liveness.is_registered:
                raise
            return self._backoff.failed(error)

    def _with_target(self) -> float:
        """The steps that need the target; without it jobs stay queued."""
        moment = time.monotonic()
        if moment < self._retry_at:
            return self._retry_at - moment
        try:
            if self._failing:
                self._target.check()  # a cycle with nothing to send would not notice that it is still gone
            self._look_for_losses()
            seconds = self._hand_over()
        except TargetError as error:
            self._failing += 1
            if self._outage.is_new():
                log.error("%s; jobs stay queued until it can be used again", error)  # noqa: TRY400
            wait = backoff(self._failing, _BACKOFF_FIRST, _BACKOFF_MOST)
            self._retry_at = moment + wait
            return wait
        if self._failing and self._outage.ends():
            log.info("%s can be used again", self._target.name)
        self._failing = 0
        return seconds

    def _tell(self) -> None:
        """Say in the worker's row, of each incarnation, that it is a relay."""
        if self._told_as != self.id:
            self._told_as = self.id
            self._store.tell(self.id, {"relay": self._target.name})
            log.debug("relay %s hands over to %s", self.id, self._target.name)

    def _maintain(self) -> None:
        moment = time.monotonic()
        if moment >= self._maintenance_at:
            done = self._maintenance.run_once(self.id)
            # Not at every wake-up in between: it would stand between a new job and its way to the target.
            self._maintenance_at = moment + min(done.next_in, self._poll_interval, _MAINTENANCE_AT_LEAST)

    def _look_for_unwanted(self) -> None:
        moment = time.monotonic()
        if self.sent and moment >= self._cancels_at:
            self._cancels_at = moment + _CANCELS_EVERY
            if self.sent.end_unwanted(self.id, time.time()):
                self._maintenance_at = 0.0
                self._maintain()  # before it is handed over again

    def _look_for_losses(self) -> None:
        moment = time.monotonic()
        if moment >= self._look_at:
            self._look_at = moment + min(self._lease.look_for_losses_every, _LONGEST_BETWEEN_LOOKS)
            self.look()

    def look(self) -> None:
        """Take back what the target has lost, or has given to somebody who died before the start."""
        self.sent.take_back_lost(self.id, self._served or self._queues)

    # -- handing over ----------------------------------------------------------------------------

    def _hand_over(self) -> float:
        """Fill the target up with what is queued; returns how long to wait."""
        if not self._heartbeat.liveness.may_claim():  # frozen a moment ago: it beats before it claims
            return min(self._poll_interval, _CANCELS_EVERY)
        if self._wake is None:
            self._wake = self._store.wake(lambda: self.id, self.ring)
        self._wake.before_claim(idle=self._empty_polls > 0)
        few = self._queues_of_few()
        taken = self._send(self._claim(few, self._few)) if few else 0
        full = False
        if not few or self._must_look(taken):
            for name in self._queues or self._queues_with_work():
                room = self._ahead - self._target.waiting(name)
                if 2 * room < self._ahead:  # a refill is worth an exchange when half of it is gone
                    full = True
                    continue
                claims = self._claim((name,), room)
                full = full or len(claims) >= room
                taken += self._send(claims)
        if taken:
            self._empty_polls = 0
            self._full_wait = _FULL_FIRST
            self._wake.claimed(leaves_some=full)
            return self._full_wait if full else self._poll_interval  # there was no more a moment ago
        if full:
            self._full_wait = min(2 * self._full_wait, self._poll_interval)
            return self._full_wait
        self._empty_polls += 1
        self._full_wait = _FULL_FIRST
        return self._idle_wait()

    def _queues_of_few(self) -> tuple[str, ...]:
        """The queues of which a few are handed over without a look how many wait in the target; or none.

        One exchange in place of a dozen questions: the way of a job that finds everybody idle.
        """
        if self._failing or self._unknown.names() or len(self.sent) > 2 * self._few:
            return ()
        return self._queues or tuple(sorted(self._served))

    def _must_look(self, taken: int) -> bool:
        """Whether there may be more than the few that were asked for, or work in a queue that is new."""
        if taken:
            return taken >= self._few
        # Not right after a hand-over: it would keep the database from the start that is on its way.
        return not self._queues and (self._empty_polls > 0 or time.monotonic() >= self._names_at)

    def _queues_with_work(self) -> list[str]:
        self._names_at = time.monotonic() + self._poll_interval
        pulse = self._store.pulse()
        return sorted(name for name in pulse.waiting if name not in pulse.paused)

    def _claim(self, names: tuple[str, ...], count: int) -> Sequence[Claim]:
        request = ClaimRequest(
            count=count,
            strategy=self._strategy,
            queues=() if self._of_rows else names,
            unknown=self._unknown.names(),
        )
        got = self._store.hand_over(self.id, request)
        self._look_again_in = min(self._look_again_in, got.look_again_in)
        claims, put_off = self._unknown.sort_out(got.claims)
        if put_off:
            self._store.exchange(self.id, put_off)
        return claims

    def _send(self, claims: Sequence[Claim]) -> int:
        if claims:
            self._served.update(claim.queue for claim in claims)
            self.sent.send(self.id, claims)
            self.handed_over += len(claims)
        return len(claims)

    # -- waiting and ending ----------------------------------------------------------------------

    def _idle_wait(self) -> float:
        needed = self._store.next_needed(self.id)
        wait = self._poll_interval if needed is None else min(needed, self._poll_interval)
        wait, self._look_again_in = min(wait, self._look_again_in), math.inf
        if needed is not None:
            self._maintenance_at = min(self._maintenance_at, time.monotonic() + needed)
        return max(0.0, min(wait, self._look_at - time.monotonic() if self.sent else wait))

    def _wait(self, seconds: float) -> None:
        if seconds <= 0:
            return
        usable = not (self._backoff.failing or self._failing)
        if self._wake is not None and usable and self._full_wait == _FULL_FIRST:
            # Always: on SQLite that is 0.6 % of a core for 15 ms less between a job and its start.
            is_rung = self._wake.wait(self._bell, seconds, lively=True)
        else:
            is_rung = rung(self._bell, seconds)
        while is_rung and not self._bell.empty():
            self._bell.get()

    def _nothing_left(self) -> bool:
        if self._failing or self._backoff.failing or not self._empty_polls:
            return False
        try:
            return self._store.idle(self._queues, tasks=self._registry.facts())
        except StoreError:
            return False

    def close(self) -> None:
        """Take back what nobody has begun, and say goodbye."""
        if self.sent:
            with suppress(StoreError):
                self.sent.taken_back += len(self._store.held(self.id))
        if self._wake is not None:
            self._wake.close()
            self._wake = None
        self._heartbeat.leave()  # which gives back what it holds
        self.sent.remove_all()
        self._target.close()
