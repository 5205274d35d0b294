"""Scans that go on where the last one ended, because many jobs of tasks that are left out lie ahead."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from typing import Any

import pytest

from rowlock import Strategy, get_strategy, register, strategies
from rowlock.job import Claim, ClaimRequest, Ending
from rowlock.stores.sql import scan_marks
from rowlock.stores.sql.scan_marks import Marks
from rowlock.stores.sql.store import Store
from rowlock.strategies import HIGHEST, LOWEST, NEWEST, OLDEST, names
from tests.stores.steps import add, end, in_order, new, worker

OWN = (Strategy("HIGHEST_NEWEST", (HIGHEST, NEWEST)), Strategy("LOWEST_OLDEST", (LOWEST, OLDEST)))
UNKNOWN = ("foreign",)


class Clock:
    """A moment that only a test moves on."""

    def __init__(self) -> None:
        self.moment = 100.0

    def __call__(self) -> float:
        return self.moment


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By it nothing takes any time, and sweeps fall due."""
    clock = Clock()
    monkeypatch.setattr(scan_marks, "monotonic", clock)
    return clock


class Claims:
    """One worker's claims, from the second on at its marks."""

    def __init__(self, store: Store, strategy: str = "PRIORITY", queues: tuple[str, ...] = ()) -> None:
        self.store = store
        self.who = worker(store)
        self.unknown: tuple[str, ...] = UNKNOWN
        self.strategy = strategy
        self.queues = queues
        self.last = ""
        self.look_again_in = math.inf
        self.passed: list[int] = []

    def take(self, count: int = 1) -> list[Claim]:
        request = ClaimRequest(
            count=count,
            strategy=self.strategy,
            queues=self.queues,
            after=self.last,
            unknown=self.unknown,
        )
        got = self.store.exchange(self.who, request=request)
        self.last, self.look_again_in = got.last_queue, got.look_again_in
        return got.claims

    def ids(self, count: int = 1) -> list[int]:
        return [claim.id for claim in self.take(count)]


def has_marks(store: Any) -> bool:
    """DuckDB has none: it reads its columns whole, whoever the jobs are for."""
    return bool(store.database.claim_sql.has_marks)


