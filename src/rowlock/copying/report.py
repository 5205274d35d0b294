"""What a copy came to: the numbers of both sides, and what arrived otherwise than it left."""

from __future__ import annotations

from rowlock.copying.numbers import Range
from rowlock.copying.progress import Conflict
from rowlock.record import Record


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


class CopyProgress(Record, frozen=True):
    """How far a copy has come."""

    phase: str
    done: int
    total: int
