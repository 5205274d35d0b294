"""What `fillfactor` and autovacuum do to draining, for choosing how rowlock_jobs is created. Run when named.

Two threads exchange claims with the store and run nothing. Autovacuum looks every second, not every minute:
a run is too short to meet it otherwise.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import psycopg

from benchmarks.apps import adding_app, calls
from benchmarks.byhand_postgres import connect
from benchmarks.claiming import registration
from benchmarks.report import Line, Setting
from benchmarks.server import a_server
from rowlock.job import Claim, ClaimRequest, Ending, Outcome
from rowlock.stores.sql.store import Store
from rowlock.task import Task

_WORKERS = 2
_FILLFACTORS = (100, 80, 60)
_VACUUMS = {
    "default": "autovacuum_enabled = on",
    "eager": "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0",
    "off": "autovacuum_enabled = off",
}
_BATCHES = (1, 50)
_RESET = (
    "TRUNCATE rowlock_jobs; ALTER TABLE rowlock_jobs RESET "
    "(autovacuum_enabled, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay, fillfactor)"
)
_SIZES = """
SELECT pg_table_size('rowlock_jobs'), pg_indexes_size('rowlock_jobs'),
       (SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'rowlock_jobs')
"""


@dataclass
class Variant:
    """One way to set the table up, and what was measured of it."""

    fillfactor: int
    vacuum: str
    batch: int
    rates: list[float] = field(default_factory=list)
    bytes: int = 0
    index_bytes: int = 0
    vacuums: int = 0

    def measure(self, connection: psycopg.Connection, task: Task[Any, int], store: Store, jobs: int) -> None:
        """Drain so many jobs once more."""
        connection.execute(_RESET)
        settings = f"fillfactor = {self.fillfactor}, {_VACUUMS[self.vacuum]}"
        connection.execute(f"ALTER TABLE rowlock_jobs SET ({settings})".encode())
        before = _sizes(connection)
        task.enqueue_many(calls(jobs))
        connection.execute("CHECKPOINT")
        self.rates.append(jobs / _seconds_to_drain(store, self.batch, jobs))
        self.bytes, self.index_bytes, vacuums = _sizes(connection)
        self.vacuums += vacuums - before[2]

    def line(self) -> Line:
        rate = statistics.median(self.rates)
        return Line(
            "postgres_tables",
            f"fillfactor {self.fillfactor}, autovacuum {self.vacuum}, batches of {self.batch}",
            f"{rate:,.0f} jobs/s",
            detail=f"{min(self.rates):,.0f} to {max(self.rates):,.0f} in {len(self.rates)} runs; "
            f"table {self.bytes / 1e6:.1f} MB, indexes {self.index_bytes / 1e6:.1f} MB, "
            f"vacuumed {self.vacuums} times",
            figures={
                "per_second": rate,
                "bytes": self.bytes,
                "index_bytes": self.index_bytes,
                "vacuums": self.vacuums,
            },
        )


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    variants = [Variant(*settings) for settings in product(_FILLFACTORS, _VACUUMS, _BATCHES)]
    with a_server({"autovacuum_naptime": "1s"}) as url, connect(url) as connection:
        app, task = adding_app(url)
        for number in range(_WORKERS):
            app.store.register(registration(f"bench-{number}"))
        for _ in range(setting.choose(2, 1)):  # all once, then all again: a slow minute hits no variant alone
            for variant in variants:
                variant.measure(connection, task, app.store, setting.choose(20_000, 1_000))
        app.close()
    return [variant.line() for variant in variants]


def _seconds_to_drain(store: Store, batch: int, jobs: int) -> float:
    done: list[int] = []
    threads = [
        threading.Thread(
            target=lambda name: done.append(_drain(store, name, batch)), args=[f"bench-{number}"]
        )
        for number in range(_WORKERS)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    assert sum(done) == jobs
    return seconds


def _drain(store: Store, worker: str, batch: int) -> int:
    done = 0
    outcomes: list[Outcome] = []
    while True:
        got = store.exchange(worker, outcomes, ClaimRequest(count=batch))
        done += len(outcomes) - len(got.lost)
        if not got.claims:
            return done
        outcomes = list(_completed(got.claims))


def _completed(claims: Iterable[Claim]) -> Iterator[Outcome]:
    for claim in claims:
        yield Outcome(id=claim.id, claim=claim.claim, ending=Ending.COMPLETED, result="3")


def _sizes(connection: psycopg.Connection) -> tuple[int, int, int]:
    size, index_size, vacuums = connection.execute(_SIZES).fetchone() or (0, 0, 0)
    return size, index_size, vacuums or 0
