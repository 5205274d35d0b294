"""DuckDB in owner mode and in file mode beside SQLite: submits, claims alone and in batches, pickup, idle.

Two targets, both of file mode: what a batch gains, and what an idle worker costs. A bare turn (open, update
one row, close) is timed beside them: it is the floor of file mode on this machine, at this moment.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import duckdb

from benchmarks.report import Line, Setting
from rowlock import Rowlock
from rowlock.job import ClaimRequest, Ending, NewJob, Outcome
from rowlock.stores.base import Registration

_SCENARIO = "duckdb_modes"
_NAMES = ("sqlite", "duckdb owner", "duckdb file")
_LEAST_GAIN, _MOST_IDLE = 20.0, 2.0
_SETTLED_SECONDS = 2.0  # after which a worker has registered and waits
_ENQUEUE = """
import sys, time
from rowlock import Rowlock
app = Rowlock(sys.argv[1])
app.depth()
for _ in range(int(sys.argv[2])):
    sys.stdin.readline()
    at = time.time()
    app.enqueue("noted", {"at": at})
"""


def run(setting: Setting) -> list[Line]:
    """All figures for all three stores, and the table of `docs/stores.md` from them."""
    lines = [_line("duckdb", "a bare turn, p50", statistics.median(_bare_turns(setting)))]
    for name, make in _stores(setting).items():
        app = make()
        lines += _figures(name, app, setting.choose(60, 20))
        lines += _pickup(name, app, setting.choose(30, 10))
        lines.append(_idle(name, app, setting.choose(10, 5)))
        app.close()
    print(f"\n\n{_for_the_docs(lines)}\n", flush=True)
    return lines


def _for_the_docs(lines: list[Line]) -> str:
    """The figures as a table in Markdown, one column for each store."""
    shown = {line.what: line.measured for line in lines}
    kinds = [what.partition(": ")[2] for what in shown if what.startswith("sqlite")]
    rows = [["", "SQLite", "DuckDB, owner mode", "DuckDB, file mode"], ["---"] * 4]
    rows += [[kind, *(shown[f"{name}: {kind}"] for name in _NAMES)] for kind in kinds]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _bare_turns(setting: Setting) -> list[float]:
    path = str(setting.folder / "bare.duckdb")
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, n INTEGER)")
        connection.execute("INSERT INTO bare VALUES (1, 0)")

    def turn() -> None:
        with duckdb.connect(path) as connection:
            connection.execute("UPDATE bare SET n = n + 1")

    return [_timed(turn) for _ in range(setting.choose(50, 20))]


def _stores(setting: Setting) -> dict[str, Callable[[], Rowlock]]:
    folder = setting.folder
    made: list[Callable[[], Rowlock]] = [
        lambda: Rowlock(f"sqlite:///{folder / 'jobs.db'}"),
        lambda: Rowlock(connection=duckdb.connect(str(folder / "owned.duckdb"))),
        lambda: Rowlock(f"duckdb:///{folder / 'shared.duckdb'}"),
    ]
    return dict(zip(_NAMES, made, strict=True))


def _figures(name: str, app: Rowlock, times: int) -> list[Line]:
    store = app.store
    who = store.register(
        Registration(
            id="bench",
            host="here",
            pid=1,
            version="0",
            queues=(),
            tasks={"*": {}},
            strategy="FIFO",
            concurrency=1,
            lease=600.0,
        )
    )
    job = NewJob(task="noted", queue="default", args="{}")
    submits = [_timed(lambda: store.insert([job])) for _ in range(times)]
    store.insert([job] * (100 * (times // 2)))
    one = [_timed(lambda: _exchange(store, who, 1)) for _ in range(times)]
    many = [_timed(lambda: _exchange(store, who, 100)) for _ in range(times // 2)]
    per_job = statistics.median(many) / 100
    gain = statistics.median(one) / per_job
    return [
        _line(name, "submit, p50", statistics.median(submits)),
        _line(name, "claim and complete one, p50 / p95", statistics.median(one), _p95(one)),
        Line(_SCENARIO, f"{name}: jobs per second, one by one", f"{1.0 / statistics.median(one):,.0f}"),
        Line(_SCENARIO, f"{name}: jobs per second, 100 at once", f"{1.0 / per_job:,.0f}"),
        _target(
            name,
            "what 100 at once gain, per job",
            f"{gain:.0f} x",
            f">= {_LEAST_GAIN:.0f} x",
            gain >= _LEAST_GAIN,
        ),
    ]


def _exchange(store: Any, who: str, count: int) -> None:
    claims = store.exchange(who, request=ClaimRequest(count=count, strategy="FIFO")).claims
    assert len(claims) == count
    outcomes = [
        Outcome(
            id=one.id, claim=one.claim, ending=Ending.COMPLETED, task=one.task, queue=one.queue, result="1"
        )
        for one in claims
    ]
    store.exchange(who, outcomes)


def _pickup(name: str, app: Rowlock, times: int) -> list[Line]:
    """From the call of `enqueue` to the first line of the task; by another process where there may be one."""
    waited: list[float] = []
    noted = app.task(lambda at: waited.append(time.time() - at), name="noted")  # type: ignore[call-overload]
    producer: Any = None
    if "owner" not in name:
        command = [sys.executable, "-c", _ENQUEUE, app.store.url, str(times)]
        producer = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    with app.worker(concurrency=1).background():
        time.sleep(_SETTLED_SECONDS)
        for done in range(1, times + 1):
            time.sleep(0.1)
            if producer is None:
                noted.enqueue(at=time.time())
            else:
                producer.stdin.write("\n")
                producer.stdin.flush()
            while len(waited) < done:
                time.sleep(0.002)
    if producer is not None:
        producer.communicate()
    return [_line(name, "pickup, p50 / p95", statistics.median(waited), _p95(waited))]


def _idle(name: str, app: Rowlock, seconds: float) -> Line:
    with app.worker(concurrency=1).background():
        time.sleep(_SETTLED_SECONDS)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    share = 100.0 * used / seconds
    return _target(
        name, "an idle worker", f"{share:.2f} % of a core", f"< {_MOST_IDLE:.0f} %", share < _MOST_IDLE
    )


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def _line(name: str, what: str, *seconds: float) -> Line:
    shown = " / ".join(f"{1000.0 * each:.1f}" for each in seconds)
    return Line(_SCENARIO, f"{name}: {what}", f"{shown} ms", figures={"seconds": seconds[0]})


def _target(name: str, what: str, measured: str, target: str, reached: bool) -> Line:
    """A figure that has a target in file mode."""
    if name != "duckdb file":
        return Line(_SCENARIO, f"{name}: {what}", measured)
    return Line(_SCENARIO, f"{name}: {what}", measured, target, reached)
