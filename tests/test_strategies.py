"""The strategies without a store: names, and the shares of WEIGHTED_RANDOM."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rowlock import Claim, get_strategy
from rowlock.strategies import NAMES, WeightedRandom


def claim(id: int, level: int, task: str = "t", max_attempts: int = 3, isolate: int = 0) -> Claim:
    return Claim(
        id=id,
        claim=1,
        task=task,
        queue="q",
        args_json="{}",
        priority=level,
        failures=0,
        max_attempts=max_attempts,
        created=0,
        due=0,
        taken=0,
        claimed_by="w",
        isolate=isolate,
    )


class Shelf:
    """A shelf in memory; each level has so many jobs."""

    def __init__(self, **counts: int) -> None:
        self.left = {int(name.strip("_").replace("m", "-")): count for name, count in counts.items()}
        self.taken = 0

    def levels(self) -> list[int]:
        return sorted((level for level, count in self.left.items() if count), reverse=True)

    def oldest_at(self, level: int, count: int) -> list[Claim]:
        got = min(count, self.left[level])
        self.left[level] -= got
        self.taken += got
        return [claim(self.taken - got + number, level) for number in range(got)]

    def _never(self, count: int) -> list[Claim]:
        raise AssertionError("WEIGHTED_RANDOM draws levels")

    highest = oldest = newest = _never


def test_every_strategy_is_found_by_its_name() -> None:
    assert NAMES == ("FIFO", "LIFO", "PRIORITY", "WEIGHTED_RANDOM")
    assert [get_strategy(name).name for name in NAMES] == list(NAMES)


@pytest.mark.parametrize("name", ["fifo", "", "RANDOM", None])
def test_an_unknown_name_is_answered_with_the_valid_ones(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"unknown strategy .*valid ones are: FIFO, LIFO, PRIORITY, WEIGHTED_RANDOM"
    ):
        get_strategy(name)


@pytest.mark.parametrize("size", [1, 5])
def test_levels_win_in_proportion_to_their_weights(size: int) -> None:
    """Chi-square over 20,000 draws, p = 0.0001 at 4 degrees of freedom."""
    weights = {-5: 1, 0: 1, 1: 2, 4: 5, 9: 10}
    strategy = WeightedRandom(random.Random(7))
    shelf = Shelf(_m5=10**6, _0=10**6, _1=10**6, _4=10**6, _9=10**6)
    draws: Counter[int] = Counter()
    for _ in range(20_000 // size):
        draws.update(one.priority for one in strategy.take(shelf, size))
    expected = {level: 20_000 * weight / 19 for level, weight in weights.items()}
    assert sum(draws.values()) == 20_000
    assert sum((draws[level] - share) ** 2 / share for level, share in expected.items()) < 23.5


def test_a_level_that_runs_out_passes_its_draws_on() -> None:
    shelf = Shelf(_100=1, _0=7)
    taken = WeightedRandom(random.Random(1)).take(shelf, 20)
    assert Counter(one.priority for one in taken) == {100: 1, 0: 7}
    assert shelf.levels() == []


def test_no_level_starves() -> None:
    shelf = Shelf(_100=10**6, _m100=1)
    strategy = WeightedRandom(random.Random(3))
    assert any(one.priority == -100 for _ in range(2_000) for one in strategy.take(shelf, 1))
