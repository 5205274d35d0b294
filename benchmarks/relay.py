"""Jobs by way of RQ: how long one waits for an idle `--via rq` worker, and how many pass beside RQ's own.

The databases are PostgreSQL and SQLite, durable as they come; RQ's SimpleWorker, which does not fork either,
keeps jobs in Redis alone. Each side is one process; its time is that from the first no-op job to the last.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Timing, in_turn, percentile
from benchmarks.report import Line, Setting, compared
from benchmarks.server import a_server
from rowlock import Rowlock

_P50_LESS_THAN = 0.020
_AT_LEAST = 0.90
_PATIENCE = 60.0
_ROOT = Path(__file__).resolve().parents[1]
_moments: list[float] = []


def no_op() -> None:
    """A job that does nothing but say when."""
    _moments.append(time.perf_counter())


def started() -> float:
    """When it started, on the clock that all processes of a machine share."""
    return time.monotonic()


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    from tests.servers.redis import redis_server

    lines = []
    with a_server() as postgres, redis_server() as server, tempfile.TemporaryDirectory() as folder:
        for store, url in (("PostgreSQL", postgres), ("SQLite", f"sqlite:///{folder}/jobs.db")):
            lines += _on(store, url, server.url, setting)
    return lines


def _on(store: str, url: str, redis_url: str, setting: Setting) -> list[Line]:
    jobs, pairs = setting.choose(1_000, 300), setting.choose(3, 1)
    waits = _pickups(url, redis_url, setting.choose(80, 25))
    comparison = in_turn(
        lambda: _timed("ours", jobs, url, redis_url),
        lambda: _timed("rq", jobs, url, redis_url),
        pairs,
    )
    p50, p95 = percentile(waits, 50), percentile(waits, 95)
    return [
        Line(
            "relay",
            f"committed to started, {store}",
            f"p50 {p50 * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms",
            f"< {_P50_LESS_THAN * 1e3:g} ms",
            p50 < _P50_LESS_THAN,
            f"idle worker --via rq in another process, {len(waits)} jobs one by one",
            {"p50_seconds": p50, "p95_seconds": p95},
        ),
        compared("relay", f"no-op jobs beside RQ's SimpleWorker, {store}", comparison, jobs, _AT_LEAST),
    ]


def _pickups(url: str, redis_url: str, count: int) -> list[float]:
    app = _app(url, redis_url)
    child = subprocess.Popen([sys.executable, "-m", __name__, "pickup", "0", url, redis_url], cwd=_ROOT)
    waits = []
    try:
        app.result(app.enqueue("started"), timeout=_PATIENCE)  # the worker is up
        for _ in range(count):
            time.sleep(0.1)  # idle again
            job = app.enqueue("started")
            committed = time.monotonic()
            waits.append(app.result(job, timeout=_PATIENCE) - committed)
    finally:
        child.terminate()
        child.wait(timeout=_PATIENCE)
        app.close()
    return waits


def _timed(side: str, jobs: int, url: str, redis_url: str) -> Timing:
    words = [sys.executable, "-m", __name__, side, str(jobs), url, redis_url]
    done = subprocess.run(words, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    return Timing(*json.loads(done.stdout.splitlines()[-1]))


def _app(url: str, redis_url: str) -> Rowlock:
    os.environ["REDIS_URL"] = redis_url
    app = Rowlock(url)
    app.task(name="started")(started)
    app.task(name="no_op")(no_op)
    return app


def _ours(jobs: int, url: str, redis_url: str) -> None:
    from rowlock.relays.via import ViaRq

    app = _app(url, redis_url)
    if jobs:
        app.tasks["no_op"].enqueue_many([{}] * jobs)
    via = ViaRq(app, [], grace=5.0)
    with via.ending():
        via.worker.run(until_empty=bool(jobs))
    app.close()


def _rq(jobs: int, redis_url: str) -> None:
    from redis import Redis
    from rq import Queue, SimpleWorker
    from rq.serializers import JSONSerializer

    how: dict[str, Any] = {"connection": Redis.from_url(redis_url), "serializer": JSONSerializer}
    queue = Queue("plain", **how)
    for _ in range(jobs):
        queue.enqueue(f"{__spec__.name}.no_op", result_ttl=0)
    SimpleWorker([queue], **how).work(burst=True, logging_level="ERROR")


def _main(side: str, jobs: int, url: str, redis_url: str) -> None:
    logging.disable(logging.WARNING)
    if side == "rq":
        _rq(jobs, redis_url)
        moments = sys.modules[str(__spec__.name)]._moments
    else:
        _ours(jobs, url, redis_url)
        moments = _moments
    if jobs:
        assert len(moments) == jobs
        print(json.dumps([moments[-1] - moments[0], time.process_time()]))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
