"""`enqueue_many` of 10,000 jobs in PostgreSQL, beside ids reserved and one COPY written by hand."""

from __future__ import annotations

from benchmarks.apps import adding_app, calls
from benchmarks.byhand_postgres import HandWrittenQueue
from benchmarks.measure import in_turn, timed
from benchmarks.report import Line, Setting, compared
from benchmarks.server import a_server

_JOBS = 10_000
_AT_LEAST = 0.6


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    jobs = calls(_JOBS)
    with a_server() as url:
        app, add = adding_app(url)
        byhand = HandWrittenQueue(url)
        comparison = in_turn(
            lambda: timed(lambda: add.enqueue_many(jobs)),
            lambda: timed(lambda: byhand.enqueue_many("add", jobs)),
            pairs=setting.choose(15, 5),
        )
        app.close()
        byhand.close()
    return [compared("postgres_enqueue_bulk", "speed, by hand = 1", comparison, _JOBS, _AT_LEAST)]
