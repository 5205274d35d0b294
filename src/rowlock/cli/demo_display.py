"""What the demo shows: bars for the states on a terminal, a line per second elsewhere, and the summary.

Draws the numbers it is given; runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from rowlock import Job
from rowlock.cli import show
from rowlock.insights import Stats

if TYPE_CHECKING:
    from rich.console import RenderableType

_State = Literal["scheduled", "queued", "running", "completed", "failed"]
_STATES: dict[_State, str] = {
    "queued": "queued",
    "running": "running",
    "scheduled": "waiting to retry",
    "completed": "completed",
    "failed": "failed",
}
_UNFINISHED: tuple[_State, ...] = ("scheduled", "queued", "running")
_BAR = 40

Draw = Callable[[Stats, Job], None]


@contextmanager
def display(jobs: int) -> Iterator[Draw]:
    """A function that draws how the demo stands, on whatever stdout is."""
    began = time.monotonic()
    if not show.console().is_interactive:
        yield _lines(began)
        return
    from rich.live import Live

    with Live(console=show.console(), refresh_per_second=10) as live:
        yield lambda stats, report: live.update(_picture(stats, report, jobs, time.monotonic() - began))


def _lines(began: float) -> Draw:
    next_line = 0.0

    def draw(stats: Stats, report: Job) -> None:
        nonlocal next_line
        elapsed = time.monotonic() - began
        if elapsed < next_line and any(stats[state] for state in _UNFINISHED):
            return
        next_line = elapsed + 1.0
        counts = "  ".join(f"{words} {stats[state]:>3}" for state, words in _STATES.items())
        show.say(f"{elapsed:4.1f} s  {counts}", at_once=True)

    return draw


def _picture(stats: Stats, report: Job, jobs: int, elapsed: float) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for state, words in _STATES.items():
        style = show.style(state)
        bar = ProgressBar(
            total=jobs, completed=stats[state], width=_BAR, complete_style=style, finished_style=style
        )
        grid.add_row(Text(words, style=style), bar, str(stats[state]))
    grid.add_row()
    done = report.progress.done if report.progress else 0
    total = (report.progress.total if report.progress else None) or 1
    finished = report.state.final
    bar = ProgressBar(total=total, completed=total if finished else done, width=_BAR)
    grid.add_row("yearly report", bar, "done" if finished else show.progress_of(report))
    ended = stats["completed"] + stats["failed"]
    return Group(grid, Text(f"\n{elapsed:.1f} s, {ended / max(elapsed, 0.1):.0f} jobs/s", style="dim"))


def summary(stats: Stats, retries: int, took: float, where: str, came_back: int) -> None:
    """Say what was done, where it is, and how to look at it."""
    rate = (stats["completed"] + stats["failed"]) / took
    show.say(
        f"\n{stats['completed']} completed, {retries} retried, {stats['failed']} failed for good "
        f"in {took:.1f} s: {rate:.0f} jobs/s"
    )
    show.say(f"\nThe queue is in {where}. Look at it:")
    for words in (("jobs", "--state", "failed"), ("job", str(came_back)), ("queues",), ("doctor",)):
        show.say(f"  {show.command(*words, '-d', where)}")
