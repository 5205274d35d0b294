"""When a worker's next cycle is due, by how many quick runs are left."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rowlock.pools.base import Run
from rowlock.worker.cycle import Cycle
from rowlock.worker.next_cycle import NextCycle
from rowlock.worker.pools import Pools
from rowlock.worker.runs import Runs
from rowlock.worker.unwritten_outcomes import Unwritten


class Worker:
    """One that has just claimed so many quick jobs; `found_nothing`: and then no more."""

    def __init__(
        self, claimed: int, slots: int = 2, found_nothing: bool = False, one_thread: bool = False
    ) -> None:
        self.unwritten, self.bell = Unwritten(), cast("queue.SimpleQueue[None]", queue.SimpleQueue())
        self.runs = Runs(self.unwritten, self.bell, 1.0)
        self.cycles = 0
        cycle = SimpleNamespace(
            run=self.run, found_nothing=found_nothing, stopping=False, backoff=SimpleNamespace(failing=0)
        )
        pools = SimpleNamespace(slots={"thread": slots}, one_thread_is_enough=lambda: one_thread)
        self.next = NextCycle(
            cast("Cycle", cycle), self.runs, self.unwritten, cast("Pools", pools), self.bell
        )
        self.claimed = claimed
        with self.next.by_the_loop() as make:
            assert make is not None
            make()
        self.claimed = 0

    def run(self) -> float:
        self.cycles += 1
        self.runs.load["thread"].quick += self.claimed
        for number in range(self.claimed):
            self.runs.in_flight[self.cycles, number] = cast("Run", None)
        return 0.0

    def end(self, count: int) -> None:
        """So many of the quick runs end."""
        for _ in range(count):
            self.runs.load["thread"].quick -= 1
            self.runs.in_flight.popitem()

    @property
    def due(self) -> bool:
        return self.next.due_in() == 0.0


@pytest.mark.parametrize(
    ("worker", "ends_before_it_is_due"),
    [
        ({"claimed": 10}, 5),  # other threads go on with the other half
        ({"claimed": 10, "one_thread": True}, 9),
        ({"claimed": 10, "one_thread": True, "slots": 1}, 10),
        ({"claimed": 10, "found_nothing": True}, 9),  # there is nothing more to be claimed
        ({"claimed": 10, "found_nothing": True, "slots": 4}, 7),
    ],
)
def test_outcomes_wait_while_enough_quick_runs_are_left(
    worker: dict[str, Any], ends_before_it_is_due: int
) -> None:
    made = Worker(**worker)
    for _ in range(ends_before_it_is_due):
        assert not made.due
        made.end(1)
    assert made.due


def test_a_slow_run_beside_them_ends_the_wait() -> None:
    made = Worker(claimed=10)
    made.runs.load["thread"].slow = 1
    assert made.due


def test_a_runner_that_is_alone_makes_the_cycle_that_is_due() -> None:
    made = Worker(claimed=10)
    made.end(5)
    made.next.after_run(lambda: True)
    assert made.cycles == 2 and made.bell.empty()


def test_a_runner_rings_if_the_loop_sleeps_for_longer_than_its_quick_runs_may_wait() -> None:
    made = Worker(claimed=10)
    made.end(10)
    made.claimed = 10
    assert made.next.pause(1.0)[0] == 1.0  # as beside a slow run
    made.next.after_run(lambda: True)
    assert made.cycles == 2 and not made.bell.empty()


@pytest.mark.parametrize("ends", [4, 5, 10])
def test_a_runner_rings_for_what_it_leaves_to_the_loop(ends: int) -> None:
    made = Worker(claimed=10)
    made.end(ends)
    made.next.after_run(lambda: False)
    assert made.cycles == 1
    assert made.bell.empty() is (ends < 5)  # while enough is left the loop looks by itself


def test_what_goes_wrong_in_a_runners_cycle_is_raised_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Worker(claimed=10)
    made.end(5)

    def fail() -> float:
        raise ValueError("in a runner")

    monkeypatch.setattr(made.next._cycle, "run", fail)
    made.next.after_run(lambda: True)
    assert not made.bell.empty()
    with pytest.raises(ValueError, match="in a runner"), made.next.by_the_loop():
        pass
