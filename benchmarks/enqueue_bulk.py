"""`enqueue_many` of 10,000 jobs, beside one transaction with `executemany` written by hand."""

from __future__ import annotations

from benchmarks.apps import adding_app, calls
from benchmarks.byhand import HandWrittenQueue
from benchmarks.measure import in_turn, timed
from benchmarks.report import Line, Setting, compared

_JOBS = 10_000
_AT_LEAST = 0.5


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    app, add = adding_app(setting.folder / "rowlock.db")
    byhand = HandWrittenQueue(setting.folder / "byhand.db")
    jobs = calls(_JOBS)
    comparison = in_turn(
        lambda: timed(lambda: add.enqueue_many(jobs)),
        lambda: timed(lambda: byhand.enqueue_many("add", jobs)),
        pairs=setting.choose(15, 5),
    )
    app.close()
    byhand.close()
    return [compared("enqueue_bulk", "speed, by hand = 1", comparison, _JOBS, _AT_LEAST)]
