"""What may be claimed now: how many jobs, of which tasks, and whether an isolated one may be among them.

Learns from what runs took (`prefetch.py`), and from the store whether an isolated job waits (`isolation.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rowlock.job import Claim, ClaimRequest, Outcome
from rowlock.liveness import Liveness
from rowlock.pools.base import Run
from rowlock.worker.isolation import Isolation
from rowlock.worker.prefetch import LONGEST_WAIT_SECONDS, Prefetch
from rowlock.worker.profile import Profile
from rowlock.worker.runs import Load, Runs
from rowlock.worker.unknown_tasks import UnknownTasks
from rowlock.workload import Workload


class Demand:
    """One worker's demand: by the runs in flight, experience, isolated jobs, and how fresh its beat is."""

    def __init__(self, workload: Workload, profile: Profile, liveness: Liveness, runs: Runs) -> None:
        self._store = workload.store
        self._registry = workload.registry
        self._profile = profile
        self._liveness = liveness
        self._runs = runs
        self.reset({}, None)

    def reset(self, slots: Mapping[str, int], most: int | None) -> None:
        """Begin anew, with so many slots in each pool, and at most so many jobs prefetched."""
        self.prefetch = {name: Prefetch(number, most, name == "thread") for name, number in slots.items()}
        self.unknown = UnknownTasks(self._registry)
        self._isolation = Isolation(self._store, self._profile)

    # -- how many --------------------------------------------------------------------------------

    def request(self) -> ClaimRequest | None:
        """What may be claimed now; None: nothing."""
        runs = self._runs.all_runs()
        may_isolate = self._isolation.may_start(runs, self.unknown.names)
        wanted = 0 if not self.is_fresh or self._is_blocked(runs) else self._wanted()
        if not wanted:
            return None
        return ClaimRequest(
            count=wanted,
            strategy=self._profile.strategy,
            queues=self._profile.queues,
            may_isolate=may_isolate,
            unknown=self.unknown.names(),
        )

    @property
    def is_fresh(self) -> bool:
        """False just after a freeze: the worker has to beat before it may claim."""
        return self._liveness.may_claim()

    def may_claim(self) -> bool:
        """True if new jobs are welcome."""
        return self._wanted() > 0 and not self._is_blocked(self._runs.all_runs())

    def is_short(self) -> bool:
        """True if more jobs are worth an exchange of their own now, without an outcome to write."""
        return self._wanted() > 0 and any(
            prefetch.is_short(load.slow, load.quick) for prefetch, load in self._loads()
        )

    def _is_blocked(self, runs: Sequence[Run]) -> bool:
        return self._isolation.blocks(runs, lambda run: self.prefetch[run.pool_name].is_quick(run.claim.task))

    def _wanted(self) -> int:
        return min(prefetch.wanted(load.slow, load.quick) for prefetch, load in self._loads())

    def _loads(self) -> list[tuple[Prefetch, Load]]:
        return [(prefetch, self._runs.load[name]) for name, prefetch in self.prefetch.items()]

    def fit(self, runs: Sequence[Run], wanted: int) -> int:
        """How many of these new runs, in their order, may stay here; learns how many to claim next time."""
        fit = len(runs)
        for name, prefetch in self.prefetch.items():
            # A run in another pool takes no capacity from this one.
            costs = [run.cost if run.pool_name == name else 0.0 for run in runs]
            fit = min(fit, prefetch.fitting(costs, self._runs.load[name].slow))
            prefetch.adapt(costs, wanted)
        return fit

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Take note of how long runs took."""
        for prefetch in self.prefetch.values():
            prefetch.learn(outcomes)

    def late_pools(self) -> list[str]:
        """The pools in which quick runs wait too long behind others; those count as slow from now on."""
        moment, late = time.monotonic(), []
        for name, prefetch in self.prefetch.items():
            if not self._runs.load[name].quick:
                continue
            runs = [run for run in self._runs.all_runs() if run.pool_name == name]
            waiting = [run for run in runs if run.context.began is None]
            if any(moment - run.started > LONGEST_WAIT_SECONDS for run in waiting):
                prefetch.slower_than_thought(
                    (run.claim.task, moment - run.context.began)
                    for run in runs
                    if run.context.began is not None
                )
                late.append(name)
        return late

    def look_for_isolated(self) -> None:
        """See whether an isolated job waits: a dead worker's jobs have just come back."""
        self._isolation.look(self.unknown.names())

    def claimed(self, request: ClaimRequest, claims: Sequence[Claim]) -> None:
        """Take note of what came of a request."""
        if request.may_isolate:
            self._isolation.asked_for(claims)

    def facts(self) -> dict[str, Any]:
        """How the worker chooses, for `rowlock workers`."""
        return {
            name: {"slots": prefetch.slots, "ahead": prefetch.ahead, "seconds": prefetch.shown()}
            for name, prefetch in self.prefetch.items()
        }
