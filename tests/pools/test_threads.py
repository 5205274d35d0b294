"""The thread pool by itself: how many threads what waits is worth."""

from __future__ import annotations

import math

import pytest

from rowlock.execution.context import JobContext
from rowlock.pools.base import Run
from rowlock.pools.thread import ThreadPool
from tests.eventually import eventually
from tests.test_strategies import claim

_TINY = 0.0001  # seconds


def _runs(count: int, cost: float) -> list[Run]:
    return [Run(claim(number, 0), None, JobContext(claim(number, 0), None), cost) for number in range(count)]


def _pool() -> ThreadPool:
    """A pool whose threads take no runs."""
    return ThreadPool(4, lambda pool: None)


def test_each_run_that_may_be_slow_gets_a_thread() -> None:
    pool = _pool()
    pool.submit(_runs(3, math.inf))
    assert pool.threads == 3


def test_tiny_runs_are_left_to_one_thread() -> None:
    pool = _pool()
    pool.submit(_runs(100, _TINY))
    assert pool.threads == 1


def test_quick_runs_that_leave_the_interpreter_to_others_get_all_threads() -> None:
    pool = _pool()
    pool.submit(_runs(100, 0.002))
    assert pool.threads == 4


@pytest.mark.parametrize(("waiting", "threads"), [(1, 2), (50, 4)])
def test_others_go_on_when_a_tiny_run_turns_out_to_be_slow(waiting: int, threads: int) -> None:
    pool = _pool()
    pool.submit(_runs(1 + waiting, _TINY))
    assert pool.next() is not None  # and does not end
    assert pool.threads == 1

    def asked_again() -> bool:
        pool.submit(())
        return pool.threads > 1

    eventually(asked_again)
    assert pool.threads == threads
