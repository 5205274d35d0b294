"""What a copy came to: the numbers of both sides, and what arrived otherwise than it left.

Reads both sides to compare them; writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.copying.numbers import Range
from rowlock.copying.progress import Conflict, CopyState
from rowlock.job import State
from rowlock.record import Record
from rowlock.stores.sql.session import Session

WHOLE = (Range(0, 2**63 - 2, 0),)


class Count(Record, frozen=True):
    """One line of the comparison."""

    what: str
    source: int
    expected: int  # on the target
    target: int

    @property
    def agrees(self) -> bool:
        """True if the target has what it should."""
        return self.target == self.expected


class CopyReport(Record, frozen=True, kw_only=True):
    """What a copy came to."""

    source: str
    target: str
    moved: bool  # the source refuses its jobs from now on; False: it was kept usable
    resumed: bool
    ids_kept: bool
    ids: list[Range]  # which ids of the source are which on the target
    counts: list[Count]
    agrees: bool
    target_in_use: bool  # workers on the target may have changed its numbers already
    released: int  # jobs that ran on the source, and whose claims ended
    conflicts: list[Conflict]  # the first of them
    conflicts_total: int
    settings_kept: list[str]
    seconds: float

    @property
    def is_good(self) -> bool:
        """True if the target has what it should, or its workers may have changed that already."""
        return self.agrees or self.target_in_use


class CopyProgress(Record, frozen=True):
    """How far a copy has come."""

    phase: str
    done: int
    total: int


def compared(source: Session, target: Session, state: CopyState) -> list[Count]:
    """Count on both sides what was copied."""
    there = [Range(one.first + one.shift, one.last + one.shift, 0) for one in state.ranges]
    left, right = counts_in(source, WHOLE), counts_in(target, there)
    expected = state.expected(left)
    counts = [
        Count(name, left.get(name, 0), expected.get(name, 0), right.get(name, 0)) for name in map(str, State)
    ]
    added = {"history": state.released + state.conflicts_total}
    for table in ("history", "logs"):
        here = _rows_of(table, source, WHOLE)
        counts.append(Count(table, here, here + added.get(table, 0), _rows_of(table, target, there)))
    return counts


def counts_in(db: Session, ranges: Sequence[Range]) -> dict[str, int]:
    """How many jobs with these numbers are in which state."""
    counts: dict[str, int] = {}
    for one in ranges:
        for state, number in db.rows("count_states", beyond=one.first - 1, before=one.last + 1):
            counts[state] = counts.get(state, 0) + number
    return counts


def _rows_of(table: str, db: Session, ranges: Sequence[Range]) -> int:
    """How many rows hang on jobs with these numbers."""
    name = f"count_copied_{table}"
    return sum(int(db.row(name, beyond=one.first - 1, before=one.last + 1)[0]) for one in ranges)
