"""How far a copy has come, as the target's own database knows it; written with every batch.

An interrupted copy is found again by the install id of its source.
"""

from __future__ import annotations

import msgspec

from rowlock.copying.numbers import Numbers, Range
from rowlock.record import Record

MOST_CONFLICTS_NAMED = 100


class Conflict(Record, frozen=True):
    """A job that arrived cancelled, because another job of the target holds its unique key."""

    source_id: int
    target_id: int
    task: str
    unique_key: str
    holder: int


class CopyState(msgspec.Struct, kw_only=True):
    """One copy, from its first batch on."""

    source: str  # its install id
    address: str  # of the source, for people
    started_at: float
    ranges: list[Range] = []
    # The last id of the source that was looked at for finished jobs, ahead of the rest.
    finished_up_to: int = 0
    copied_up_to: int = 0  # the last id of the source up to which all is settled
    done: bool = False
    # State in the source -> state on arrival -> jobs, where they differ.
    arrivals: dict[str, dict[str, int]] = {}
    released: int = 0  # jobs that ran when they were copied; each has one line of history more
    conflicts: list[Conflict] = []
    conflicts_total: int = 0
    settings_kept: list[str] = []  # queues that had settings of their own on the target

    @property
    def numbers(self) -> Numbers:
        """Which number of the source is which of the target."""
        return Numbers(self.ranges)

    def arrived(self, before: str, after: str) -> None:
        """Count a job that arrived in another state."""
        counts = self.arrivals.setdefault(before, {})
        counts[after] = counts.get(after, 0) + 1

    def expected(self, counts: dict[str, int]) -> dict[str, int]:
        """How many jobs the target must have in which state, if the source has these."""
        expected = dict(counts)
        for before, afters in self.arrivals.items():
            for after, number in afters.items():
                expected[before] = expected.get(before, 0) - number
                expected[after] = expected.get(after, 0) + number
        return {state: number for state, number in expected.items() if number}
