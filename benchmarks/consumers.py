"""Claims from a user's table in which nearly all rows are done; and rows beside jobs, both without work.

A claim is timed with its durable commit, in a table whose index is there and which was never analysed.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable
from contextlib import closing

from benchmarks.apps import adding_app, calls
from benchmarks.claiming import registration
from benchmarks.measure import Timing, in_turn, let_the_disk_settle, timed
from benchmarks.report import Line, Setting, compared
from rowlock import Rowlock
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from rowlock.task import Task

_LESS_THAN = 0.002
_AT_LEAST = 0.4
_CREATE = "CREATE TABLE recordings (id INTEGER PRIMARY KEY, time REAL, path TEXT, analysis_state TEXT)"
_FILL = """
WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :rows)
INSERT INTO recordings
SELECT n, n, 'recording-' || n || '.wav', CASE WHEN n <= :done THEN '{"birdnet":true}' END FROM n
"""


Make = Callable[[int, int], Rowlock]  # an app with a table of so many rows, of which so many are done


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""

    def make(rows: int, done: int) -> Rowlock:
        path = setting.folder / f"rows-{rows}.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE IF EXISTS recordings")
            connection.execute(_CREATE)
            connection.execute(_FILL, {"rows": rows, "done": done})
        return with_consumer(f"sqlite:///{path}")

    jobs, task = adding_app(setting.folder / "jobs.db")
    lines = [
        claims("consumers", setting, make),
        throughput("consumers", setting, make, jobs, task),
    ]
    jobs.close()
    return lines


def with_consumer(url: str) -> Rowlock:
    """An app whose consumer does nothing, with the index that it needs."""
    app = Rowlock(url)

    @app.consumer("birdnet", table="recordings", state="analysis_state", order_by="time")
    def birdnet(recording: Row) -> None:
        pass

    app.consumer_source("birdnet").table.indexes.create()
    return app


def claims(scenario: str, setting: Setting, make: Make) -> Line:
    """How long a claim takes where nearly all is done."""
    rows = setting.choose(1_000_000, 100_000)
    app = make(rows, rows - 1_000)
    let_the_disk_settle()
    store = app.workload(consumer="birdnet").store
    assert isinstance(store, Store)
    worker = app.store.register(registration("bench"))
    seconds = []
    for _ in range(setting.choose(900, 300)):
        start = time.perf_counter()
        (claim,) = store.exchange(worker, request=ClaimRequest(count=1)).claims
        seconds.append(time.perf_counter() - start)
        store.exchange(worker, [claim.ended(Ending.COMPLETED)])
    app.close()
    p95 = statistics.quantiles(seconds, n=20)[-1]
    return Line(
        scenario,
        f"claim at {rows:,} rows, 1,000 due",
        f"p50 {statistics.median(seconds) * 1e3:.2f} ms, p95 {p95 * 1e3:.2f} ms",
        f"p95 < {_LESS_THAN * 1e3:g} ms",
        p95 < _LESS_THAN,
        "with its durable commit",
        {"p50": statistics.median(seconds), "p95": p95},
    )


def throughput(scenario: str, setting: Setting, make: Make, jobs: Rowlock, task: Task[..., int]) -> Line:
    """Rows beside jobs, none of which does anything."""
    rows = setting.choose(10_000, 3_000)
    given = calls(rows)

    def ours() -> Timing:
        app = make(rows, 0)
        done: list[int] = []
        timing = timed(lambda: done.append(app.consume("birdnet", until_empty=True).completed))
        app.close()
        assert done == [rows]
        return timing

    def baseline() -> Timing:
        task.enqueue_many(given)
        return timed(lambda: jobs.worker().run(until_empty=True))

    comparison = in_turn(ours, baseline, pairs=setting.choose(12, 4))
    return compared(scenario, "speed, no-op jobs = 1", comparison, rows, _AT_LEAST)
