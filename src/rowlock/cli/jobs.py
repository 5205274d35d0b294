"""`rowlock jobs` and `rowlock job`: a page of jobs, and everything about one.

Only looks; what changes a job is in `job_actions.py`.
"""

from __future__ import annotations

import json as stdlib_json
from typing import Annotated, Any

import typer

from rowlock import HistoryEntry, Job
from rowlock.cli import show, target
from rowlock.cli.options import Database, JobId, Json, OnlyQueue, OnlyTask, option

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
