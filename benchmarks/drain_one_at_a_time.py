"""A worker with one place drains jobs that do nothing, beside the fused loop written by hand.

The loop by hand is the best there is: one transaction finishes a job and claims the next, in one thread.
"""

from __future__ import annotations

from benchmarks.apps import add, adding_app, calls
from benchmarks.byhand import HandWrittenQueue
from benchmarks.measure import Timing, in_turn, timed
from benchmarks.report import Line, Setting, compared

_JOBS = 500  # per timing: many short pairs say more than a few long ones when the disk has moods
_AT_LEAST = 0.5


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    app, task = adding_app(setting.folder / "rowlock.db")
    byhand = HandWrittenQueue(setting.folder / "byhand.db")
    jobs = calls(_JOBS)

    def ours() -> Timing:
        task.enqueue_many(jobs)
        done: list[int] = []
        timing = timed(
            lambda: done.append(app.worker(concurrency=1, prefetch=0).run(until_empty=True).completed)
        )
        assert done == [_JOBS]
        return timing

    def baseline() -> Timing:
        byhand.enqueue_many("add", jobs)
        done: list[int] = []
        timing = timed(lambda: done.append(byhand.drain({"add": add}, "bench")))
        assert done == [_JOBS]
        return timing

    comparison = in_turn(ours, baseline, pairs=setting.choose(20, 6))
    app.close()
    byhand.close()
    return [compared("drain_one_at_a_time", "speed, by hand = 1", comparison, _JOBS, _AT_LEAST)]
