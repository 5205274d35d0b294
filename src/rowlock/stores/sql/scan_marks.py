"""Where a worker's next scan of a queue begins, while many jobs of tasks that it leaves out lie ahead.

Knows no SQL: `claiming.py` fills the marks and writes them into claims. Only the store of jobs knows them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

from rowlock.strategies import Ordered, Strategy

SLOW_SECONDS = 0.005  # a claim that takes so long steps over too many jobs of others
_SWEEP_EVERY_SECONDS = 1.0  # how long a job that came back before a mark may stay unseen
_SWEEPS_SHARE = 0.1  # of the time, at most: a longer sweep is made less often
_ROUND_TRIP_HOLDS_SECONDS = 60.0  # then it counts as none, so that one that met a stall is measured again

Part = dict[str, int]  # of one level: jobs at positions above `low` and up to `high` are looked at
Head = tuple[int, int | None, int]  # a level, its first position that is for this worker, its last of all
_LAST_POSITION = 2**63 - 1


class Marks:
    """One worker's marks for one kind of request: in each queue and level, how far there is nothing for it.

    Used only after a claim has been slow, so that other claims stay as they are. A mark can delay a job, and
    never by more than the time between two sweeps; it is no promise about what lies before it.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, bool], dict[int, list[Part]]] = {}  # by queue and direction, by level
        self._scanned = 0.0  # seconds of this claim, or of this sweep
        self._round_trip = 0.0  # seconds on the way to the server and back, which are not a scan's,
        self._round_trip_until = 0.0  # until then
        self._sweep_at = 0.0
        self._is_old = False  # the last claim did not begin with a sweep
        self.in_use = False

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around a statement that scans from the front: if these are slow, the next claim begins at marks.

        Not if it has just been seen that none are needed: large batches are slow without any jobs to skip.
        """
        start = monotonic()
        yield
        end = monotonic()
        round_trip = self._round_trip if end < self._round_trip_until else 0.0
        self._scanned += max(0.0, end - start - round_trip)
        if self._scanned >= SLOW_SECONDS and end >= self._sweep_at:
            self.in_use = True

    def sweep_due(self) -> bool:
        """Whether this claim has to begin with a sweep."""
        is_due = monotonic() >= self._sweep_at
        self._scanned = 0.0
        self._is_old = self.in_use and not is_due
        return self.in_use and is_due

    def sweep_in(self) -> float:
        """After a claim: seconds after which another one begins with a sweep, if this one did not."""
        return max(0.0, self._sweep_at - monotonic()) if self._is_old else math.inf

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """Around a sweep: it sets all marks anew, and if what it timed was quick, none are needed."""
        began = monotonic()
        self._parts, self._scanned, self.in_use = {}, 0.0, False
        yield
        self._sweep_at = began + max(_SWEEP_EVERY_SECONDS, (monotonic() - began) / _SWEEPS_SHARE)

    @contextmanager
    def round_trip(self) -> Iterator[None]:
        """Around a statement that takes no longer than the way to the server and back."""
        start = monotonic()
        yield
        end = monotonic()
        self._round_trip, self._round_trip_until = end - start, end + _ROUND_TRIP_HOLDS_SECONDS

    def add(self, queue: str, strategy: Strategy, heads: Iterable[Head]) -> None:
        """What a sweep has found in one queue."""
        self._parts[queue, _newest(strategy)] = {
            level: _parts(level, first, last, _newest(strategy)) for level, first, last in heads
        }

    def of(self, queue: str, strategy: Strategy) -> list[Part]:
        """What a scan of this queue looks at; of levels that are not named, everything."""
        levels = self._parts.get((queue, _newest(strategy)), {})
        return [part for parts in levels.values() for part in parts]

    def passed(self, queue: str, strategy: Strategy, claims: Iterable[Ordered]) -> None:
        """These were taken in the order of the strategy: the next scan goes on behind them."""
        newest = _newest(strategy)
        levels = self._parts.get((queue, newest), {})
        for claim in claims:
            parts = levels.get(claim.priority)
            if parts is None:
                continue
            if not newest:
                parts[0]["low"] = max(parts[0]["low"], claim.position)
            elif claim.position <= parts[1]["high"]:
                parts[1]["high"] = claim.position - 1


def _newest(strategy: Strategy) -> bool:
    return strategy.order[-1].descending


def _parts(level: int, first: int | None, last: int, newest: bool) -> list[Part]:
    """Oldest first: from the first one on. Newest first: what comes from now on, and then the same."""
    if not newest:
        return [_part(level, last if first is None else first - 1, _LAST_POSITION)]
    return [_part(level, last, _LAST_POSITION), _part(level, 0, first or 0)]


def _part(level: int, low: int, high: int) -> Part:
    return {"level": level, "low": low, "high": high}
