"""The event loop's places: what waits for one has not begun, whatever is asked of it meanwhile."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock import JobContext, Rowlock
from rowlock.execution.execute import Executor
from rowlock.execution.residents import Residents
from rowlock.job import Ending
from rowlock.pools.base import Run
from rowlock.pools.event_loop import AsyncPool
from rowlock.task import Task
from rowlock.worker.runs import Runs
from rowlock.worker.unwritten_outcomes import Unwritten
from tests.eventually import eventually
from tests.test_strategies import claim


class Loop:
    """A pool with one place, and a task that holds it until it is let go."""

    def __init__(self) -> None:
        self.unwritten = Unwritten()
        self.runs = Runs(self.unwritten, queue.SimpleQueue(), 2.0)
        self.begun: list[int] = []
        self.let_go = threading.Event()
        self.pool = AsyncPool(1, self.runs, Executor([], 1000, Residents()), None)
        self.pool.start()

        async def hold(ctx: JobContext) -> None:
            self.begun.append(ctx.id)
            while not self.let_go.is_set():
                try:
                    await asyncio.sleep(0.001)
                except asyncio.CancelledError:
                    continue

        self._task: Task[..., Any] = Task(Rowlock(), hold, name="hold")

    def run(self, number: int, timeout: float | None = None) -> Run:
        made = claim(number, 0)
        return Run(made, self._task, JobContext(made, timeout))

    def endings(self) -> dict[int, Ending]:
        return {outcome.id: outcome.ending for outcome, _ in self.unwritten._ended}


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.let_go.set()
    made.pool.close()


def test_a_run_that_is_cancelled_while_it_waits_never_begins(loop: Loop) -> None:
    first, second = loop.run(1), loop.run(2)
    loop.pool.submit([first, second])
    eventually(lambda: loop.begun == [1])
    second.context.cancelled = True
    loop.pool.cancel(second)
    loop.let_go.set()
    eventually(lambda: loop.endings() == {1: Ending.COMPLETED, 2: Ending.CANCELLED})
    assert (loop.begun, second.context.began) == ([1], None)


def test_what_waits_is_taken_back_and_its_timeout_has_not_begun(loop: Loop) -> None:
    first, second, third = (loop.run(number, timeout=60) for number in (1, 2, 3))
    loop.pool.submit([first, second])
    loop.pool.submit([third])
    eventually(lambda: loop.begun == [1])
    assert second.context.deadline is None
    assert list(loop.pool.where()) == [first]
    assert loop.pool.take_back() == [second, third]
    loop.let_go.set()
    eventually(lambda: loop.endings() == {1: Ending.COMPLETED})
    assert loop.begun == [1]


def test_the_place_of_an_abandoned_run_is_free(loop: Loop) -> None:
    first, second = loop.run(1), loop.run(2)
    loop.pool.submit([first, second])
    eventually(lambda: loop.begun == [1])
    loop.pool.abandon(second)  # it has no place yet, so it holds none
    loop.pool.abandon(first)
    eventually(lambda: loop.begun == [1, 2])
    assert loop.pool.stuck == 1
    loop.let_go.set()
    eventually(lambda: loop.endings() == {2: Ending.COMPLETED})
    eventually(lambda: loop.pool.stuck == 0)
