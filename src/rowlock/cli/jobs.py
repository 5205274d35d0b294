"""`rowlock jobs`, `job` and `watch`: a page of jobs, everything about one, and one until it ends.

Only looks; what changes a job is in `job_actions.py`.
"""

from __future__ import annotations

import json as stdlib_json
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from rowlock import HistoryEntry, Job, Rowlock
from rowlock.cli import show, target
from rowlock.cli.failing import TIMED_OUT, CommandFailed
from rowlock.cli.options import Database, JobId, Json, OnlyQueue, OnlyTask, option
from rowlock.options import check_seconds

commands = typer.Typer()


@commands.command(rich_help_panel="Jobs")
def jobs(
    state: Annotated[
        str | None,
        option(
            "STATE", "Only scheduled, queued, running, completed, failed or cancelled ones.", "--state", "-s"
        ),
    ] = None,
    queue: OnlyQueue = None,
    task: OnlyTask = None,
    limit: Annotated[int, option("NUMBER", "At most so many.", "--limit", "-n")] = 20,
    cursor: Annotated[str | None, option("CURSOR", "Go on where the page before ended.")] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """List jobs, newest first.

    Example: rowlock jobs --state failed --queue gpu
    Or: rowlock jobs --json --limit 1000 | jq '.jobs[].id'
    """
    app = target.queue_at(database)
    page = app.jobs(state=state and state.lower(), queue=queue, task=task, limit=limit, cursor=cursor)
    if json:
        show.print_json({"jobs": [show.record(job) for job in page], "cursor": page.cursor})
        return
    show.table([_row(job) for job in page], right=("id", "prio", "age"))
    if page.cursor:
        place = database and target.copyable(database)
        given = {"--state": state, "--queue": queue, "--task": task, "--database": place}
        words = [word for name, value in given.items() if value for word in (name, value)]
        more = show.command("jobs", *words, "--limit", str(limit), "--cursor", page.cursor)
        show.hint(f"more: {more}", style="dim")
    elif not page:
        filtered = state or queue or task or cursor
        show.hint("no such jobs" if filtered else f"no jobs in {target.address(app)}")


def _row(job: Job) -> dict[str, object]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "prio": job.priority,
        "state": show.styled(show.state_of(job)),
        "age": show.duration(show.since(job.created_at)),
        "tries": show.attempts(job),
        "note": _note(job),
    }


def _note(job: Job) -> str:
    if job.state == "scheduled":
        wait = -show.since(job.run_at)
        due = f"due in {show.duration(wait)}" if wait > 0 else "due"
        return f"{due}: {show.headline(job.error)}" if job.error else due
    if job.state == "running" and job.progress:
        return show.progress_of(job)
    return show.headline(job.error)


@commands.command(rich_help_panel="Jobs")
def job(id: JobId, database: Database = None, json: Json = False) -> None:
    """Show everything about one job: fields, arguments, result, error, history, log lines.

    Example: rowlock job 42
    Or: rowlock job 42 --json | jq .result
    """
    app = target.queue_at(database)
    found, history, lines = app.job(id), app.history(id), app.logs(id)
    if json:
        show.print_json(show.record(found, history=history, logs=lines))
        return
    _show_fields(found)
    if found.error:
        show.say(f"\nerror:\n{found.error.rstrip()}")
    if history:
        show.say("\nhistory:")
        show.table([_event(entry) for entry in history], right=("claim",))
    if lines:
        show.say("\nlog:")
    for line in lines:
        fields = "".join(f" {name}={_compact(value)}" for name, value in line.fields.items())
        show.say(f"{show.clock(line.at)} {line.message}{fields}")


def _show_fields(found: Job) -> None:
    from rich.table import Table

    shown: dict[str, Any] = {
        "job": f"{found.id}",
        "task": found.task,
        "queue": f"{found.queue}, priority {found.priority}",
        "state": show.styled(show.state_of(found)),
        "attempts": show.attempts(found),
        "created": found.created_at,
        "due": found.run_at,
        "expires": found.expires_at,
        "claimed": found.claimed_at,
        "by": found.claimed_by and f"{found.claimed_by}, claim {found.claim}{_not_begun(found)}",
        "cancel asked": found.cancel_requested_at,
        "finished": found.finished_at,
        "unique key": found.unique_key,
        "meta": found.meta and _compact(found.meta),
        "args": _compact(found.args),
        "progress": show.progress_of(found),
        "result": _compact(found.result) if found.state == "completed" else None,
        "error kind": found.error_kind,
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in shown.items():
        if value not in (None, "", {}):
            grid.add_row(name, show.cell(value))
    show.out(grid)


def _not_begun(found: Job) -> str:
    handed_over = found.state == "running" and found.started_at is None
    return "; handed over to another engine, and no worker has begun it" if handed_over else ""


def _compact(value: Any) -> str:
    return stdlib_json.dumps(value, ensure_ascii=False)


def _event(entry: HistoryEntry) -> dict[str, object]:
    return {
        "at": show.clock(entry.at),
        "claim": entry.claim,
        "event": entry.event,
        "worker": entry.worker or "",
        "why": show.headline(entry.error) or entry.error_kind or "",
    }


# -- as it changes --------------------------------------------------------------------------------


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
