"""Runs the scenarios named on the command line, or all of them, and prints a table at the end."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    claims,
    drain_one_at_a_time,
    enqueue_bulk,
    enqueue_single,
    idle,
    import_time,
    peers,
    wakeup,
)
from benchmarks.report import Line, Setting, surroundings, table, write_json

_SCENARIOS: dict[str, Callable[[Setting], list[Line]]] = {
    "enqueue_single": enqueue_single.run,
    "enqueue_bulk": enqueue_bulk.run,
    "claims": claims.run,
    "drain_one_at_a_time": drain_one_at_a_time.run,
    "idle": idle.run,
    "import_time": import_time.run,
    "wakeup": wakeup.run,
}


def main() -> int:
    """Run the scenarios; the exit code is 1 if a target was missed."""
    chosen = _arguments()
    wanted = {name: _SCENARIOS[name] for name in chosen.scenario or _SCENARIOS}
    if chosen.peers:
        wanted["peers"] = peers.run
    print("; ".join(f"{name} {value}" for name, value in surroundings().items()), flush=True)
    lines: list[Line] = []
    for name, run in wanted.items():
        start = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True)
        with tempfile.TemporaryDirectory(prefix="rowlock-bench-", dir=chosen.dir) as folder:
            lines += run(Setting(Path(folder), chosen.quick))
        print(f"{time.perf_counter() - start:.0f} s", flush=True)
    print("\n" + table(lines))
    if chosen.json:
        write_json(chosen.json, lines, chosen.quick)
    return 1 if any(line.ok is False for line in lines) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", metavar="NAME", help=f"one of {', '.join(_SCENARIOS)}")
    parser.add_argument("--quick", action="store_true", help="smaller and rougher, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all figures in this file")
    parser.add_argument("--dir", type=Path, help="where the databases go: the disk that is measured")
    parser.add_argument(
        "--peers", action="store_true", help="compare with other queues, if they are installed"
    )
    chosen = parser.parse_args()
    unknown = [name for name in chosen.scenario if name not in _SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are: {', '.join(_SCENARIOS)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
