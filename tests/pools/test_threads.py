"""The thread pool by itself: how many threads what waits is worth."""

from __future__ import annotations

import math

import pytest

from rowlock.execution.context import JobContext
from rowlock.pools.base import Run
from rowlock.pools.thread import ThreadPool
from tests.eventually import eventually
from tests.test_strategies import claim

_QUICK = 0.001  # seconds


def _runs(count: int, cost: float) -> list[Run]:
    return [Run(claim(number, 0), None, JobContext(claim(number, 0), None), cost) for number in range(count)]


def test_each_run_that_may_be_slow_gets_a_thread() -> None:
    pool = ThreadPool(4)
    pool.submit(_runs(3, math.inf))
    assert pool.take_missing() == 3


def test_quick_runs_are_left_to_one_thread() -> None:
    pool = ThreadPool(4)
    pool.submit(_runs(100, _QUICK))
    assert pool.take_missing() == 1


@pytest.mark.parametrize(("waiting", "threads"), [(1, 1), (50, 3)])
def test_others_go_on_when_a_quick_run_turns_out_to_be_slow(waiting: int, threads: int) -> None:
    pool = ThreadPool(4)
    pool.submit(_runs(1 + waiting, _QUICK))
    assert pool.take_missing() == 1
    assert pool.next() is not None  # and does not end

    def asked_again() -> int:
        pool.submit(())
        return pool.take_missing()

    assert eventually(asked_again) == threads


def test_quick_runs_that_leave_the_interpreter_to_others_get_all_threads() -> None:
    """By how long they took while no other thread ran any."""
    pool = ThreadPool(4)

    def asked_for() -> int:
        pool.submit(_runs(100, _QUICK))
        for _ in range(20):
            run = pool.next()
            assert run is not None
            assert pool.ended(run, seconds=0.002)
        pool.submit(())
        return pool.take_missing()

    assert eventually(asked_for) > 1
