"""90 % jobs of 1 ms and 10 % of 1 s on two workers: how long a claimed job waits for a place.

No job should wait in one worker while the other has a free place, so the time between claim and start counts.
"""

from __future__ import annotations

import random
import time
from typing import Any

from benchmarks.apps import app_at
from benchmarks.measure import percentile
from benchmarks.report import Line, Setting

_AT_MOST = 0.35  # seconds; what waits longer than 0.3 s is given back
_PLACES = 4


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    app = app_at(setting.folder / "mixed.db")
    began: dict[int, float] = {}

    def work(ctx: Any, seconds: float) -> None:
        began[ctx.id] = time.time()
        time.sleep(seconds)

    tasks = {0.001: app.task(name="short")(work), 1.0: app.task(name="long")(work)}
    count = setting.choose(1_000, 200)
    kinds = [1.0] * (count // 10) + [0.001] * (count - count // 10)
    random.Random(7).shuffle(kinds)
    for seconds in kinds:
        tasks[seconds].enqueue(seconds)
    start = time.perf_counter()
    with (
        app.worker(concurrency=_PLACES, worker_id="a").background(),
        app.worker(concurrency=_PLACES, worker_id="b").background(),
    ):
        while app.stats()["completed"] < count:
            time.sleep(0.05)
    took = time.perf_counter() - start
    waits = []
    for id, moment in began.items():
        claimed = app.job(id).claimed_at
        assert claimed is not None
        waits.append(moment - claimed.timestamp())
    app.close()
    least = (count // 10) / (2 * _PLACES)
    return [
        Line(
            "mixed",
            "claimed and not begun, 2 workers",
            f"longest {max(waits) * 1000:.0f} ms",
            target=f"< {_AT_MOST * 1000:.0f} ms",
            ok=max(waits) < _AT_MOST,
            detail=f"p50 {percentile(waits, 50) * 1000:.1f} ms, p99 {percentile(waits, 99) * 1000:.1f} ms; "
            f"{count} jobs in {took:.1f} s, the long ones alone need {least:.1f} s",
        )
    ]
