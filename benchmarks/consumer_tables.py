"""Claims from users' tables of several shapes, in nearly all of whose rows there is nothing to do.

The shapes are claimed from in turn, so that a slow moment hits all of them. Each claim is timed with its
durable commit; the tables have their indexes and were never analysed.
"""

from __future__ import annotations

import re
import sqlite3
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from benchmarks.claiming import registration
from benchmarks.measure import let_the_disk_settle, percentile, spread
from benchmarks.report import Line, Setting
from rowlock import Flag, Rowlock, Status
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.sql.store import Store

_LESS_THAN = 0.002
_DUE = 1_000
_AHEAD = 100_000
_STATUS = Status("status", due="new", running="busy", done="done", failed="bad")
# Of each shape: its columns, what fills them (n is the row's number, those up to DONE are done), its options.
Shape = tuple[str, str, dict[str, Any]]
_SHAPES: dict[str, Shape] = {
    "a JSON column": (
        "time NUMBER, state JSON",
        "n, CASE WHEN n <= DONE THEN MARKED END",
        {"state": "state", "order_by": "time"},
    ),
    "a status, three order columns": (
        "priority integer, time NUMBER, source text, status text",
        "n % 5, n, 'source ' || n % 3, CASE WHEN n <= DONE THEN 'done' ELSE 'new' END",
        {"status": _STATUS, "order_by": "priority DESC, time, source"},
    ),
    "a flag, two order columns": (
        "priority integer, time NUMBER, uploaded boolean",
        "n % 5, n, n <= DONE",
        {"flag": Flag("uploaded"), "order_by": "priority DESC, time"},
    ),
    "rows whose due_at lies ahead": (
        "time NUMBER, status text, run_after MOMENT",
        "n, 'new', CASE WHEN n <= DONE THEN TOMORROW END",
        {"status": _STATUS, "order_by": "time", "due_at": "run_after"},
    ),
}
_WAITING = "rows whose due_at lies ahead"  # they come first in the order; behind them are some that are due


@dataclass(frozen=True)
class Dialect:
    """How a database writes what differs; `numbers` are those from 1 to ROWS, as n."""

    words: Mapping[str, str]
    numbers: str


@dataclass
class Measured:
    """One shape, and how long each of its claims took."""

    store: Store
    seconds: list[float] = field(default_factory=list)


SQLITE = Dialect(
    {
        "NUMBER": "REAL",
        "JSON": "TEXT",
        "MOMENT": "TEXT",
        "MARKED": """'{"shape_0": true}'""",
        "TOMORROW": "datetime('now', '+1 day')",
    },
    "(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ROWS) SELECT n FROM n)",
)


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    path = setting.folder / "tables.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        return measure("consumer_tables", setting, f"sqlite:///{path}", db, SQLITE)


def measure(scenario: str, setting: Setting, url: str, db: Any, dialect: Dialect) -> list[Line]:
    """Fill a table of each shape, and claim from them in turn."""
    rows = setting.choose(1_000_000, 100_000)
    app = Rowlock(url)
    app.store.open()
    kinds: dict[str, Measured] = {}
    for number, name in enumerate(_SHAPES):
        done = _AHEAD if name == _WAITING else rows - _DUE
        kinds[name] = _made(app, db, f"shape_{number}", _SHAPES[name], done, dialect)
    let_the_disk_settle()
    worker = app.store.register(registration("bench"))
    for _ in range(setting.choose(30, 10)):
        for kind in kinds.values():
            _claim(kind, worker, 30)
    ahead = kinds.pop(_WAITING)
    lines = [
        *(_line(scenario, f"claim at {rows:,} rows, 1,000 due: {name}", one) for name, one in kinds.items()),
        _line(scenario, f"claim behind {_AHEAD:,} {_WAITING}", ahead, judged=False),
        _next_due(scenario, ahead, worker),
    ]
    app.close()
    return lines


def _made(app: Rowlock, db: Any, table: str, shape: Shape, done: int, dialect: Dialect) -> Measured:
    """A table in which so many rows are done (or wait) and some are due, and its consumer."""
    columns, values, chosen = shape
    words = {**dialect.words, "DONE": str(done), "ROWS": str(done + _DUE)}
    columns, values, numbers = (_written(text, words) for text in (columns, values, dialect.numbers))
    db.execute(f"CREATE TABLE {table} (id integer PRIMARY KEY, {columns})")
    db.execute(f"INSERT INTO {table} SELECT n, {values} FROM {numbers}")

    @app.consumer(table, table=table, **chosen)
    def nothing(row: Row) -> None:
        """Does nothing."""

    app.consumer_source(table).table.indexes.create()
    store = app.workload(consumer=table).store
    assert isinstance(store, Store)
    return Measured(store)


def _written(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Z]{4,}\b", lambda word: words.get(word[0], word[0]), text)


def _claim(kind: Measured, worker: str, count: int) -> None:
    for _ in range(count):
        start = time.perf_counter()
        (claim,) = kind.store.exchange(worker, request=ClaimRequest(count=1)).claims
        kind.seconds.append(time.perf_counter() - start)
        kind.store.exchange(worker, [claim.ended(Ending.COMPLETED)])


def _line(scenario: str, what: str, kind: Measured, judged: bool = True) -> Line:
    p50, p95 = statistics.median(kind.seconds), percentile(kind.seconds, 95)
    quick = spread(kind.seconds).low
    return Line(
        scenario,
        what,
        f"p50 {p50 * 1e3:.2f} ms, p95 {p95 * 1e3:.2f} ms",
        f"p95 < {_LESS_THAN * 1e3:g} ms" if judged else "",
        p95 < _LESS_THAN if judged else None,
        f"with its durable commit; quickest quarter {quick * 1e3:.2f} ms",
        {"quickest_quarter": quick, "p50": p50, "p95": p95},
    )


def _next_due(scenario: str, ahead: Measured, worker: str) -> Line:
    """What an idle worker asks before it waits."""
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        assert ahead.store.next_needed(worker) is not None
        seconds.append(time.perf_counter() - start)
    p50, p95 = statistics.median(seconds), percentile(seconds, 95)
    what = f"when the next of {_AHEAD:,} rows is due"
    return Line(
        scenario, what, f"p50 {p50 * 1e3:.2f} ms, p95 {p95 * 1e3:.2f} ms", figures={"p50": p50, "p95": p95}
    )
