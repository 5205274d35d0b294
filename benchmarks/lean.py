"""What a worker spends on a job that does nothing, from claim to outcome, without the database.

The goal is about 10 us. `submit` and `result` of a ThreadPoolExecutor, for the same function, tell how fast
the machine is at the moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.apps import add, adding_app
from benchmarks.measure import Timing, in_turn, spread, timed
from benchmarks.report import Line, Setting
from rowlock.execution.residents import Residents
from rowlock.job import Claim
from rowlock.pools.thread import ThreadPool
from rowlock.worker.finisher import Finisher
from rowlock.worker.runs import PoolState, Runs

_BATCH = 250
_BATCHES = 8  # per timing, as they follow each other while a queue is drained


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    app, task = adding_app(setting.folder / "rowlock.db")
    app.load_tasks()
    finisher, over = Finisher(), threading.Event()

    def look(here: bool) -> None:
        if not runs.in_flight:
            over.set()

    runs = Runs(app, lambda task: "thread", finisher.add, look, 2.0)
    runs.pool_states = {"thread": PoolState(ThreadPool(1, app, runs.done, Residents()), 1, None)}
    claims = [_claim(number, task.name) for number in range(_BATCH)]

    def worked(count: int = _BATCH) -> None:
        over.clear()
        runs.take(claims[:count], count)
        over.wait()
        batch = finisher.take("bench")
        runs.learn(batch.outcomes)
        finisher.delivered(())
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
    runs.close()
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
