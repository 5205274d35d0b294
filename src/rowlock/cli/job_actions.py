"""`rowlock cancel` and `rowlock retry`: an operator's acts on jobs.

Every job named is tried; the exit code tells whether all went well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from rowlock import JobNotFound, Rowlock, WrongState
from rowlock.cli import show, target
from rowlock.cli.failing import USAGE, CommandFailed, complain
from rowlock.cli.options import Database, JobIds, OnlyQueue, OnlyTask, flag

commands = typer.Typer()

_PAGE = 500


@commands.command(rich_help_panel="Jobs")
def cancel(ids: JobIds = None, database: Database = None) -> None:
    """Cancel waiting jobs at once, and ask running ones to stop.

    Example: rowlock cancel 42 43
    """
    if not ids:
        raise CommandFailed("which jobs? rowlock cancel ID...", USAGE)
    _each(target.queue_at(database), _cancel, ids)


@commands.command(rich_help_panel="Jobs")
def retry(
    ids: JobIds = None,
    failed: Annotated[bool, flag("All failed jobs (of --queue, of --task).", "--failed")] = False,
    queue: OnlyQueue = None,
    task: OnlyTask = None,
    database: Database = None,
) -> None:
    """Put finished jobs back into their queues, with a new budget; run scheduled ones now.

    Example: rowlock retry 42 43
    Or: rowlock retry --failed --queue gpu --task segment
    """
    if bool(ids) == failed:
        raise CommandFailed("which jobs? rowlock retry ID..., or rowlock retry --failed", USAGE)
    if ids and (queue or task):
        raise CommandFailed(
            "--queue and --task choose among the failed jobs: add --failed, or leave out the ids", USAGE
        )
    app = target.queue_at(database)
    if ids:
        _each(app, _retry, ids)
        return
    count = sum(_attempted(app, _retry, one, quietly=True) for one in _failed(app, queue, task))
    show.say(f"{count} failed {'job' if count == 1 else 'jobs'} put back into the queue")


def _failed(app: Rowlock, queue: str | None, task: str | None) -> Iterator[int]:
    cursor = None
    while True:
        page = app.jobs(state="failed", queue=queue, task=task, limit=_PAGE, cursor=cursor)
        yield from (job.id for job in page)
        cursor = page.cursor
        if cursor is None:
            return


def _each(app: Rowlock, act: Callable[[Rowlock, int], str], ids: Sequence[int]) -> None:
    done = [_attempted(app, act, one) for one in ids]
    if not all(done):
        raise typer.Exit(1)


def _attempted(app: Rowlock, act: Callable[[Rowlock, int], str], id: int, quietly: bool = False) -> bool:
    try:
        said = act(app, id)
    except (JobNotFound, WrongState) as error:
        complain(error)
        return False
    if not quietly:
        show.say(said)
    return True


def _cancel(app: Rowlock, id: int) -> str:
    before = app.job(id)
    if before.state.final:
        raise WrongState(f"job {id} is {before.state} already; there is nothing to cancel")
    after = app.cancel(id)
    if after.state == "cancelled":
        return f"job {id} ({after.task}) cancelled"
    if after.state == "running":
        return f"job {id} ({after.task}) is running and was asked to stop"
    return f"job {id} ({after.task}) was {after.state} before it could be cancelled"


def _retry(app: Rowlock, id: int) -> str:
    after = app.retry(id)
    return f"job {id} ({after.task}) is back in queue {after.queue}"
