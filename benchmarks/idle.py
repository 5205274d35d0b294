"""How much of a core a worker takes that has nothing to do, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.apps import adding_app
from benchmarks.measure import spread
from benchmarks.report import Line, Setting

_WINDOWS = 3
_SETTLING = 1.0  # seconds after its start that are not counted
_LESS_THAN = 0.01


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    seconds = setting.choose(5, 2)
    command = [sys.executable, "-m", __name__, str(setting.folder / "rowlock.db"), str(seconds)]
    root = Path(__file__).resolve().parents[1]
    ended = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=120)
    shares = spread([float(line) for line in ended.stdout.split()])
    return [
        Line(
            "idle",
            "share of a core",
            f"{shares.median:.2%} ({shares.low:.2%} to {shares.high:.2%})",
            f"< {_LESS_THAN:.0%}",
            shares.median < _LESS_THAN,
            f"user and system time of all threads, {_WINDOWS} windows of {seconds} s",
            {"share": shares.median, "low": shares.low, "high": shares.high},
        )
    ]


def _idle_worker(path: str, seconds: float) -> None:
    app, _ = adding_app(Path(path))
    worker = app.worker()

    def watch() -> None:
        time.sleep(_SETTLING)
        for _ in range(_WINDOWS):
            cpu, start = time.process_time(), time.perf_counter()
            time.sleep(seconds)
            print((time.process_time() - cpu) / (time.perf_counter() - start), flush=True)
        worker.stop()

    threading.Thread(target=watch, daemon=True).start()
    worker.run()
    app.close()


if __name__ == "__main__":
    _idle_worker(sys.argv[1], float(sys.argv[2]))
