"""Runs by themselves: what must not begin, and that each is settled once."""

from __future__ import annotations

import queue
import time

import pytest

from rowlock.execution.context import JobContext
from rowlock.job import Ending, Outcome
from rowlock.pools.base import Run
from rowlock.worker.runs import Runs
from rowlock.worker.unwritten_outcomes import Unwritten
from tests.test_strategies import claim


class Admitted:
    """Runs in flight, and what they have come to."""

    def __init__(self) -> None:
        self.unwritten = Unwritten()
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.runs = Runs(self.unwritten, self.bell, timeout_grace=200.0)

    def run(self, number: int, timeout: float | None = None) -> Run:
        made = Run(claim(number, 0), None, JobContext(claim(number, 0), timeout))
        self.runs.admit([made])
        return made

    def outcomes(self) -> list[Outcome]:
        return list(self.unwritten.take(()).outcomes)


@pytest.fixture
def admitted() -> Admitted:
    return Admitted()


def test_a_run_that_was_cancelled_or_lost_while_it_waited_does_not_begin(admitted: Admitted) -> None:
    first, second, third = (admitted.run(number) for number in (1, 2, 3))
    assert admitted.runs.cancel([(1, first.claim.claim)]) == [first]
    second.context.lost = True
    found = [admitted.runs.ended_before_start(run) for run in (first, second, third)]
    assert [one and one.ending for one in found] == [Ending.CANCELLED, Ending.RELEASED, None]


def test_after_a_pause_what_waits_from_the_same_queue_does_not_begin(admitted: Admitted) -> None:
    first, second = admitted.run(1), admitted.run(2)
    admitted.runs.settle(first, first.claim.ended(Ending.RETRY, pause=True))
    found = admitted.runs.ended_before_start(second)
    assert found is not None and (found.ending, found.charge) == (Ending.RELEASED, 0)


def test_the_first_who_settles_a_run_decides(admitted: Admitted) -> None:
    run = admitted.run(1)
    assert admitted.runs.settle(run, run.claim.ended(Ending.COMPLETED))
    assert not admitted.runs.settle(run, run.claim.ended(Ending.FAILED))
    assert [one.ending for one in admitted.outcomes()] == [Ending.COMPLETED]
    assert not admitted.runs.in_flight and admitted.runs.load[""].slow == 0
    assert admitted.bell.qsize() == 1


def test_a_run_is_given_up_when_the_grace_after_its_timeout_is_over(admitted: Admitted) -> None:
    late, other = admitted.run(1, timeout=60.0), admitted.run(2, timeout=60.0)
    late.context.began_at(time.monotonic() - 360.0)
    other.context.began_at(time.monotonic() - 160.0)
    assert admitted.runs.give_up_late_ones() == [late]
    assert [(one.id, one.error_kind) for one in admitted.outcomes()] == [(1, "timeout")]
    assert not admitted.runs.settle(late, late.claim.ended(Ending.COMPLETED))
