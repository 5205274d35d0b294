"""The runs that one worker has in hand, from the claim to the outcome, and the pools that run them.

Safe from any thread; it never touches the store.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rowlock.endings import Event, after_error, ended, timed_out
from rowlock.errors import RunTimedOut
from rowlock.execution.context import JobContext
from rowlock.job import Claim, Outcome, Report
from rowlock.pools.base import Ended, Pool, Run
from rowlock.retry import DEFAULT, Retry
from rowlock.stores.base import Store
from rowlock.task import Task
from rowlock.worker.prefetch import HORIZON, Prefetch, may_wait

log = logging.getLogger("rowlock.worker")

Key = tuple[int, int]  # job, claim
_LONGEST_IN_LINE = 10 * HORIZON  # seconds after which a job that has not begun is left to other workers


class Host(Protocol):
    """What the runs need of their app."""

    @property
    def store(self) -> Store:
        """The store that holds the jobs."""
        ...

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The task of that name or alias."""
        ...


class PoolState:
    """One pool with its places, and what it has in hand."""

    def __init__(self, pool: Pool, slots: int, prefetch: int | None) -> None:
        self.pool = pool
        self.slots = slots
        self.prefetch = Prefetch(slots, prefetch)
        self.slow = self.quick = 0

    def count(self, run: Run, change: int) -> None:
        """One more or one less in hand."""
        if math.isinf(run.cost):
            self.slow += change
        else:
            self.quick += change


