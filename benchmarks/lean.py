"""What a worker spends on a job that does nothing, from claim to outcome, without the database.

The goal is about 10 us. `submit` and `result` of a ThreadPoolExecutor, for the same function, tell how fast
the machine is at the moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from benchmarks.apps import add, adding_app
from benchmarks.measure import Timing, in_turn, spread, timed
from benchmarks.report import Line, Setting
from rowlock.job import Claim
from rowlock.worker.next_cycle import NextCycle
from rowlock.worker.runner import Runner
from rowlock.worker.runs import Runs

_BATCH = 250
_BATCHES = 8  # per timing, as they follow each other while a queue is drained


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    app, task = adding_app(setting.folder / "rowlock.db")
    worker = app.worker(concurrency=1)
    over = _Over(worker.runs)
    runner = Runner(worker.runs, worker._executor, cast("NextCycle", over))
    worker._pools.make(runner.work)
    worker._demand.reset(worker._pools.slots, None)
    claims = [_claim(number, task.name) for number in range(_BATCH)]

    def worked(count: int = _BATCH) -> None:
        over.event.clear()
        worker.cycle._admit(claims[:count], count, in_order=True)
        over.event.wait()
        batch = worker._unwritten.take(())
        worker._demand.learn(batch.outcomes)
        worker._unwritten.delivered()
        assert len(batch.outcomes) == count

    with ThreadPoolExecutor(1) as executor:

        def submitted() -> None:
            for future in [executor.submit(add, number, 2) for number in range(_BATCH)]:
                future.result()

        worked(1)  # by which it knows the task for a quick one
        comparison = in_turn(
            lambda: timed(lambda: _often(worked)),
            lambda: timed(lambda: _often(submitted)),
            pairs=setting.choose(100, 20),
        )
    worker._pools.close()
    app.close()
    mine, theirs = ([_each(one) for one in side] for side in (comparison.ours, comparison.baseline))
    return [
        Line(
            "lean",
            "Python per no-op job",
            f"{min(mine):.1f} us at best, quickest quarter {spread(mine).low:.1f} us",
            "about 10 us",
            detail=f"in the middle {spread(mine).median:.1f} us; a ThreadPoolExecutor without any of it "
            f"{min(theirs):.1f} us at best, {spread(theirs).low:.1f} and {spread(theirs).median:.1f} us",
            figures={"least_seconds": min(mine) / 1e6, "median_seconds": spread(mine).median / 1e6},
        )
    ]


class _Over:
    """Stands where a runner is told who makes the next cycle, and says when all runs have ended."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.event = threading.Event()

    def after_run(self, is_alone: Callable[[], bool]) -> None:
        if not self._runs.in_flight:
            self.event.set()


def _often(work: Callable[[], None]) -> None:
    for _ in range(_BATCHES):
        work()


def _each(timing: Timing) -> float:
    return timing.cpu / (_BATCH * _BATCHES) * 1e6


def _claim(number: int, task: str) -> Claim:
    return Claim(
        id=number,
        claim=1,
        task=task,
        queue="default",
        args_json=f'{{"a":{number},"b":2}}',
        priority=0,
        failures=0,
        max_attempts=3,
        created=0.0,
        due=0.0,
        taken=0.0,
        claimed_by="bench",
    )
