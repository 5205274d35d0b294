"""`rowlock jobs` and `rowlock job`: a page of jobs, and everything about one.

Only looks; what changes a job is in `operate.py`.
"""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowlock.cli import show, target
from rowlock.cli.options import Database, JobId, Json, OnlyQueue, OnlyTask, examples
from rowlock.job import HistoryEntry, Job, LogEntry

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

commands = typer.Typer()


@commands.command(
    rich_help_panel="Jobs",
    epilog=examples(
        "rowlock jobs --state failed --queue gpu",
        "rowlock jobs --json --limit 1000 | jq '.jobs[].id'",
    ),
)
def jobs(
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="Only scheduled, queued, running, completed, failed or cancelled ones.",
        ),
    ] = None,
    queue: OnlyQueue = None,
    task: OnlyTask = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="NUMBER", help="At most so many.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on where the page before ended.")
    ] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    app = target.queue_at(database)
    page = app.jobs(state=state and state.lower(), queue=queue, task=task, limit=limit, cursor=cursor)
    if json:
        show.print_json({"jobs": [show.record(job) for job in page], "cursor": page.cursor})
        return
    if page:
        show.out(_table(page))
    hints = show.console(stderr=True)
    if page.cursor:
        place = database and target.without_password(database)
        given = {"--state": state, "--queue": queue, "--task": task, "--database": place}
        words = [word for name, value in given.items() if value for word in (name, value)]
        more = show.command("jobs", *words, "--limit", str(limit), "--cursor", page.cursor)
        hints.print(f"more: {more}", style="dim", soft_wrap=True)
    elif not page:
        filtered = state or queue or task or cursor
        hints.print("no such jobs" if filtered else f"no jobs in {target.address(app)}", soft_wrap=True)


def _table(page: Sequence[Job]) -> RenderableType:
    columns = ("id", "task", "queue", "prio", "state", "age", "tries", "note")
    rows = (
        (
            str(job.id),
            show.safe(job.task),
            show.safe(job.queue),
            str(job.priority),
            show.styled(show.state_of(job)),
            show.duration((show.now() - job.created_at).total_seconds()),
            show.attempts(job),
            show.safe(_note(job)),
        )
        for job in page
    )
    return show.table(columns, rows, right=("id", "prio", "age"))


def _note(job: Job) -> str:
    if job.state == "scheduled":
        wait = (job.run_at - show.now()).total_seconds()
        due = f"due in {show.duration(wait)}" if wait > 0 else "due"
        return f"{due}: {show.headline(job.error)}" if job.error else due
    if job.state == "running" and job.progress:
        return show.progress_of(job)
    return show.headline(job.error)


@commands.command(
    rich_help_panel="Jobs", epilog=examples("rowlock job 42", "rowlock job 42 --json | jq .result")
)
def job(id: JobId, database: Database = None, json: Json = False) -> None:
    """Show everything about one job: fields, arguments, result, error, history, log lines."""
    app = target.queue_at(database)
    found, history, lines = app.job(id), app.history(id), app.logs(id)
    if json:
        show.print_json(show.record(found, history=history, logs=lines))
        return
    show.out(_fields(found))
    parts = {
        "error": found.error and found.error.rstrip(),
        "history": _timeline(history),
        "log": _lines(lines),
    }
    for title, part in parts.items():
        if part:
            show.say(f"\n{title}:")
        if isinstance(part, str) and part:
            show.say(part)
        elif part:
            show.out(part)


def _fields(found: Job) -> Table:
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
            grid.add_row(name, value if name == "state" else show.safe(_text(value)))
    return grid


def _not_begun(found: Job) -> str:
    handed_over = found.state == "running" and found.started_at is None
    return "; handed over to another engine, and no worker has begun it" if handed_over else ""


def _text(value: str | datetime) -> str:
    return value if isinstance(value, str) else show.moment(value)


def _compact(value: Any) -> str:
    return stdlib_json.dumps(value, ensure_ascii=False)


def _timeline(history: Sequence[HistoryEntry]) -> RenderableType | None:
    if not history:
        return None
    rows = (
        (
            show.clock(entry.at),
            str(entry.claim),
            show.safe(entry.event),
            show.safe(entry.worker or ""),
            show.safe(show.headline(entry.error) or entry.error_kind or ""),
        )
        for entry in history
    )
    return show.table(("at", "claim", "event", "worker", "why"), rows, right=("claim",))


def _lines(lines: Sequence[LogEntry]) -> str:
    return "\n".join(
        f"{show.clock(line.at)} {line.message}"
        + "".join(f" {name}={_compact(value)}" for name, value in line.fields.items())
        for line in lines
    )
