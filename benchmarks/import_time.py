"""What `import rowlock` adds to the start of Python, and what the first app adds to that."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.measure import Spread, spread
from benchmarks.report import Line, Setting

_LESS_THAN = 0.150
_STARTS = {
    "nothing": "pass",
    "import": "import rowlock",
    "app": "import rowlock; rowlock.Rowlock('sqlite:///never-opened.db')",
}


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    times: dict[str, list[float]] = {name: [] for name in _STARTS}
    for _ in range(setting.choose(15, 7) + 1):
        for name, code in _STARTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], cwd=setting.folder, check=True)
            times[name].append(time.perf_counter() - start)
    bare = times["nothing"]
    added = {
        name: spread([one - base for one, base in zip(times[name][1:], bare[1:], strict=True)])
        for name in ("import", "app")
    }
    return [
        _line("import rowlock", added["import"], _LESS_THAN),
        _line("import and Rowlock(url)", added["app"], None),
    ]


def _line(what: str, seconds: Spread, less_than: float | None) -> Line:
    return Line(
        "import_time",
        what,
        f"{seconds.median * 1e3:.0f} ms ({seconds.low * 1e3:.0f} to {seconds.high * 1e3:.0f})",
        "" if less_than is None else f"< {less_than * 1e3:.0f} ms",
        None if less_than is None else seconds.median < less_than,
        "beyond `python -c pass`, compiled files at hand",
        {"seconds": seconds.median, "low": seconds.low, "high": seconds.high},
    )