class Runs:
    """All runs of one worker; each ends in one call of `ended(outcome, report)`.

    After a run that ended by itself `look(here)` is called: with `here`, the thread it ran in may be used.
    """

    def __init__(
        self,
        app: Host,
        pool_of: Callable[[Task[..., Any] | None], str],
        ended: Callable[[Outcome, Report | None], None],
        look: Callable[[bool], None],
        grace: float,
    ) -> None:
        self._app = app
        self.pool_states: Mapping[str, PoolState] = {}  # given before the first claim comes
        self._pool_of = pool_of
        self._ended = ended
        self._look = look
        self._grace = grace
        self._lock = threading.Lock()
        self._limited: set[Run] = set()
        self._look_at = 0.0
        self.reporting = threading.Lock()  # held while reports are taken and written
        self.in_flight: dict[Key, Run] = {}
        self.pausing: set[str] = set()  # queues that a run has asked to pause, until that is written

    def all_runs(self) -> list[Run]:
        """What is in hand at this moment."""
        return list(self.in_flight.values())

    # -- how much to claim -----------------------------------------------------------------------

    def wanted(self) -> int:
        """How many jobs to claim now."""
        return min(one.prefetch.wanted(one.slow, one.quick) for one in self.pool_states.values())

    def is_short(self) -> bool:
        """True if more jobs are needed before outcomes come, with which they can be claimed."""
        return self.wanted() > 0 and any(
            one.prefetch.is_short(one.slow, one.quick) for one in self.pool_states.values()
        )

    def soon_over(self) -> bool:
        """True if all that is in hand is quick, by experience, and none takes longer than that this time."""
        since = time.monotonic() - _LONGEST_IN_LINE
        return all(
            run.started > since and run.claim.task in self.pool_states[run.pool_name].prefetch.quick
            for run in self.all_runs()
            if not run.context.lost
        )

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Take note of how long runs took."""
        for one in self.pool_states.values():
            one.prefetch.learn(outcomes)

    # -- from the claim to the outcome -----------------------------------------------------------

    def take(self, claims: Sequence[Claim], wanted: int) -> list[Claim]:
        """Hand the claims to their pools; returns those that belong to other workers."""
        left: list[Claim] = []
        if self.pausing:  # claimed before the pause was written
            left = [claim for claim in claims if claim.queue in self.pausing]
            claims = [claim for claim in claims if claim.queue not in self.pausing]
        if not claims:
            return left
        runs = self._runs_of(claims)
        fit = len(runs)
        for name, pool_state in self.pool_states.items():
            costs = [
                run.cost if run.pool_name == name else 0.0 for run in runs
            ]  # elsewhere it costs nothing here
            fit = min(fit, pool_state.prefetch.fitting(costs, pool_state.slow))
            pool_state.prefetch.adapt(costs, wanted)
        batches: dict[str, list[Run]] = {}
        with self._lock:
            for run in runs[:fit]:
                batches.setdefault(run.pool_name, []).append(run)
                self.pool_states[run.pool_name].count(run, 1)
                self.in_flight[run.claim.id, run.claim.claim] = run
                if run.context.timeout is not None:
                    self._limited.add(run)
        for name, batch in batches.items():
            self.pool_states[name].pool.submit(batch)
        return [*claims[fit:], *left]

    def _runs_of(self, claims: Sequence[Claim]) -> list[Run]:
        known: dict[str, tuple[Task[..., Any] | None, str, float]] = {}  # most claims are of few tasks
        store, runs = self._app.store, []
        for claim in claims:
            if claim.task not in known:
                found = self._app.find_task(claim.task)
                pool_name = self._pool_of(found)
                if (
                    pool_name not in self.pool_states
                ):  # a task that nobody here knows: any pool can give it back
                    pool_name = next(iter(self.pool_states))
                seconds = self.pool_states[pool_name].prefetch.cost(claim.task) if found else 0.0
                known[claim.task] = (found, pool_name, seconds)
            task, pool_name, cost = known[claim.task]
            timeout = None if task is None else task.timeout
            context = JobContext(claim, timeout, store=store, reporting=self.reporting)
            run = Run(claim, task, context, cost if may_wait(claim, task) else math.inf)
            run.pool_name = pool_name
            runs.append(run)
        return runs

    def done(self, ended: Ended) -> None:
        """Runs of one pool have ended; called by it, from any thread."""
        settled = None
        for run, outcome in ended:
            if self._settle(run):
                settled = run
                self._put_down(run, outcome)
            else:
                log.warning("%s ended after it was given up; dropped", run.claim.title)
        if settled is not None:
            self._look(self.pool_states[settled.pool_name].pool.may_wait)

    def _settle(self, run: Run) -> bool:
        """True for the first who decides on this run."""
        with self._lock:
            if run.settled:
                return False
            run.settled = True
            self.pool_states[run.pool_name].count(run, -1)
            return True

    def _put_down(self, run: Run, outcome: Outcome) -> None:
        if outcome.pause:  # what was claimed ahead of its queue is not to begin; the rest comes again at once
            self.pausing.add(run.claim.queue)
            self.take_back_silently()
        report = None
        if run.context.spoke:
            with self.reporting:  # what the heartbeat has in hand is written before the claim ends
                report = run.context.take_report()
        if outcome.run_seconds is None and (began := run.context.began) is not None:
            outcome = msgspec.structs.replace(outcome, run_seconds=time.monotonic() - began)
        self._ended(outcome, report)
        self.in_flight.pop((run.claim.id, run.claim.claim), None)
        if run.context.timeout is not None:
            self._limited.discard(run)

    # -- what takes too long ---------------------------------------------------------------------

    def give_up_on_stuck_runs(self) -> None:
        """Settle the runs that did not stop within the grace after their timeout."""
        moment = time.monotonic()
        for run in list(self._limited):
            deadline = run.context.deadline
            if deadline is None or moment < deadline + self._grace or not self._settle(run):
                continue
            error = RunTimedOut(timed_out(run.context.timeout or 0.0, stopped=False))
            log.error("%s: %s; it is abandoned", run.claim.title, error)
            self.pool_states[run.pool_name].pool.abandon(run)
            run.context.revoke()
            asked = run.context.cancelled
            self._put_down(run, after_error(run.claim, error, _retry(run), cancel_requested=asked))

    def time_to_next_deadline(self, longest: float) -> float:
        """Seconds until a run has to be given up, or a line has to be looked at."""
        if any(one.quick for one in self.pool_states.values()):
            longest = min(longest, HORIZON)
        deadlines = [
            deadline for run in list(self._limited) if (deadline := run.context.deadline) is not None
        ]
        if not deadlines:
            return longest
        return min(longest, max(0.01, min(deadlines) + self._grace - time.monotonic()))

    @property
    def stuck(self) -> bool:
        """True if a whole pool is held by runs that were given up."""
        return any(one.pool.stuck >= one.slots for one in self.pool_states.values())

    def leave_what_waits_too_long(self) -> list[Claim]:
        """The claims that waited for a place longer than they should: others may be idle."""
        left: list[Claim] = []
        moment = time.monotonic()
        if moment < self._look_at:
            return left
        self._look_at = moment + HORIZON
        for name, pool_state in self.pool_states.items():
            if not pool_state.quick:
                continue
            runs = [run for run in self.all_runs() if run.pool_name == name]
            begun = [run for run in runs if run.context.began is not None]
            late = any(run.context.began is None and moment - run.started > _LONGEST_IN_LINE for run in runs)
            pool_state.pool.submit(())  # one that was quick may have become slow: others can help
            if late:
                pool_state.prefetch.slower_than_thought(
                    (run.claim.task, moment - (run.context.began or moment)) for run in begun
                )
                left += self.take_back(pool_state)
        return left

    def take_back(self, *pool_states: PoolState) -> list[Claim]:
        """The claims that have not begun; they will not begin here any more."""
        waiting = [run for one in pool_states or self.pool_states.values() for run in one.pool.take_back()]
        claims = []
        for run in waiting:
            if self._settle(run):
                self.in_flight.pop((run.claim.id, run.claim.claim), None)
                self._limited.discard(run)
                claims.append(run.claim)
        return claims

    # -- what runs are told ----------------------------------------------------------------------

    def cancelled(self, keys: Iterable[Key]) -> None:
        """Somebody asked to cancel these."""
        for key in keys:
            run = self.in_flight.get(key)
            if run is not None and not run.context.cancelled:
                run.context.cancelled = True
                self.pool_states[run.pool_name].pool.cancel(run)

    def lose(self) -> None:
        """The worker was declared dead: its runs are told, and what they come to will be refused."""
        for run in self.all_runs():
            run.context.lost = True

    def give_back(self) -> None:
        """End everything that is in hand: free of charge, unless it may be run only once."""
        self.take_back_silently()
        for run in self.all_runs():
            if self._settle(run):
                run.context.lost = True  # it may still be running: it is told at its next call
                began, asked = run.context.began is not None, run.context.cancelled
                outcome = ended(run.claim, Event.STOPPED, _retry(run), began=began, cancel_requested=asked)
                self._put_down(run, outcome)

    def take_back_silently(self) -> None:
        """What has not begun goes back as it came."""
        for claim in self.take_back():
            self._ended(ended(claim, Event.RELEASED, DEFAULT), None)

    def reports(self) -> list[tuple[JobContext, Report]]:
        """What the runs have said since the last time; `reporting` must be held."""
        return [
            (run.context, report)
            for run in self.all_runs()
            if run.context.spoke and (report := run.context.take_report())
        ]

    # -- where it stands -------------------------------------------------------------------------

    def tasks(self) -> list[str]:
        """The tasks of the runs, for log lines."""
        return [run.claim.task for run in self.all_runs()]

    def stacks(self) -> str:
        """Where every run stands, for people."""
        found = {run: text for one in self.pool_states.values() for run, text in one.pool.where().items()}
        moment = time.monotonic()
        parts = []
        for run in self.all_runs():
            began = run.context.began
            since = "has not begun" if began is None else f"for {moment - began:.1f} s"
            head = f"{run.claim.title}, claim {run.claim.claim}, {since}"
            parts.append(f"{head}\n{found.get(run, '')}".rstrip())
        return "\n\n".join(parts) or "nothing runs"

    def facts(self) -> dict[str, Any]:
        """How the worker chooses, for `rowlock workers`."""
        return {
            name: {"slots": one.slots, "ahead": one.prefetch.ahead, "seconds": one.prefetch.shown()}
            for name, one in self.pool_states.items()
        }

    # -- the pools -------------------------------------------------------------------------------

    def open(self) -> None:
        """Get every pool ready; raises if one cannot."""
        for one in self.pool_states.values():
            one.pool.start()

    def close(self) -> None:
        """Let the pools go."""
        for one in self.pool_states.values():
            one.pool.close()


def _retry(run: Run) -> Retry:
    return run.task.retry if run.task else DEFAULT
