"""Single claims from a large backlog: every strategy, all queues and a named one, one queue and twenty.

Each claim commits durably, so a bare durable commit of one row, timed beside it, is the floor on this disk.
The same claims with `synchronous` off show the work alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.apps import app_at
from benchmarks.backlog import Backlog
from benchmarks.byhand import connect
from benchmarks.claiming import (
    ALL_LEVELS,
    FEW_LEVELS,
    Ground,
    Kind,
    backlog_line,
    floor_line,
    kinds_of,
    line,
)
from benchmarks.measure import let_the_disk_settle
from benchmarks.report import Line, Setting
from rowlock.stores.sqlite import SqliteStore
from rowlock.strategies import names

_SCENARIO = "claims"
_LESS_THAN = 0.001


class PoolPlan:
    """A bare durable commit of one row, in a file of its own: another writer would empty our page cache."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._connection.execute("CREATE TABLE floor (at REAL)")

    def commit(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO floor VALUES (1.0)")
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    rows = setting.choose(1_000_000, 100_000)
    one = _measure(setting, rows, "1 queue", 1, FEW_LEVELS, names())
    twenty = _measure(setting, rows, "20 queues", 20, FEW_LEVELS, names())
    deep = _measure(
        setting, rows, "201 levels", 1, ALL_LEVELS, [name for name in names() if name != "PRIORITY"]
    )
    return [
        *(line(_SCENARIO, kind, _LESS_THAN, judged=True) for kind in one + twenty),
        *(line(_SCENARIO, kind, _LESS_THAN, judged=False) for kind in deep),
        floor_line(_SCENARIO, one + twenty + deep),
        backlog_line(_SCENARIO, rows),
    ]


def _measure(
    setting: Setting, rows: int, title: str, queues: int, levels: Sequence[int], strategies: Sequence[str]
) -> list[Kind]:
    path = setting.folder / f"{title.replace(' ', '-')}.db"
    Backlog(rows, rows, rows // 10, queues, levels).build(path, time.time())
    let_the_disk_settle()
    store = app_at(path).store
    assert isinstance(store, SqliteStore)
    pool_plan = PoolPlan(path.with_suffix(".floor.db"))
    kinds = kinds_of(title, queues, strategies)
    ground = Ground(store, pool_plan.commit, lambda: _not_waiting_for_the_disk(store))
    ground.measure(kinds, blocks=setting.choose(25, 6))
    pool_plan.close()
    store.close()
    for file in setting.folder.glob(f"{path.stem}*"):
        file.unlink()
    return kinds


@contextmanager
def _not_waiting_for_the_disk(store: SqliteStore) -> Iterator[None]:
    with store.database.connections.borrowed() as connection:
        pass
    connection.execute("PRAGMA synchronous = OFF")
    yield
    connection.execute("PRAGMA synchronous = FULL")
