"""How long a job waits for an idle worker in another process: from its enqueue to its task's first line."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.apps import app_at
from benchmarks.measure import percentile
from benchmarks.report import Line, Setting
from rowlock import Rowlock
from rowlock.task import Task

_PATIENCE = 30.0


@dataclass(frozen=True)
class Pickup:
    """How long one job waited: since its enqueue was called, and since that returned, having committed."""

    since_called: float
    since_committed: float


def started() -> float:
    """Returns when it started, on the clock that all processes of a machine share."""
    return time.monotonic()


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    pickups = measured(setting.folder / "rowlock.db", setting.choose(150, 25), longest_pause=0.15)
    waits = [one.since_committed for one in pickups]
    p50, p99 = percentile(waits, 50), percentile(waits, 99)
    return [
        Line(
            "wakeup",
            "enqueued to started",
            f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms",
            detail=f"idle worker in another process, {len(waits)} jobs one by one",
            figures={"p50_seconds": p50, "p99_seconds": p99},
        )
    ]


def measured(place: Path | str, count: int, longest_pause: float) -> list[Pickup]:
    """Enqueue so many jobs, one by one, for a worker in a process of its own."""
    app, task = _app(place)
    root = Path(__file__).resolve().parents[1]
    child = subprocess.Popen([sys.executable, "-m", __name__, str(place)], cwd=root)
    try:
        app.result(task.enqueue().id, timeout=_PATIENCE)  # the worker is up
        return [_pickup_of_one(app, task, longest_pause) for _ in range(count)]
    finally:
        child.terminate()
        child.wait(timeout=_PATIENCE)
        app.close()


def _pickup_of_one(app: Rowlock, task: Task[[], float], longest_pause: float) -> Pickup:
    time.sleep(random.uniform(0.05, longest_pause))  # idle again, and at no fixed moment between two looks
    called = time.monotonic()
    job = task.enqueue()
    committed = time.monotonic()
    began: float = app.result(job.id, timeout=_PATIENCE)
    return Pickup(began - called, began - committed)


def _app(place: Path | str) -> tuple[Rowlock, Task[[], float]]:
    app = app_at(place)
    return app, app.task(name="started")(started)


if __name__ == "__main__":
    _app(sys.argv[1] if "://" in sys.argv[1] else Path(sys.argv[1]))[0].worker().run()
