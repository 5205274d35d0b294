"""Claims beside 100,000 jobs of a task that the worker does not know, ahead of its own, on both databases.

The same claims without those jobs are timed beside them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from benchmarks.apps import app_at
from benchmarks.claiming import registration
from benchmarks.measure import percentile
from benchmarks.report import Line, Setting
from benchmarks.server import a_server
from rowlock.job import ClaimRequest, NewJob
from rowlock.stores.sql.store import Store
from rowlock.strategies import get_strategy, names

_FOREIGN = 100_000
_COUNTS = (1, 10)
_LESS_THAN = 0.010


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    claims = setting.choose(200, 100)
    lines = []
    for database in ("sqlite", "postgresql"):
        for newest in (False, True):
            strategies = [name for name in names() if get_strategy(name).order[-1].descending == newest]
            with _filled(setting, database, 0, newest, claims) as bare:
                alone = _measure(bare, strategies, claims)
            with _filled(setting, database, _FOREIGN, newest, claims) as store:
                beside = _measure(store, strategies, claims)
            lines += [_line(database, what, beside[what], alone[what]) for what in beside]
    return lines


@contextmanager
def _filled(setting: Setting, database: str, foreign: int, newest: bool, claims: int) -> Iterator[Store]:
    if database == "sqlite":
        path = setting.folder / f"{foreign}-{newest}.db"
        with closing(app_at(path).store) as store:
            yield _fill(store, foreign, newest, claims)
    else:
        with a_server() as url, closing(app_at(url).store) as store:
            yield _fill(store, foreign, newest, claims)


def _fill(store: Store, foreign: int, newest: bool, claims: int) -> Store:
    own = claims * sum(_COUNTS) * len(names())
    tasks = [("foreign", foreign), ("own", own)]
    for task, number in reversed(tasks) if newest else tasks:
        for start in range(0, number, 5_000):
            jobs = [NewJob(task=task, queue="default", args="{}")] * min(5_000, number - start)
            store.insert(jobs)
    return store


def _measure(store: Store, strategies: list[str], claims: int) -> dict[str, list[float]]:
    """Seconds per claim, by strategy and count; each kind is another worker's, which begins without marks."""
    times = {}
    for strategy in strategies:
        for count in _COUNTS:
            worker, after, seconds = f"{strategy}, {count} at a time", "", []
            store.register(registration(worker))
            for _ in range(claims):
                request = ClaimRequest(count=count, strategy=strategy, after=after, unknown=("foreign",))
                start = time.perf_counter()
                got = store.exchange(worker, request=request)
                seconds.append(time.perf_counter() - start)
                assert [claim.task for claim in got.claims] == ["own"] * count
                after = got.last_queue
            times[worker] = seconds
    return times


def _line(database: str, what: str, beside: list[float], alone: list[float]) -> Line:
    p50, p95 = percentile(beside, 50), percentile(beside, 95)
    alone50, alone95 = percentile(alone, 50), percentile(alone, 95)
    return Line(
        "foreign",
        f"{database}, {what}",
        f"p95 {p95 * 1e3:.2f} ms",
        f"< {_LESS_THAN * 1e3:.0f} ms",
        p95 < _LESS_THAN,
        f"p50 {p50 * 1e3:.2f} ms, longest {max(beside) * 1e3:.0f} ms; "
        f"with no others ahead p50 {alone50 * 1e3:.2f} ms, p95 {alone95 * 1e3:.2f} ms",
        {
            "p50_seconds": p50,
            "p95_seconds": p95,
            "longest_seconds": max(beside),
            "alone_p50_seconds": alone50,
            "alone_p95_seconds": alone95,
        },
    )
