"""`rowlock watch`: shows one job as it changes, until it has ended.

What changes is told by `rowlock.watching`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Annotated

import typer

from rowlock import Job, Rowlock
from rowlock.cli import show, target
from rowlock.cli.failing import TIMED_OUT, CommandFailed
from rowlock.cli.options import Database, JobId, Json, option
from rowlock.options import check_seconds

commands = typer.Typer()


@commands.command(rich_help_panel="Jobs")
def watch(
    id: JobId,
    timeout: Annotated[float | None, option("SECONDS", "Give up after so long, with exit code 124.")] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Follow a job until it ends; exit code 0 if it completed, 1 if it failed or was cancelled.

    Example: rowlock watch 42
    Or: rowlock watch 42 --timeout 60 || echo no
    """
    check_seconds("--timeout", timeout)
    app = target.queue_at(database)
    looks = _looks(app, id, timeout)
    if not json:
        looks = _with_bar(looks) if show.console().is_interactive else _with_lines(looks)
    last = deque(looks, maxlen=1).pop()
    if not last.state.final:
        raise CommandFailed(f"job {id} ({last.task}) is still {last.state} after {timeout:g} s", TIMED_OUT)
    if json:
        show.print_json(show.record(last))
    else:
        show.say(_ending(last))
    raise typer.Exit(0 if last.state == "completed" else 1)


def _looks(app: Rowlock, id: int, timeout: float | None) -> Iterator[Job]:
    """The job as it changes, until it has ended or the time is up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with app.watch(id) as watch:
        left = None  # the first look is always waited for
        while (job := watch.wait(left)) is not None:
            yield job
            left = None if deadline is None else max(0.0, deadline - time.monotonic())


def _with_lines(looks: Iterator[Job]) -> Iterator[Job]:
    """The same jobs; a line is printed for each change."""
    said = ""
    for job in looks:
        line = f"job {job.id} ({job.task}): {show.state_of(job)} {show.progress_of(job)}".rstrip()
        if line != said and not job.state.final:
            show.say(line, at_once=True)
        said = line
        yield job


def _with_bar(looks: Iterator[Job]) -> Iterator[Job]:
    """The same jobs; a bar is drawn meanwhile."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[state]}", style="bold", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=show.console(), transient=True) as bar:
        row = bar.add_task("", total=None, state="", words="")
        for job in looks:
            progress = job.progress
            bar.update(
                row,
                description=f"job {job.id} {show.visible(job.task)}",
                state=show.state_of(job),
                words=show.visible(progress.note) if progress else "",
                completed=progress.done if progress else 0,
                total=(progress.total or None) if progress else None,
            )
            yield job


def _ending(job: Job) -> str:
    took = (job.finished_at or datetime.now(timezone.utc)) - job.created_at
    line = f"job {job.id} ({job.task}) {job.state} after {show.duration(took.total_seconds())}"
    return f"{line}: {show.headline(job.error)}" if job.error and job.state != "completed" else line
