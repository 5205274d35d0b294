"""The strategies without a store: their registry, their orders, and what may be registered."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest

import rowlock
from rowlock import Claim, Key, Strategy, Weight, get_strategy, register
from rowlock.strategies import HIGHEST, LOWEST, NEWEST, OLDEST, names


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


class Row(NamedTuple):
    priority: int
    position: int


def test_every_strategy_is_found_by_its_name_whatever_its_case() -> None:
    assert names()[:4] == ("FIFO", "LIFO", "PRIORITY", "WEIGHTED_RANDOM")
    assert [get_strategy(name).name for name in names()] == list(names())
    assert get_strategy("weighted_Random") is get_strategy("WEIGHTED_RANDOM")


@pytest.mark.parametrize("name", ["first", "", "RANDOM", None])
def test_an_unknown_name_is_answered_with_the_valid_ones(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"unknown strategy .*valid ones are: FIFO, LIFO, PRIORITY, WEIGHTED_RANDOM"
    ):
        get_strategy(name)


def test_a_strategy_may_be_registered_again_but_not_another_one_of_its_name() -> None:
    fifo = register(Strategy("FIFO", (Key("position"),)))
    assert get_strategy("fifo") == fifo
    with pytest.raises(rowlock.ConfigurationError, match="another strategy of the name FIFO"):
        register(Strategy("Fifo", (NEWEST,)))


@pytest.mark.parametrize(
    ("name", "order", "draw"),
    [
        ("no order", (OLDEST,), None),
        ("", (OLDEST,), None),
        ("ORDER", (), None),
        ("ORDER", [OLDEST], None),
        ("ORDER", (HIGHEST,), None),
        ("ORDER", (OLDEST, HIGHEST), None),
        ("ORDER", (Key("id; DROP TABLE"),), None),  # type: ignore[arg-type]
        ("ORDER", (HIGHEST, OLDEST), Weight()),
        ("ORDER", (OLDEST,), Weight(least=0)),
        ("ORDER", (OLDEST,), Weight(plus="1; DROP TABLE")),  # type: ignore[arg-type]
    ],
)
def test_what_would_not_be_an_order_is_refused(name: str, order: Any, draw: Weight | None) -> None:
    with pytest.raises(rowlock.ConfigurationError, match=f"strategy '?{name}"):
        Strategy(name, order, draw)


def test_claims_are_arranged_in_the_order() -> None:
    rows = [Row(1, 3), Row(2, 2), Row(1, 1), Row(2, 4)]
    assert [row.position for row in Strategy("A", (HIGHEST, OLDEST)).arranged(rows)] == [2, 4, 1, 3]
    assert [row.position for row in Strategy("A", (LOWEST, NEWEST)).arranged(rows)] == [3, 1, 4, 2]
    assert [row.position for row in Strategy("A", (NEWEST,)).arranged(rows)] == [4, 3, 2, 1]


def test_what_was_drawn_is_arranged_by_chance_but_in_order_within_a_level() -> None:
    rows = [Row(number % 2, number) for number in range(40)]
    arranged = Strategy("A", (NEWEST,), Weight()).arranged(rows)
    assert [row.position for row in arranged if row.priority] == list(range(39, 0, -2))
    assert [row.position for row in arranged if not row.priority] == list(range(38, -1, -2))
    assert arranged != sorted(arranged, key=lambda row: -row.position)  # 1 in 10^11


def test_levels_are_drawn_in_proportion_to_their_weights() -> None:
    """Chi-square over 20,000 draws, p = 0.0001 at 4 degrees of freedom."""
    weights = {-5: 1, 0: 1, 1: 2, 4: 5, 9: 10}
    draws = Counter(get_strategy("WEIGHTED_RANDOM").drawn(list(weights), 20_000))
    expected = {level: 20_000 * weight / 19 for level, weight in weights.items()}
    assert sum((draws[level] - share) ** 2 / share for level, share in expected.items()) < 23.5
