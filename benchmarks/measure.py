"""Times two ways of doing the same work in turn, and says how they compare in spite of noise.

Knows nothing of queues. Pairs lie close together in time, so a slow moment of the disk hits both sides.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_NOISE = 0.25


@dataclass(frozen=True)
class Timing:
    """How long one piece of work took: on the clock, and of the processor."""

    seconds: float
    cpu: float


@dataclass(frozen=True)
class Spread:
    """The middle of some values and the quartiles around it."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Ours beside a baseline; ratios are of speeds, so more is better and 1 is as fast as the baseline."""

    ours: Sequence[Timing]
    baseline: Sequence[Timing]

    @property
    def ratio(self) -> float:
        """The ratio of the medians: the figure that is held against a target."""
        return _median_seconds(self.baseline) / _median_seconds(self.ours)

    @property
    def pair_ratios(self) -> Spread:
        """The ratios of the single pairs: how far the figure can be trusted."""
        pairs = zip(self.ours, self.baseline, strict=True)
        return spread([theirs.seconds / mine.seconds for mine, theirs in pairs])

    @property
    def quiet_ratio(self) -> float:
        """The ratio of the lower quartiles: it holds when other work disturbs most timings."""
        return _quick_quarter(self.baseline) / _quick_quarter(self.ours)

    @property
    def noisy(self) -> bool:
        """True if the pairs disagree so much that they prove nothing: others draw ratios to 1."""
        pairs = self.pair_ratios
        return pairs.high - pairs.low > _NOISE * pairs.median

    def rates(self, jobs: int) -> tuple[float, float]:
        """Jobs a second, ours and the baseline's, when each timing was of so many jobs."""
        return jobs / _median_seconds(self.ours), jobs / _median_seconds(self.baseline)

    def cpu_each(self, jobs: int) -> tuple[float, float]:
        """Processor seconds per job, ours and the baseline's: what is left when the disk costs nothing."""
        mine = statistics.median(one.cpu for one in self.ours)
        theirs = statistics.median(one.cpu for one in self.baseline)
        return mine / jobs, theirs / jobs


def timed(work: Callable[[], object]) -> Timing:
    """Do the work once and time it."""
    gc.collect()  # what an earlier piece of work left behind is not this one's to pay
    cpu, start = time.process_time(), time.perf_counter()
    work()
    return Timing(time.perf_counter() - start, time.process_time() - cpu)


def in_turn(ours: Callable[[], Timing], baseline: Callable[[], Timing], pairs: int) -> Comparison:
    """Time both sides so many times, in turn, each going first every other time; one more pair warms up."""
    mine: list[Timing] = []
    theirs: list[Timing] = []
    for number in range(pairs + 1):
        sides = [(ours, mine), (baseline, theirs)]
        for side, timings in sides if number % 2 else sides[::-1]:
            timings.append(side())
    return Comparison(mine[1:], theirs[1:])


def spread(values: Sequence[float]) -> Spread:
    """The median and the quartiles."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, median, high)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _quick_quarter(timings: Sequence[Timing]) -> float:
    return spread([one.seconds for one in timings]).low


def _median_seconds(timings: Sequence[Timing]) -> float:
    return statistics.median(one.seconds for one in timings)


def let_the_disk_settle() -> None:
    """Wait until all that was written is on the disk: the next step should not pay for it."""
    if hasattr(os, "sync"):
        os.sync()
