"""The runs of one worker, from the claim to the outcome: each is settled once.

Safe from any thread. It touches neither the store nor the pools: pools end their runs here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rowlock.claim_outcomes import after_error, ended, timed_out
from rowlock.endings import Event
from rowlock.errors import RunTimedOut
from rowlock.execution.context import JobContext
from rowlock.job import ClaimKey, Outcome, Report
from rowlock.pools.base import Run
from rowlock.stores.base import Bell
from rowlock.worker.unwritten_outcomes import Unwritten

log = logging.getLogger("rowlock.worker")


class Load:
    """How many runs one pool has: those known to be quick, and all others."""

    __slots__ = ("quick", "slow")

    def __init__(self) -> None:
        self.slow = self.quick = 0


class Runs:
    """All runs of one worker; what they come to waits in `unwritten` for the next exchange."""

    def __init__(self, unwritten: Unwritten, bell: Bell, timeout_grace: float) -> None:
        self._unwritten = unwritten
        self._grace = timeout_grace
        self._bell = bell
        self._lock = threading.Lock()
        self._limited: set[Run] = set()  # those with a timeout
        self.reporting = threading.Lock()  # held while reports are taken and written
        self.in_flight: dict[ClaimKey, Run] = {}
        self.load: defaultdict[str, Load] = defaultdict(Load)  # by pool
        self.pausing: set[str] = set()  # queues that a run has asked to pause, until that is written

    def all_runs(self) -> list[Run]:
        """The runs in flight at this moment."""
        return list(self.in_flight.values())

    # -- from the claim to the outcome -----------------------------------------------------------

    def admit(self, runs: Iterable[Run]) -> None:
        """Count these as in flight; their pools get them next."""
        with self._lock:
            for run in runs:
                self._count(run, 1)
                self.in_flight[run.claim.id, run.claim.claim] = run
                if run.context.timeout is not None:
                    self._limited.add(run)

    def ended_before_start(self, run: Run) -> Outcome | None:
        """The outcome of a run that must not begin any more; pools ask before they begin one."""
        context, pausing = run.context, self.pausing
        if not (context.cancelled or context.lost or (pausing and run.claim.queue in pausing)):
            return None
        asked, lost = context.cancelled, context.lost
        return ended(run.claim, Event.RELEASED, run.retry, began=False, cancel_requested=asked, lost=lost)

    def settle(self, run: Run, outcome: Outcome, *, ring: bool = True) -> bool:
        """End a run; False if somebody else has decided on it. Every run of every pool ends by this call.

        The bell tells the loop to write the outcome; without `ring` the caller sees to that.
        """
        with self._lock:
            first, run.settled = not run.settled, True
            if first:
                self._count(run, -1)
        if not first:
            log.warning(
                "%s ended after its outcome had been decided; this result is discarded", run.claim.title
            )
            return False
        if outcome.pause:  # what was prefetched from its queue is not to begin
            self.pausing.add(run.claim.queue)
        report = None
        if run.context.has_report:
            with self.reporting:  # what the heartbeat has taken is written before the claim ends
                report = run.context.take_report()
        if outcome.run_seconds is None and (began := run.context.began) is not None:
            outcome = msgspec.structs.replace(outcome, run_seconds=time.monotonic() - began)
        # In this order: at every moment it is in one of them, or `lost_claims.py` would take it for lost.
        self._unwritten.add(outcome, report)
        self.in_flight.pop((run.claim.id, run.claim.claim), None)
        if run.context.timeout is not None:
            self._limited.discard(run)
        if ring:
            self._bell.put(None)
        return True

    def _count(self, run: Run, change: int) -> None:
        load = self.load[run.pool_name]
        if run.is_quick:
            load.quick += change
        else:
            load.slow += change

    def take_back(self, waiting: Sequence[Run]) -> None:
        """These have not begun, and will not: they go back as they came."""
        if waiting:
            log.debug("%d jobs go back that have not begun", len(waiting))
        for run in waiting:
            self.settle(run, ended(run.claim, Event.RELEASED, run.retry), ring=False)

    def give_back_all(self) -> None:
        """End everything that is in flight: free of charge, unless it may be run only once."""
        for run in self.all_runs():
            context = run.context
            began, asked = context.began is not None, context.cancelled
            outcome = ended(run.claim, Event.STOPPED, run.retry, began=began, cancel_requested=asked)
            if self.settle(run, outcome, ring=False):
                context.lost = True  # it may still be running: it is told at its next call

    # -- what takes too long ---------------------------------------------------------------------

    def give_up_late_ones(self) -> list[Run]:
        """Settle the runs that did not stop within the grace after their timeout; returns them."""
        moment, given_up = time.monotonic(), []
        for run in list(self._limited):
            deadline = run.context.deadline
            if deadline is None or moment < deadline + self._grace or run.settled:
                continue
            error = RunTimedOut(timed_out(run.context.timeout or 0.0, stopped=False))
            outcome = after_error(run.claim, error, run.retry, cancel_requested=run.context.cancelled)
            if self.settle(run, outcome, ring=False):
                log.error("%s: %s; it is abandoned", run.claim.title, error)
                given_up.append(run)
        return given_up

    def next_deadline(self) -> float:
        """The moment at which the first run has to be given up."""
        deadlines = (run.context.deadline or math.inf for run in list(self._limited))
        return min(deadlines, default=math.inf) + self._grace

    # -- what runs are told ----------------------------------------------------------------------

    def cancel(self, keys: Iterable[ClaimKey]) -> list[Run]:
        """Somebody asked to cancel these; returns those that did not know yet, for their pools."""
        told = []
        for key in keys:
            run = self.in_flight.get(key)
            if run is not None and not run.context.cancelled:
                run.context.cancelled = True
                told.append(run)
        return told

    def lose(self) -> None:
        """The worker was declared dead: its runs are told, and what they come to will be refused."""
        for run in self.all_runs():
            run.context.lost = True

    def reports(self) -> list[tuple[JobContext, Report]]:
        """What the runs have reported since the last time; `reporting` must be held."""
        return [
            (run.context, report)
            for run in self.all_runs()
            if run.context.has_report and (report := run.context.take_report())
        ]

    def stacks(self, found: Mapping[Run, str]) -> str:
        """Where every run stands, for people."""
        moment = time.monotonic()
        parts = []
        for run in self.all_runs():
            began = run.context.began
            since = "has not begun" if began is None else f"for {moment - began:.1f} s"
            head = f"{run.claim.title}, claim {run.claim.claim}, {since}"
            parts.append(f"{head}\n{found.get(run, '')}".rstrip())
        return "\n\n".join(parts) or "nothing runs"
