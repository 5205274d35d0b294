"""How many quick jobs are claimed before a slot is free, by what a pool has learnt about its tasks.

Knows neither the store nor which runs are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rowlock.endings import budget
from rowlock.job import Claim, Outcome
from rowlock.pools.thread import TINY_SECONDS
from rowlock.retry import DEFAULT
from rowlock.task import Runnable

HORIZON = 0.03  # seconds of work that may wait here for a slot
MAX_PREFETCHED = 500  # per pool; more gain nothing, and an exchange holds the write lock for longer
LONGEST_WAIT_SECONDS = 10 * HORIZON  # after which a job that has not begun is left to other workers
_MEMORY = 0.2  # how much the latest run says about the next


def may_wait(claim: Claim, task: Runnable | None) -> bool:
    """Whether this claim may wait here for a free slot, if its task is quick; else it takes one at once.

    Not one that was claimed before: it may have killed its worker, and must take nobody along. Not one that
    may run only once: a claim counts as begun, and if a neighbour killed the worker it would be lost.
    """
    return not claim.claimed_before and budget(claim.max_attempts, task.retry if task else DEFAULT) > 1


class Prefetch:
    """One pool's experience with its tasks, and the number of jobs that are therefore prefetched.

    That number doubles with every exchange that brought only quick jobs, and falls to nothing with the
    first that is not known to be quick: such a job is only claimed for a free slot.
    """

    def __init__(self, slots: int, most: int | None = None, in_threads: bool = False) -> None:
        self.slots = slots
        self._in_threads = in_threads
        self._most = MAX_PREFETCHED if most is None else most
        self._seconds: dict[str, float] = {}
        self._runs: dict[str, int] = {}  # how many have taught that
        self.ahead = 0

    def is_quick(self, task: str) -> bool:
        """Whether this task's runs have been quick so far."""
        return self._seconds.get(task, math.inf) <= HORIZON

    def shown(self) -> dict[str, float]:
        """Seconds per run by task, for people."""
        return {task: round(seconds, 6) for task, seconds in self._seconds.items()}

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Take note of how long these runs took; one that had not begun says nothing about that."""
        sums: dict[str, tuple[int, float]] = {}
        for outcome in outcomes:
            if outcome.run_seconds is None:
                continue
            count, total = sums.get(outcome.task, (0, 0.0))
            sums[outcome.task] = (count + 1, total + outcome.run_seconds)
        for task, (count, total) in sums.items():
            self._runs[task] = self._runs.get(task, 0) + count
            before = self._seconds.get(task)
            weight = 1.0 if before is None else 1.0 - (1.0 - _MEMORY) ** count
            self._seconds[task] = (before or 0.0) + weight * (total / count - (before or 0.0))

    def slower_than_thought(self, runs: Iterable[tuple[str, float]]) -> None:
        """Others had to wait for these runs, which are not over yet: (task, seconds so far)."""
        self.ahead = 0
        for task, seconds in runs:
            self._seconds[task] = max(seconds, self._seconds.get(task, 0.0))

    def cost(self, task: str) -> float:
        """The seconds that a job of this task may take; infinite unless it is known to be quick.

        Few runs prove little: after n of them it counts as no shorter than the horizon / n. Without that, one
        run that took no time let 70 jobs of 50 ms be prefetched before the second had ended.
        """
        seconds = self._seconds.get(task, math.inf)
        if seconds > HORIZON:
            return math.inf
        return max(seconds, HORIZON / self._runs.get(task, 1))

    def wanted(self, slow: int, quick: int) -> int:
        """How many to claim, with so many slow and quick runs in flight."""
        free = self.slots - slow
        return max(0, free + self.ahead - quick) if free > 0 else 0

    def is_short(self, slow: int, quick: int) -> bool:
        """True if more are worth an exchange of their own: a slot is idle, or half the prefetched ran."""
        return slow + quick < self.slots or 2 * quick < self.slots - slow + self.ahead

    def fitting(self, costs: Sequence[float], slow: int) -> int:
        """How many of these claims, in their order, may stay here; the others belong to other workers."""
        for number, cost in enumerate(costs):
            if math.isinf(cost):
                slow += 1
                if slow > self.slots:
                    return number
        return len(costs)

    def adapt(self, costs: Sequence[float], wanted: int) -> None:
        """Claim more or less ahead next time, by what came this time."""
        if not costs:
            return
        if any(map(math.isinf, costs)):
            self.ahead = 0
        elif len(costs) == wanted:
            cost = max(1e-6, sum(costs) / len(costs))
            side_by_side = 1 if self._in_threads and cost <= TINY_SECONDS else self.slots
            worth = HORIZON * side_by_side / cost
            self.ahead = int(min(self._most, worth, 2 * self.ahead + self.slots))
