"""`rowlock worker`: runs an app's jobs in the foreground until it is told to stop.

Sets up the log and says who works; the work itself is `rowlock.worker`'s.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import typer

from rowlock.cli import logs, options, show, target
from rowlock.cli.failing import note
from rowlock.worker.options import STOP_GRACE, ConsumingOptions

if TYPE_CHECKING:
    from rowlock.worker.worker import Worker

commands = typer.Typer()
log = logging.getLogger("rowlock.cli")

_TASKS_NAMED = 8


@commands.command(rich_help_panel="Work")
def worker(
    context: typer.Context,
    app: options.AppArgument = None,
    queue: options.WorkQueues = None,
    strategy: options.StrategyName = "PRIORITY",
    concurrency: options.Concurrency = None,
    pool: options.Pool = "thread",
    prefetch: options.Prefetch = None,
    max_jobs_per_child: options.MaxJobsPerChild = None,
    grace: options.Grace = STOP_GRACE,
    until_empty: options.UntilEmpty = False,
    via: options.Via = None,
    worker_id: options.WorkerId = None,
    log_level: options.LogLevel = "info",
    log_format: options.LogFormat = "text",
) -> None:
    """Run an app's jobs. The first Ctrl-C (or SIGTERM) finishes what runs, the second stops at once.

    Exit codes: 0 all in good order; 3 the grace was over and runs were given back; 4 all places were held by
    runs that do not stop; 130 or 143 told twice. SIGUSR1 writes to the log where every run stands.

    Example: rowlock worker shop:app
    Or: rowlock worker shop:app --queue gpu --queue cpu --concurrency 2 --until-empty
    Or: rowlock worker shop:app --via rq
    """
    logs.configure(log_level, log_format)
    where, rowlock = target.the_app(app)
    chosen = worker_options(context)
    if via is not None:
        from rowlock.cli.relay import work_via

        work_via(via, rowlock, queue or (), chosen, until_empty, log_format)
        return
    made = rowlock.worker(queues=queue or (), **chosen)
    if not rowlock.tasks:
        note(f"{where} has no tasks: import the modules that have them, or name them in include=[...]")
    tasks = sorted(rowlock.tasks)
    more = f" and {len(tasks) - _TASKS_NAMED} more" if len(tasks) > _TASKS_NAMED else ""
    takes = (
        f"jobs from {', '.join(queue or ()) or 'all queues'} of {target.address(rowlock)}, "
        f"{made.concurrency} at once, by {made.strategy}; "
        f"tasks: {', '.join(tasks[:_TASKS_NAMED]) or 'none'}{more}"
    )
    run_worker(made, takes, until_empty, log_format)


def worker_options(context: typer.Context) -> ConsumingOptions:
    """What was said about the worker: a command's options have the names that it takes them by."""
    chosen = {
        name: context.params[name] for name in ConsumingOptions.__annotations__ if name in context.params
    }
    return cast("ConsumingOptions", chosen)


def run_worker(
    made: Worker,
    takes: str,
    until_empty: bool,
    log_format: str,
    look: Callable[[], object] = lambda: None,
) -> None:
    """Let it work in the foreground, say what it takes and what was done, and leave with an exit code.

    `look` raises if what it works on is not as it should be.
    """
    from rowlock.worker.signals import EXIT_CODES, told_by_signals
    from rowlock.worker.wait_for_database import when_usable

    def arrive() -> str:
        look()
        return made.register()

    with told_by_signals(made.stop_by_signal) as told:
        told.process_ends = True
        id = when_usable(arrive)
        if id is None:
            return
        announce(f"worker {id} takes {takes}", log_format)
        tally = made.run(until_empty=until_empty)
    done = ", ".join(
        f"{getattr(tally, word)} {word}" for word in tally.__struct_fields__ if getattr(tally, word)
    )
    announce(f"worker {id} ended: {done or 'nothing to do'}", log_format)
    if made.ended == "now":
        raise typer.Exit(128 + (made.stopped_by or signal.SIGINT))
    if made.ended in EXIT_CODES:
        raise typer.Exit(EXIT_CODES[made.ended])


def announce(line: str, log_format: str) -> None:
    """Say it on stdout, or in the log where every line has to be JSON."""
    if log_format.lower() == "json":
        log.info(line)
        return
    with suppress(OSError):  # stdout is closed: the worker goes on
        show.say(line, at_once=True)
