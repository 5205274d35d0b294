"""Single claims from a large backlog in PostgreSQL: every strategy, all queues and a named one.

Each claim commits durably, so a bare durable commit of one row, timed beside it, is the floor on this server.
The same claims with `synchronous_commit` off show the work alone. The planner knows nothing of the table: no
ANALYZE, and autovacuum is off for it, so that none comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks import postgres_backlog
from benchmarks.apps import app_at
from benchmarks.backlog import Backlog
from benchmarks.byhand_postgres import connect
from benchmarks.claiming import FEW_LEVELS, Ground, Kind, backlog_line, floor_line, kinds_of, line
from benchmarks.report import Line, Setting
from benchmarks.server import a_server
from rowlock.stores.postgres import PostgresStore
from rowlock.strategies import names

_SCENARIO = "postgres_claims"
_LESS_THAN = 0.002


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    rows = setting.choose(1_000_000, 100_000)
    one = _measure(setting, rows, "1 queue", 1)
    twenty = _measure(setting, rows, "20 queues", 20)
    return [
        *(line(_SCENARIO, kind, _LESS_THAN, judged=True) for kind in one),
        *(line(_SCENARIO, kind, _LESS_THAN, judged=False) for kind in twenty),
        floor_line(_SCENARIO, one + twenty),
        backlog_line(_SCENARIO, rows, ", never analysed; autovacuum off for the table"),
    ]


def _measure(setting: Setting, rows: int, title: str, queues: int) -> list[Kind]:
    with a_server() as url, connect(url) as bare:
        postgres_backlog.build(Backlog(rows, rows, rows // 10, queues, FEW_LEVELS), url)
        store = app_at(url).store
        assert isinstance(store, PostgresStore)
        bare.execute("CREATE TABLE floor (at double precision)")
        kinds = kinds_of(title, queues, names())
        ground = Ground(store, lambda: _commit(bare), lambda: _not_waiting_for_the_disk(store))
        ground.measure(kinds, blocks=setting.choose(25, 6))
        postgres_backlog.check_never_analysed(bare)
        store.close()
    return kinds


def _commit(connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO floor VALUES (1.0)", prepare=True)


@contextmanager
def _not_waiting_for_the_disk(store: PostgresStore) -> Iterator[None]:
    with store.database.connections.borrowed() as connection:
        pass  # one thread claims, so there is one connection, which is the next to be borrowed
    connection.execute("SET synchronous_commit = off")
    yield
    connection.execute("SET synchronous_commit = on")
