"""How long a job waits for an idle worker in another process: from its enqueue to its task's first line."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.apps import app_at
from benchmarks.measure import percentile
from benchmarks.report import Line, Setting
from rowlock import Rowlock
from rowlock.task import Task

_PATIENCE = 30.0


def started() -> float:
    """Returns when it started, on the clock that all processes of a machine share."""
    return time.monotonic()


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    path = setting.folder / "rowlock.db"
    app, task = _app(path)
    root = Path(__file__).resolve().parents[1]
    child = subprocess.Popen([sys.executable, "-m", __name__, str(path)], cwd=root)
    try:
        app.result(task.enqueue().id, timeout=_PATIENCE)  # the worker is up
        waits = [_wait_of_one(app, task) for _ in range(setting.choose(150, 25))]
    finally:
        child.terminate()
        child.wait(timeout=_PATIENCE)
        app.close()
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


def _wait_of_one(app: Rowlock, task: Task[[], float]) -> float:
    time.sleep(random.uniform(0.05, 0.15))  # idle again, and at no fixed moment between two looks
    job = task.enqueue()
    committed = time.monotonic()
    began: float = app.result(job.id, timeout=_PATIENCE)
    return began - committed


def _app(path: Path) -> tuple[Rowlock, Task[[], float]]:
    app = app_at(path)
    return app, app.task(name="started")(started)


if __name__ == "__main__":
    _app(Path(sys.argv[1]))[0].worker().run()
