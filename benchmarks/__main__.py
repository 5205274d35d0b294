"""Runs the scenarios named on the command line, or all of them, and prints a table at the end.

All but postgres_tables, duckdb_modes and foreign, that is: these run when they are named.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Line, Setting, surroundings, table, write_json

# Each is the name of a module, imported when its turn comes: what one needs is not in the others' way.
_SQLITE = (
    "enqueue_single",
    "enqueue_bulk",
    "claims",
    "drain_one_at_a_time",
    "drain",
    "lean",
    "mixed",
    "processes",
    "consumers",
    "consumer_tables",
    "files",
    "idle",
    "import_time",
    "wakeup",
)
_POSTGRES = (
    "postgres_enqueue_single",
    "postgres_enqueue_bulk",
    "postgres_claims",
    "postgres_drain_one_at_a_time",
    "postgres_drain",
    "postgres_consumers",
    "postgres_consumer_tables",
    "postgres_files",
    "postgres_wakeup",
    "relay",
)
_WHEN_NAMED = ("postgres_tables", "duckdb_modes", "foreign")
_SCENARIOS = _SQLITE + _POSTGRES + _WHEN_NAMED


def main() -> int:
    """Run the scenarios; the exit code is 1 if a target was missed."""
    chosen = _arguments()
    wanted = list(chosen.scenario or _SQLITE + _POSTGRES)
    if chosen.peers:
        wanted.append("peers")
    about = surroundings(postgres=any(name.startswith("postgres") for name in wanted))
    print("; ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    lines: list[Line] = []
    for name in wanted:
        start = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True)
        with tempfile.TemporaryDirectory(prefix="rowlock-bench-", dir=chosen.dir) as folder:
            lines += importlib.import_module(f"benchmarks.{name}").run(Setting(Path(folder), chosen.quick))
        print(f"{time.perf_counter() - start:.0f} s", flush=True)
    print("\n" + table(lines))
    if chosen.json:
        write_json(chosen.json, about, lines, chosen.quick)
    return 1 if any(line.ok is False for line in lines) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", metavar="NAME", help=f"one of {', '.join(_SCENARIOS)}")
    parser.add_argument("--quick", action="store_true", help="smaller and rougher, in two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all figures in this file")
    parser.add_argument(
        "--dir", type=Path, help="where the files go: the disk that is measured (PostgreSQL: /tmp)"
    )
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
