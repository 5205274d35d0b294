"""Adds up what a worker has done: its tally, and the sums per minute that `rowlock stats` reads.

Counts only; the exchanger writes the sums.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from rowlock.job import Ending, Outcome
from rowlock.monitoring import Minute

_MINUTES_EVERY_SECONDS = 1.0
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


class Counts:
    """The tally, and the sums per minute, queue and task that are not written yet."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a worker does with each of its runs."""
        self.tally = Tally()
        self._sums: defaultdict[tuple[int, str, str], defaultdict[str, float]] = defaultdict(
            lambda: defaultdict(int)
        )
        self._minutes_at = 0.0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count outcomes that are durable."""
        minute = int(time.time() // 60)
        for outcome in outcomes:
            column, row = _COLUMN[outcome.ending], self._sums[minute, outcome.queue, outcome.task]
            row[column] += 1
            row["run_seconds"] += outcome.run_seconds or 0.0
            row["wait_seconds"] += outcome.wait_seconds
            setattr(self.tally, column, getattr(self.tally, column) + 1)

    def minutes(self, worker: str, flush: bool) -> list[Minute]:
        """The sums to be written now: rates are not worth a page write per job, so about once a second."""
        if not self._sums or not (flush or time.monotonic() >= self._minutes_at):
            return []
        return [
            msgspec.convert({"minute": minute, "worker": worker, "queue": queue, "task": task, **row}, Minute)
            for (minute, queue, task), row in self._sums.items()
        ]

    def minutes_written(self) -> None:
        """The sums are durable."""
        self._sums.clear()
        self._minutes_at = time.monotonic() + _MINUTES_EVERY_SECONDS
