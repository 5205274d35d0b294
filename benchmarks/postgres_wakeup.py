"""How long a job in PostgreSQL waits for an idle worker in another process: from its commit to its task.

The pauses are long enough that the worker has said that it sleeps, and is told of each job by NOTIFY.
"""

from __future__ import annotations

from benchmarks.measure import percentile
from benchmarks.report import Line, Setting
from benchmarks.server import a_server
from benchmarks.wakeup import measured

_P50_LESS_THAN, _P99_LESS_THAN = 0.003, 0.015


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    with a_server() as url:
        pickups = measured(url, setting.choose(200, 25), longest_pause=0.3)
    waits = [one.since_committed for one in pickups]
    longer = [one.since_called for one in pickups]
    p50, p99, most = percentile(waits, 50), percentile(waits, 99), max(waits)
    called50, called99 = percentile(longer, 50), percentile(longer, 99)
    return [
        Line(
            "postgres_wakeup",
            "committed to started",
            f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms",
            f"< {_P50_LESS_THAN * 1e3:g} ms, {_P99_LESS_THAN * 1e3:g} ms",
            p50 < _P50_LESS_THAN and p99 < _P99_LESS_THAN,
            f"idle worker in another process, {len(waits)} jobs one by one; most {most * 1e3:.1f} ms; "
            f"since the call of enqueue p50 {called50 * 1e3:.1f} ms, p99 {called99 * 1e3:.1f} ms",
            {
                "p50_seconds": p50,
                "p99_seconds": p99,
                "most_seconds": most,
                "called_p50_seconds": called50,
                "called_p99_seconds": called99,
            },
        )
    ]
