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
        self._sums: dict[tuple[int, str, str, Ending], tuple[int, float, float]] = {}
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
        batch = self._retry  # another thread may be about to take it away
        retried = batch.outcomes if batch else ()
        return {(one.id, one.claim) for one in (*retried, *(outcome for outcome, _ in list(self._outcomes)))}

    def count_written(self) -> list[Outcome]:
        """Count the runs that were written by their own transactions; returns them."""
        written = [self._written.popleft() for _ in range(len(self._written))]
        self.tally.lost += sum(outcome.lost for outcome in written)
        self._count([outcome for outcome in written if not outcome.lost])
        return written

    def take(self, worker: str, flush: bool = False) -> Batch:
        """What is to be written now; call `delivered` when it is, else it is taken again."""
        if self._retry is not None:
            return self._retry
        pairs = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
        minutes: list[Minute] = []
        # Rates are not worth a page write per job: they are added up here and written once a second.
        if self._sums and (flush or time.monotonic() >= self._minutes_at):
            minutes = self._minutes(worker)
        batch = Batch([outcome for outcome, _ in pairs], [report for _, report in pairs if report], minutes)
        if pairs or minutes:  # an empty one is nothing to try again, and must not hide what comes next
            self._retry = batch
        return batch

    def delivered(self, lost: Sequence[Outcome], refused: Sequence[Outcome] = ()) -> None:
        """The last batch is durable, but for the outcomes whose claims were lost; refused ones failed."""
        batch, self._retry = self._retry, None
        if batch is None:
            return
        if batch.minutes:
            self._sums.clear()
            self._minutes_at = time.monotonic() + _MINUTES_EVERY
        self.tally.lost += len(lost)
        late = {(outcome.id, outcome.claim) for outcome in lost}
        failed = {(outcome.id, outcome.claim): outcome for outcome in refused}
        kept = [one for one in batch.outcomes if (one.id, one.claim) not in late]
        self._count([failed.get((one.id, one.claim), one) for one in kept] if failed else kept)

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        minute = int(time.time() // 60)
        sums = self._sums
        for outcome in outcomes:
            key = (minute, outcome.queue, outcome.task, outcome.ending)
            count, ran, waited = sums.get(key, (0, 0.0, 0.0))
            sums[key] = (count + 1, ran + (outcome.run_seconds or 0.0), waited + outcome.wait_seconds)
            column = _COLUMN[outcome.ending]
            setattr(self.tally, column, getattr(self.tally, column) + 1)

    def _minutes(self, worker: str) -> list[Minute]:
        rows: dict[tuple[int, str, str], dict[str, float]] = {}
        for (minute, queue, task, ending), (count, ran, waited) in self._sums.items():
            row = rows.setdefault((minute, queue, task), {"run_seconds": 0.0, "wait_seconds": 0.0})
            row[_COLUMN[ending]] = count
            row["run_seconds"] += ran
            row["wait_seconds"] += waited
        return [
            msgspec.convert({"minute": minute, "worker": worker, "queue": queue, "task": task, **row}, Minute)
            for (minute, queue, task), row in rows.items()
        ]
