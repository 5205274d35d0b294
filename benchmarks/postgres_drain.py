"""A worker with four threads drains jobs that do nothing from PostgreSQL, beside batches written by hand.

By hand, one statement finishes a batch of 200 and claims the next; rowlock forms its batches by itself.
"""

from __future__ import annotations

from benchmarks.apps import add, adding_app, calls
from benchmarks.byhand_postgres import HandWrittenQueue
from benchmarks.measure import Timing, in_turn, timed
from benchmarks.report import Line, Setting, compared
from benchmarks.server import a_server

_BATCH = 200
_AT_LEAST = 0.45


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    jobs = calls(setting.choose(10_000, 3_000))
    with a_server() as url:
        app, task = adding_app(url)
        byhand = HandWrittenQueue(url)

        def ours() -> Timing:
            task.enqueue_many(jobs)
            done: list[int] = []
            timing = timed(lambda: done.append(app.worker().run(until_empty=True).completed))
            assert done == [len(jobs)]
            return timing

        def baseline() -> Timing:
            byhand.enqueue_many("add", jobs)
            done: list[int] = []
            timing = timed(lambda: done.append(byhand.drain_in_batches({"add": add}, "bench", _BATCH)))
            assert done == [len(jobs)]
            return timing

        comparison = in_turn(ours, baseline, pairs=setting.choose(12, 4))
        app.close()
        byhand.close()
    return [compared("postgres_drain", "speed, by hand = 1", comparison, len(jobs), _AT_LEAST)]
