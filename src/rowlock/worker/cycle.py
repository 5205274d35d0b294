"""One cycle of a worker: maintenance, what may be claimed now, the exchange, and runs in their pools.

Who makes one, and when, is in `next_cycle.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rowlock.errors import TRANSIENT, StoreBusy, StoreClosed, StoreError, StoreMoved, WorkerGone
from rowlock.execution.context import JobContext
from rowlock.job import Claim, Outcome
from rowlock.pools.base import Run
from rowlock.task import Runnable
from rowlock.worker.demand import Demand
from rowlock.worker.exchanger import Exchanger
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.lost_claims import LOOK_EVERY_SECONDS
from rowlock.worker.poll_timing import PollTiming
from rowlock.worker.pools import Pools
from rowlock.worker.prefetch import HORIZON, may_wait
from rowlock.worker.profile import Profile
from rowlock.worker.runs import Runs
from rowlock.worker.store_backoff import StoreBackoff
from rowlock.worker.unwritten_outcomes import Unwritten
from rowlock.workload import Workload

_LOOK_SECONDS = 1.0  # the longest wait while anything runs
SOON_SECONDS = 0.05


class Cycle:
    """Turns one worker's demand into runs; not for two threads at once."""

    def __init__(
        self,
        workload: Workload,
        profile: Profile,
        unwritten: Unwritten,
        runs: Runs,
        pools: Pools,
        demand: Demand,
        heartbeat: Heartbeat,
        polls: PollTiming,
        exchanger: Exchanger,
    ) -> None:
        self._store = workload.store
        self._registry = workload.registry
        self._profile = profile
        self._heartbeat = heartbeat
        self._polls = polls
        self._unwritten = unwritten
        self._exchanger = exchanger
        self._demand = demand
        self._runs = runs
        self._pools = pools
        self.stopping = False  # nothing more is claimed
        self.reset(in_callers_thread=False)

    def reset(self, in_callers_thread: bool) -> None:
        """Begin anew, as a worker does with each of its runs."""
        self.backoff = StoreBackoff(self._store.database.outage, in_callers_thread)
        self.found_nothing = False  # the last claim brought no job
        self._runs.pausing.clear()
        self._look_at = 0.0

    def run(self) -> float:
        """Do what is due, write outcomes, claim for free slots; returns how long to wait."""
        try:
            with self._store.database.together():
                wait = self._steps()
            return min(wait, LOOK_EVERY_SECONDS) if self._exchanger.lost_claims.expected else wait
        except WorkerGone:
            self._heartbeat.declared_dead(self._heartbeat.id)
            return 0.0
        except StoreError as error:
            is_registered = self._heartbeat.liveness.is_registered
            may_pass = is_registered or isinstance(error, TRANSIENT)
            if not may_pass or isinstance(error, (StoreMoved, StoreClosed)):
                raise  # the queue is elsewhere or closed, or nothing is claimed yet and this does not pass
            if isinstance(error, StoreBusy):
                self._polls.found_busy()
            return self.backoff.failed(error, is_registered)

    def _steps(self) -> float:
        runs, demand, exchanger = self._runs, self._demand, self._exchanger
        self._heartbeat.ensure()
        if self.stopping:
            self.take_back()
        else:
            if self._polls.maintenance.take():
                demand.look_for_isolated()
            self._take_back_what_waits_too_long()
        exchanger.release_lost_claims(runs.in_flight)
        written = exchanger.count_written()
        demand.learn(written)
        self._end_pausing(written)
        request = None if self.stopping else demand.request()
        batch = exchanger.prepare(flush=self.stopping)
        if not batch and not (request and demand.is_short()):
            return self._until_deadline(_LOOK_SECONDS if demand.is_fresh else SOON_SECONDS)
        got = exchanger.exchange(batch, request)
        self.backoff.succeeded()
        demand.learn(batch.outcomes)
        if request is not None:
            self.found_nothing = not got.claims
            demand.claimed(request, got.claims)
            # If the strategy was changed meanwhile, these came in the old order.
            self._admit(got.claims, request.count, in_order=self._profile.strategy == request.strategy)
        self._end_pausing(batch.outcomes)
        if request is None or len(got.claims) >= request.count:
            return 0.0 if demand.is_short() else self._until_deadline(_LOOK_SECONDS)
        idle = min(self._polls.idle_wait(), got.look_again_in)
        return min(idle, self._until_deadline(_LOOK_SECONDS)) if runs.in_flight else idle

    def _end_pausing(self, written: Sequence[Outcome]) -> None:
        """Pauses that runs asked for are written: what was prefetched from these queues goes back."""
        if paused := {one.queue for one in written if one.pause}:
            self.take_back()
            self._runs.pausing -= paused

    def _until_deadline(self, longest: float) -> float:
        """Seconds until a run may be over its timeout, or a quick one has waited for a while."""
        if any(load.quick for load in self._runs.load.values()):
            longest = min(longest, HORIZON)
        deadline = self._runs.next_deadline()
        return longest if math.isinf(deadline) else min(longest, max(0.01, deadline - time.monotonic()))

    # -- from claims to runs -----------------------------------------------------------------------

    def _admit(self, claims: Sequence[Claim], wanted: int, in_order: bool) -> None:
        """Make runs of the claims, and give those that belong here to their pools; the others go back."""
        if not claims:
            return
        claims, put_off = self._demand.unknown.sort_out(claims)
        for outcome in put_off:
            self._unwritten.add(outcome)
        made = self._runs_of(claims)
        fit = self._demand.fit(made, wanted) if in_order else 0
        self._runs.admit(made)
        self._pools.submit(made[:fit])
        self._runs.take_back(made[fit:])

    def _runs_of(self, claims: Sequence[Claim]) -> list[Run]:
        known: dict[str, tuple[Runnable | None, str, float]] = {}  # most claims are of few tasks
        store, reporting, made = self._store, self._runs.reporting, []
        for claim in claims:
            if claim.task not in known:
                task = self._registry.find(claim.task)
                kind = self._pools.kind_of(task)
                known[claim.task] = (task, kind, self._demand.prefetch[kind].cost(claim.task))
            task, kind, cost = known[claim.task]
            timeout = None if task is None else task.timeout
            context = JobContext(claim, timeout, store=store, reporting=reporting)
            made.append(Run(claim, task, context, cost if may_wait(claim, task) else math.inf, kind))
        return made

    def take_back(self) -> None:
        """Give back what has not begun."""
        self._runs.take_back(self._pools.take_back())

    def _take_back_what_waits_too_long(self) -> None:
        """Give back what waits behind slow runs: others may be idle."""
        moment = time.monotonic()
        if moment < self._look_at:
            return
        self._look_at = moment + HORIZON
        if late := self._demand.late_pools():
            self._runs.take_back(self._pools.take_back(late))
