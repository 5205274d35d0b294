"""Collects outcomes until the worker's next exchange, and adds them up for `rowlock_minutes`.

Pools put in, the worker's loop takes out; it never touches the store itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import msgspec

from rowlock.job import Ending, Minute, Outcome, Report

_MINUTES_EVERY = 1.0
_COLUMN = {
    Ending.COMPLETED: "completed",
    Ending.FAILED: "failed",
    Ending.RETRY: "retried",
    Ending.CANCELLED: "cancelled",
    Ending.RELEASED: "released",
}


class Tally(msgspec.Struct):
    """What a worker has done so far."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    released: int = 0
    lost: int = 0


class Batch(msgspec.Struct, frozen=True):
    """What is to be written at the next exchange."""

    outcomes: Sequence[Outcome] = ()
    reports: Sequence[Report] = ()
    minutes: Sequence[Minute] = ()


class Finisher:
    """The outcomes, last reports and minutes that wait to be written."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._outcomes: deque[tuple[Outcome, Report | None]] = deque()
        self._sums: dict[tuple[int, str, str], dict[str, float]] = {}
        self._minutes_at = 0.0
        self._retry: Batch | None = None
        self._written: deque[Outcome] = deque()  # by their tasks' own transactions

    def add(self, outcome: Outcome, report: Report | None) -> None:
        """Take in what a run came to, with what it said last; safe from any thread."""
        if outcome.written:
            self._written.append(outcome)
        else:
            self._outcomes.append((outcome, report))

    @property
    def waiting(self) -> bool:
        """True while outcomes are not durable yet."""
        return bool(self._outcomes) or bool(self._retry and self._retry.outcomes)

    @property
    def keys(self) -> set[tuple[int, int]]:
        """The claims whose outcomes are not durable yet."""
        retried = self._retry.outcomes if self._retry else ()
        return {(one.id, one.claim) for one in (*retried, *(outcome for outcome, _ in list(self._outcomes)))}

    def take(self, worker: str, flush: bool = False) -> Batch:
        """What is to be written now; call `delivered` when it is, else it is taken again."""
        while self._written:
            outcome = self._written.popleft()
            if outcome.lost:
                self.tally.lost += 1
            else:
                self._count(outcome)
        if self._retry is not None:
            return self._retry
        pairs = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
        minutes: list[Minute] = []
        # Rates are not worth a page write per job: they are added up here and written once a second.
        if self._sums and (flush or time.monotonic() >= self._minutes_at):
            minutes = [
                msgspec.convert(
                    {"minute": minute, "worker": worker, "queue": queue, "task": task, **sums}, Minute
                )
                for (minute, queue, task), sums in self._sums.items()
            ]
        batch = Batch([outcome for outcome, _ in pairs], [report for _, report in pairs if report], minutes)
        if pairs or minutes:  # an empty one is nothing to try again, and must not hide what comes next
            self._retry = batch
        return batch

    def delivered(self, lost: Sequence[Outcome]) -> None:
        """The last batch is durable, but for the outcomes whose claims were lost."""
        batch, self._retry = self._retry, None
        if batch is None:
            return
        if batch.minutes:
            self._sums.clear()
            self._minutes_at = time.monotonic() + _MINUTES_EVERY
        late = {(outcome.id, outcome.claim) for outcome in lost}
        for outcome in batch.outcomes:
            if (outcome.id, outcome.claim) in late:
                self.tally.lost += 1
            else:
                self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        column = _COLUMN[outcome.ending]
        setattr(self.tally, column, getattr(self.tally, column) + 1)
        sums = self._sums.setdefault((int(time.time() // 60), outcome.queue, outcome.task), {})
        sums[column] = sums.get(column, 0) + 1
        sums["run_seconds"] = sums.get("run_seconds", 0.0) + outcome.run_seconds
        sums["wait_seconds"] = sums.get("wait_seconds", 0.0) + outcome.wait_seconds
