"""Which number of the source is which number of the target: ranges, each shifted by the same distance.

Ids and positions are drawn from one sequence, so one map serves both. Knows no database.
"""

from __future__ import annotations

import msgspec


class Range(msgspec.Struct, frozen=True):
    """Numbers of the source, and how far they are moved."""

    first: int
    last: int
    shift: int


class Numbers:
    """The ranges that are reserved on the target so far, in rising order and without gaps.

    The list is that of the copy's state, so that what is reserved is saved with it.
    """

    def __init__(self, ranges: list[Range]) -> None:
        self.ranges = ranges

    @property
    def last(self) -> int:
        """The highest number of the source that has a number on the target."""
        return self.ranges[-1].last if self.ranges else 0

    @property
    def kept(self) -> bool:
        """True if every number is the same on both sides."""
        return all(not one.shift for one in self.ranges)

    def __call__(self, number: int) -> int:
        """The number on the target."""
        for one in self.ranges:
            if one.first <= number <= one.last:
                return number + one.shift
        raise LookupError(f"no number was reserved for {number}")

    def extend(self, first: int, last: int, drawn: int, keep: bool) -> int:
        """Reserve `first` to `last`, when `drawn` is the last number that the target has given away.

        With `keep` the numbers stay as they are. Returns the last number of the target that is reserved then.
        """
        if self.ranges:  # what is reserved is drawn, whatever the sequence says
            drawn = max(drawn, self.ranges[-1].last + self.ranges[-1].shift)
        if self.ranges and drawn == self.ranges[-1].last + self.ranges[-1].shift:
            before = self.ranges.pop()  # nobody else has drawn a number since: the range goes on
            first, shift = before.first, before.shift
        else:
            shift = 0 if keep else drawn - first + 1
        self.ranges.append(Range(first, last, shift))
        return max(drawn, last + shift)
