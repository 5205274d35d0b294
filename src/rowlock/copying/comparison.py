"""The numbers of both sides of a copy, compared; reads only."""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.copying.numbers import Range
from rowlock.copying.progress import CopyState
from rowlock.copying.report import Count
from rowlock.job import State
from rowlock.stores.sql.session import Session

WHOLE = (Range(0, 2**63 - 2, 0),)


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