def far_away(store: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every statement takes so long."""
    with store.database.read() as db:
        kind = type(db)

    def slowly(method: Any) -> Any:
        def called(*given: Any, **named: Any) -> Any:
            clock.moment += seconds
            return method(*given, **named)

        return called

    for name in ("_execute", "execute", "ask"):
        if name in vars(kind):
            monkeypatch.setattr(kind, name, slowly(vars(kind)[name]))


@pytest.fixture(autouse=True)
def _every_claim_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_marks, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(strategies, "_STRATEGIES", dict(strategies._STRATEGIES))
    for one in OWN:
        register(one)


@pytest.mark.no_cover  # what it runs is measured elsewhere, and here it would take twice as long
@pytest.mark.parametrize("name", [*names(), *(one.name for one in OWN)])
@pytest.mark.parametrize("queues", [(), ("b", "a")], ids=["all", "named"])
def test_claims_at_marks_come_in_the_order_of_the_strategy(
    store: Store, name: str, queues: tuple[str, ...]
) -> None:
    strategy = get_strategy(name)
    jobs = [
        new(random.choice(("work", "foreign")), queue=queue, priority=random.choice((-3, 0, 5)))
        for queue in "ab"
        for _ in range(60)
    ]
    ids = [one.id for one in store.insert(jobs)]
    claims, got = Claims(store, name, queues), list[Claim]()
    while some := claims.take(7):
        got += some
    mine = {id for id, job in zip(ids, jobs, strict=True) if job.task == "work"}
    assert {claim.id for claim in got} == mine and len(got) == len(mine)
    taken = defaultdict(list)
    for claim in got:
        taken[claim.queue, strategy.draw and claim.priority].append(claim)
    assert all(line == in_order(strategy, line) for line in taken.values())


@pytest.mark.parametrize("strategy", ["PRIORITY", "FIFO", "LIFO", "WEIGHTED_RANDOM"])
def test_what_comes_behind_the_marks_is_found_at_once(store: Store, strategy: str) -> None:
    add(store, 5, task="foreign")
    claims = Claims(store, strategy)
    assert claims.ids() == []
    for level in (0, -5, 7):  # two of them are new
        (id,) = add(store, priority=level)
        add(store, task="foreign", priority=level)
        assert claims.ids() == [id]
        assert claims.ids() == []


def passed_one(store: Store, claims: Claims) -> Claim:
    """A job that was claimed, and behind which the worker's marks are by now."""
    add(store, 3, task="foreign")
    add(store, 3)
    add(store, 3, task="foreign")
    _, claim, _ = taken = claims.take(3)
    claims.passed = [one.id for one in taken]
    assert claims.take() == []
    return claim


@pytest.mark.parametrize("strategy", ["PRIORITY", "FIFO", "LIFO", "WEIGHTED_RANDOM"])
def test_a_job_that_comes_back_before_a_mark_is_found_by_the_next_sweep(
    store: Store, strategy: str, clock: Clock
) -> None:
    claims = Claims(store, strategy)
    claim = passed_one(store, claims)
    end(store, claim, Ending.RELEASED)
    if has_marks(store):
        assert claims.ids() == []
        assert claims.look_again_in == 1.0  # so long may a worker wait at most
        clock.moment += 1.0
    assert claims.ids() == [claim.id]
    assert claims.look_again_in == math.inf  # this one has looked from the front


def test_a_rescued_job_is_found_at_once(store: Store) -> None:
    """It has to run alone, and what claims such jobs knows no marks."""
    claims = Claims(store)
    passed_one(store, claims)
    later = time.time() + 1000
    claims.who = worker(store, "living", now=later)
    assert claims.take() == claims.take() == []  # from now on its scans begin at marks
    store.rescue("living", careful_age=10.0, now=later)
    found = claims.take()
    assert [(one.id, one.isolate > 0) for one in found] == [(min(claims.passed), True)]


def test_no_more_than_a_tenth_of_the_time_is_spent_on_sweeps(clock: Clock) -> None:
    held = Marks()
    with held.timed():
        pass
    began = clock.moment
    with held.sweep(), held.timed():
        clock.moment += 0.5
    clock.moment = began + 4.9
    assert not held.sweep_due()
    clock.moment = began + 5.0
    assert held.sweep_due()


def test_a_task_that_becomes_known_is_found_at_once(store: Store) -> None:
    claims = Claims(store)
    claims.unknown = ("foreign", "later known")
    add(store, 3, task="foreign")
    (id,) = add(store, task="later known")
    assert claims.ids() == claims.ids() == []
    claims.unknown = ("foreign",)
    assert claims.ids() == [id]


def test_a_queue_with_an_order_of_its_own_has_marks_from_its_own_side(store: Store) -> None:
    store.set_queue("default", strategy="LIFO")
    claims = Claims(store, "FIFO")
    mine = add(store, 3)
    add(store, 4, task="foreign")
    assert [id for _ in range(4) for id in claims.ids()] == mine[::-1]
    newer = add(store, 2)
    assert claims.ids(3) == newer[::-1]


def test_a_server_that_is_far_away_needs_no_marks(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every statement takes 20 ms on its way there and back, and the scan itself takes nothing."""
    monkeypatch.setattr(scan_marks, "SLOW_SECONDS", 0.005)
    far_away(store, clock, monkeypatch, 0.02)
    claims = Claims(store)
    claim = passed_one(store, claims)
    end(store, claim, Ending.RELEASED)
    assert claims.ids() == [claim.id]
    assert claims.look_again_in == math.inf


def test_a_slow_scan_on_a_server_that_is_far_away_needs_marks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_marks, "SLOW_SECONDS", 0.005)
    held = Marks()
    for scan, is_slow in ((0.022, False), (0.026, True)):
        with held.sweep():
            with held.round_trip():
                clock.moment += 0.02
            with held.timed():
                clock.moment += scan
        assert held.in_use is is_slow
        clock.moment += 10


def test_one_stall_on_the_way_does_not_keep_slow_scans_from_marks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is met by the statement that measures the way, in a sweep; every scan takes 200 ms."""
    monkeypatch.setattr(scan_marks, "SLOW_SECONDS", 0.005)
    held = Marks()
    with held.sweep():
        with held.round_trip():
            clock.moment += 0.3
        with held.timed():
            clock.moment += 0.2
    claims = 0
    while not held.in_use and claims < 1_000:
        claims += 1
        held.sweep_due()
        with held.timed():
            clock.moment += 0.2
    assert claims < 1_000


def test_while_claims_are_quick_there_are_no_marks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_marks, "SLOW_SECONDS", 0.005)
    claims = Claims(store)
    claim = passed_one(store, claims)
    end(store, claim, Ending.RELEASED)
    assert claims.ids() == [claim.id]


def test_after_a_quick_sweep_a_slow_claim_changes_nothing_for_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is slow without any jobs to skip, and needs no sweep before each claim."""
    monkeypatch.setattr(scan_marks, "SLOW_SECONDS", 0.005)
    held = Marks()

    def claim_slowly() -> bool:
        with held.timed():
            clock.moment += 0.1
        return held.in_use

    assert claim_slowly()
    with held.sweep(), held.timed():
        pass
    assert not held.in_use
    assert not claim_slowly()
    clock.moment += 1.0
    assert claim_slowly()
