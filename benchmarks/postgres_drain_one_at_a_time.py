"""A worker with one place drains jobs that do nothing from PostgreSQL, beside the fused loop written by hand.

The loop by hand is the best there is: one statement finishes a job and claims the next, in one thread.
"""

from __future__ import annotations

from benchmarks.apps import add, adding_app, calls
from benchmarks.byhand_postgres import HandWrittenQueue
from benchmarks.measure import Timing, in_turn, timed
from benchmarks.report import Line, Setting, compared
from benchmarks.server import a_server

_AT_LEAST = 0.7


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    count = setting.choose(1_000, 500)  # the worker's start and end are in it, once per timing
    jobs = calls(count)
    with a_server() as url:
        app, task = adding_app(url)
        byhand = HandWrittenQueue(url)

        def ours() -> Timing:
            task.enqueue_many(jobs)
            done: list[int] = []
            timing = timed(
                lambda: done.append(app.worker(concurrency=1, prefetch=0).run(until_empty=True).completed)
            )
            assert done == [count]
            return timing

        def baseline() -> Timing:
            byhand.enqueue_many("add", jobs)
            done: list[int] = []
            timing = timed(lambda: done.append(byhand.drain({"add": add}, "bench")))
            assert done == [count]
            return timing

        comparison = in_turn(ours, baseline, pairs=setting.choose(20, 6))
        app.close()
        byhand.close()
    return [compared("postgres_drain_one_at_a_time", "speed, by hand = 1", comparison, count, _AT_LEAST)]
