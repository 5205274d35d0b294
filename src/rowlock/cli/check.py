"""`rowlock check`: asks for a probe whether jobs are being done.

What is well, `rowlock.insights.check` judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rowlock import RowlockError
from rowlock.cli import show, target
from rowlock.cli.failing import ERROR, UNREACHABLE, CommandFailed, told
from rowlock.cli.options import Database, Json, option

if TYPE_CHECKING:
    from rowlock.insights import Probe

commands = typer.Typer()


@commands.command(rich_help_panel="Queues and workers")
def check(
    max_age: Annotated[float, option("SECONDS", "How long a job that is due may have waited.", min=0)] = 60.0,
    queue: Annotated[
        list[str] | None, option("NAME", "Look at this queue only; may be repeated.", "--queue", "-q")
    ] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Ask whether jobs are being done, for probes; paused queues may wait.

    Exit code 0: all is well. 1: jobs wait and no living worker serves them, or one has waited for too long.
    2: a wrong command line. 3: the database cannot be reached, or holds no queue.

    Example: rowlock check --max-age 60
    Or: rowlock check --queue mail --queue gpu --json
    """
    from rowlock import insights

    try:
        seen = insights.probe(target.queue_at(database).store, max_age, queue or ())
    except CommandFailed as error:
        raise CommandFailed(str(error), UNREACHABLE if error.code == ERROR else error.code) from error
    except (RowlockError, ValueError, OSError) as error:
        raise CommandFailed(told(error), UNREACHABLE) from error
    if json:
        show.print_json(seen)
    else:
        for one in seen.findings:
            show.say(f"{one.message}; {one.advice}")
        if seen.healthy:
            show.say(_all_is_well(seen))
    if not seen.healthy:
        raise typer.Exit(1)


def _all_is_well(seen: Probe) -> str:
    workers = "1 worker is" if seen.workers == 1 else f"{seen.workers} workers are"
    oldest = f"the oldest due job has waited for {max(seen.waiting.values()):.0f} s" if seen.waiting else ""
    return f"all is well: {workers} alive, {oldest or 'no job waits'}"
