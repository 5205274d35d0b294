"""Every strategy, also one that is registered here, on every store and path, for one job and for many."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from rowlock import Strategy, Weight, get_strategy, register, stores, strategies
from rowlock.job import Claim, ClaimRequest
from rowlock.stores.sql.store import Store
from rowlock.strategies import HIGHEST, LOWEST, NEWEST, OLDEST, names
from tests.stores.steps import emptied, in_order, new, worker

# An index has the first order, read from its end; none has the second and the third.
OWN = (
    Strategy("LOWEST_NEWEST", (LOWEST, NEWEST)),
    Strategy("HIGHEST_NEWEST", (HIGHEST, NEWEST)),
    Strategy("LOWEST_OLDEST", (LOWEST, OLDEST)),
    Strategy("DRAWN_NEWEST", (NEWEST,), draw=Weight()),
)
LEVELS = (-3, 0, 1, 5)
PATHS = ("fused", "plain")


class Row(NamedTuple):
    id: int
    queue: str
    priority: int

    @property
    def position(self) -> int:
        return self.id


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_STRATEGIES", dict(strategies._STRATEGIES))
    for one in OWN:
        register(one)


def fill(store: Store, queue: str, levels: list[int]) -> list[Row]:
    found = store.insert([new(queue=queue, priority=level) for level in levels])
    return [Row(one.id, queue, level) for one, level in zip(found, levels, strict=True)]


def leave_the_fused_path(store: Store, *queues: str, strategy: str) -> None:
    """Where there is one: only a queue with a strategy of its own leaves it."""
    for queue in queues:
        store.set_queue(queue, strategy=strategy)


def claimed(store: Store, who: str, strategy: str, count: int, queues: tuple[str, ...]) -> list[Claim]:
    """Two exchanges: the second goes on where the first one ended."""
    first = store.exchange(who, request=ClaimRequest(count=count, strategy=strategy, queues=queues))
    request = ClaimRequest(count=count, strategy=strategy, queues=queues, after=first.last_queue)
    return first.claims + store.exchange(who, request=request).claims


@pytest.mark.no_cover  # what it runs is measured elsewhere, and here it would take twice as long
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [*names(), *(one.name for one in OWN)])
def test_claims_come_in_the_order_of_the_strategy(store: Store, name: str, path: str) -> None:
    strategy = get_strategy(name)
    for count in (1, 7, 500):
        for queues in ((), ("b", "a")):
            emptied(store)
            who = worker(store)
            rows = [
                row
                for queue in "ab"
                for row in fill(store, queue, random.choices(LEVELS, k=max(20, count // 2)))
            ]
            if path == "plain":
                leave_the_fused_path(store, "a", "b", strategy=name)
            got = claimed(store, who, name, count, queues)
            assert len(got) == min(2 * count, len(rows))
            line = defaultdict(list)  # of each queue; of each level, too, if levels are drawn
            for row in in_order(strategy, rows):
                line[row.queue, strategy.draw and row.priority].append(row.id)
            taken = defaultdict(list)
            # One exchange after the other: within one, drawn levels are mixed.
            for claim in got:
                taken[claim.queue, strategy.draw and claim.priority].append(claim.id)
            for place, ids in taken.items():
                assert ids == line[place][: len(ids)], (count, queues, place)


def chi_square(draws: Counter[int], weights: dict[int, int]) -> float:
    share = sum(draws.values()) / sum(weights.values())
    return sum((draws[level] - share * weight) ** 2 / (share * weight) for level, weight in weights.items())


@pytest.mark.no_cover  # what it runs is measured elsewhere, and here it would take twice as long
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["WEIGHTED_RANDOM", "DRAWN_NEWEST"])
def test_levels_are_drawn_by_their_weights(store: Store, name: str, path: str) -> None:
    """Chi-square at p = 0.0001, which finds `max(1, priority)` at this number of draws."""
    who = worker(store)
    weights = {-5: 1, 0: 1, 1: 2, 4: 5, 9: 10}
    # As many of each, and so many that no level runs out: every draw is among all five.
    fill(store, "q", [level for level in weights for _ in range(1500)])
    if path == "plain":
        leave_the_fused_path(store, "q", strategy=name)
    draws: Counter[int] = Counter()
    for _ in range(4):
        draws.update(claim.priority for claim in claimed(store, who, name, 300, ()))
    assert sum(draws.values()) == 2400
    assert chi_square(draws, weights) < 23.5, draws


@pytest.mark.parametrize("path", PATHS)
def test_a_weight_is_changed_in_one_place(store: Store, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = Strategy("WEIGHTED_RANDOM", (OLDEST,), draw=Weight(plus=-5, least=2))
    monkeypatch.setitem(strategies._STRATEGIES, "WEIGHTED_RANDOM", changed)
    who = worker(store)
    weights = {0: 2, 4: 2, 9: 4}
    fill(store, "q", [level for level in weights for _ in range(1000)])
    if path == "plain":
        leave_the_fused_path(store, "q", strategy="weighted_random")
    draws = Counter(claim.priority for claim in claimed(store, who, "WEIGHTED_RANDOM", 500, ("q",)))
    # p = 0.0001 at 2 degrees of freedom; with the weights 1, 5 and 10 it would be above 100.
    assert chi_square(draws, weights) < 18.4, draws


@pytest.mark.parametrize("path", PATHS)
def test_a_level_that_runs_out_passes_its_draws_on(store: Store, path: str) -> None:
    who = worker(store)
    fill(store, "q", [100, *([0] * 7), *([-100] * 3)])
    if path == "plain":
        leave_the_fused_path(store, "q", strategy="WEIGHTED_RANDOM")
    request = ClaimRequest(count=20, strategy="WEIGHTED_RANDOM")
    claims = store.exchange(who, request=request).claims
    assert Counter(claim.priority for claim in claims) == {100: 1, 0: 7, -100: 3}


def test_no_store_knows_a_strategy_by_its_name() -> None:
    folder = Path(stores.__file__).parent
    files = [file for file in folder.rglob("*") if file.suffix in (".py", ".sql")]
    assert len(files) > 30
    found = [(file.name, name) for file in files for name in names() if name in file.read_text("utf-8")]
    assert found == []


def test_a_strategy_that_another_process_has_registered_gives_way_to_the_workers_own(store: Store) -> None:
    who = worker(store)
    rows = fill(store, "q", [0, 0])
    register(Strategy("ELSEWHERE", (NEWEST,)))
    store.set_queue("q", strategy="elsewhere")
    del strategies._STRATEGIES["ELSEWHERE"]
    assert [claim.id for claim in claimed(store, who, "FIFO", 1, ())] == [row.id for row in rows]
