"""Outcomes on their way from the runs to the store.

Pools put in, from any thread; the exchanger takes out and writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from rowlock.job import ClaimKey, Outcome, Report
from rowlock.monitoring import Minute


class Batch(msgspec.Struct, frozen=True):
    """What is to be written at the next exchange."""

    outcomes: Sequence[Outcome] = ()
    reports: Sequence[Report] = ()
    minutes: Sequence[Minute] = ()

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.reports or self.minutes)


class Unwritten:
    """The outcomes of ended runs that are not durable yet."""

    def __init__(self) -> None:
        self._ended: deque[tuple[Outcome, Report | None]] = deque()
        self._written: deque[Outcome] = deque()  # by their tasks' own transactions
        self._batch: Batch | None = None  # given to an exchange, until that is known to be written

    def add(self, outcome: Outcome, report: Report | None = None) -> None:
        """What a run came to, with its last report."""
        if outcome.written:
            self._written.append(outcome)
        else:
            self._ended.append((outcome, report))

    def __bool__(self) -> bool:
        return bool(self._ended) or bool(self._batch and self._batch.outcomes)

    def keys(self) -> set[ClaimKey]:
        """The claims whose outcomes are not durable yet."""
        tried = self._batch.outcomes if self._batch else ()
        return {(one.id, one.claim) for one in (*tried, *(outcome for outcome, _ in list(self._ended)))}

    def take_written(self) -> list[Outcome]:
        """The outcomes that were written by their tasks' own transactions since the last call."""
        return [self._written.popleft() for _ in range(len(self._written))]

    def take(self, minutes: Sequence[Minute]) -> Batch:
        """What is to be written now, the same again until `delivered` is called."""
        if self._batch is not None:
            return self._batch
        pairs = [self._ended.popleft() for _ in range(len(self._ended))]
        batch = Batch([outcome for outcome, _ in pairs], [report for _, report in pairs if report], minutes)
        self._batch = batch or None  # an empty one must not hide what comes next
        return batch

    def delivered(self) -> None:
        """The last batch is durable."""
        self._batch = None
