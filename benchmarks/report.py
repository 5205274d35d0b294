"""What a scenario reports, and the table and JSON in which it is shown. Measures nothing."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from benchmarks import server
from benchmarks.measure import Comparison
from rowlock import __version__


@dataclass(frozen=True)
class Setting:
    """Where a run keeps its files, and how thorough it is."""

    folder: Path
    quick: bool

    def choose(self, full: int, quick: int) -> int:
        """The full number, or the smaller one of a quick run."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Line:
    """One measured figure; `ok` is None where there is no target, or none could be judged."""

    scenario: str
    what: str
    measured: str
    target: str = ""
    ok: bool | None = None
    detail: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def compared(scenario: str, what: str, comparison: Comparison, jobs: int, at_least: float | None) -> Line:
    """The line of a comparison with a baseline."""
    pairs = comparison.pair_ratios
    ours, baseline = comparison.rates(jobs)
    cpu, baseline_cpu = comparison.cpu_each(jobs)
    return Line(
        scenario,
        what,
        f"{comparison.ratio:.2f} (pairs {pairs.low:.2f} {pairs.median:.2f} {pairs.high:.2f})",
        "" if at_least is None else f">= {at_least:.2f}",
        None if at_least is None else _verdict(comparison, at_least),
        f"{ours:,.0f}/s against {baseline:,.0f}/s; "
        f"processor {cpu * 1e6:,.0f} us against {baseline_cpu * 1e6:,.0f} us each"
        f"; quickest quarter {comparison.quiet_ratio:.2f}"
        + (", noisy: run it again" if comparison.noisy else ""),
        {
            "ratio": comparison.ratio,
            "quiet_ratio": comparison.quiet_ratio,
            "pair_ratio_low": pairs.low,
            "pair_ratio_median": pairs.median,
            "pair_ratio_high": pairs.high,
            "per_second": ours,
            "baseline_per_second": baseline,
            "cpu_seconds_each": cpu,
            "baseline_cpu_seconds_each": baseline_cpu,
        },
    )


def _verdict(comparison: Comparison, at_least: float) -> bool | None:
    """Short is short, but a noisy run that reaches the target has proved nothing."""
    reached = comparison.ratio >= at_least
    return None if reached and comparison.noisy else reached


def table(lines: Sequence[Line]) -> str:
    """The lines as a plain table."""
    rows = [("scenario", "what", "target", "measured", "", "detail")]
    for line in lines:
        verdict = {True: "ok", False: "SHORT", None: "?" if line.target else ""}[line.ok]
        rows.append((line.scenario, line.what, line.target, line.measured, verdict, line.detail))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    texts = ["  ".join([*map(str.ljust, row[:5], widths), row[5]]) for row in rows]
    rule = "-" * max(len(text.rstrip()) for text in texts)
    return "\n".join([texts[0].rstrip(), rule, *(text.rstrip() for text in texts[1:])])


def surroundings(postgres: bool) -> dict[str, str | int]:
    """What the figures depend on, without naming the machine."""
    about: dict[str, str | int] = {
        "rowlock": __version__,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 0,
    }
    if postgres:
        about |= {"postgresql": server.version(), "psycopg": metadata.version("psycopg")}
    return about


def write_json(path: Path, about: Mapping[str, str | int], lines: Iterable[Line], quick: bool) -> None:
    """Keep all figures in a file."""
    kept = {"surroundings": about, "quick": quick, "lines": [asdict(line) for line in lines]}
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
