"""`rowlock worker`: runs an app's jobs in the foreground until it is told to stop.

Sets up the log and says who works; the work itself is `rowlock.worker`'s.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from rowlock import Rowlock
from rowlock.cli import logs, options, show, target
from rowlock.cli.failing import note
from rowlock.cli.queues import as_strategy
from rowlock.worker.options import STOP_GRACE, ConsumingOptions

if TYPE_CHECKING:
    from rowlock.worker.worker import Worker

commands = typer.Typer()
log = logging.getLogger("rowlock.cli")

_TASKS_NAMED = 8


@commands.command(rich_help_panel="Work")
def worker(
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
    name: options.WorkerId = None,
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
    configure_logs(log_level, log_format)
    where, rowlock = target.the_app(app)
    chosen: ConsumingOptions = {
        "strategy": as_strategy(strategy),
        "concurrency": concurrency,
        "pool": pool,
        "worker_id": name,
        "grace": grace,
        "prefetch": prefetch,
        "max_jobs_per_child": max_jobs_per_child,
    }
    if via is not None:
        from rowlock.cli.relay import work_via

        work_via(via, rowlock, queue or (), chosen, until_empty, log_format)
        return
    made = rowlock.worker(queues=queue or (), **chosen)
    if not rowlock.tasks:
        note(f"{where} has no tasks: import the modules that have them, or name them in include=[...]")
    run_worker(made, lambda: _introduction(made, rowlock, queue or ()), until_empty, log_format)


def run_worker(
    made: Worker,
    introduction: Callable[[], str],
    until_empty: bool,
    log_format: str,
    look: Callable[[], object] = lambda: None,
) -> None:
    """Let it work in the foreground, say who works and what was done, and leave with an exit code.

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
        announce(introduction(), log_format)
        tally = made.run(until_empty=until_empty)
    done = ", ".join(
        f"{getattr(tally, word)} {word}" for word in tally.__struct_fields__ if getattr(tally, word)
    )
    announce(f"worker {id} ended: {done or 'nothing to do'}", log_format)
    if made.ended == "now":
        raise typer.Exit(128 + (made.stopped_by or signal.SIGINT))
    if made.ended in EXIT_CODES:
        raise typer.Exit(EXIT_CODES[made.ended])


def configure_logs(log_level: str, log_format: str) -> None:
    """Set up the log as the options say; raises for what is none of them."""
    logs.configure(
        _one_of("--log-level", log_level, logs.LEVELS), _one_of("--log-format", log_format, logs.FORMATS)
    )


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value.lower() not in allowed:
        raise typer.BadParameter(f"{option} {value!r}: must be one of {', '.join(allowed)}")
    return value.lower()


def _introduction(made: Worker, rowlock: Rowlock, queues: Sequence[str]) -> str:
    tasks = sorted(rowlock.tasks)
    more = f" and {len(tasks) - _TASKS_NAMED} more" if len(tasks) > _TASKS_NAMED else ""
    return (
        f"worker {made.id} takes jobs from {', '.join(queues) or 'all queues'} of {target.address(rowlock)}, "
        f"{made.concurrency} at once, by {made.strategy}; "
        f"tasks: {', '.join(tasks[:_TASKS_NAMED]) or 'none'}{more}"
    )


def announce(line: str, log_format: str) -> None:
    """Say it on stdout, or in the log where every line has to be JSON."""
    if log_format.lower() == "json":
        log.info(line)
        return
    with suppress(OSError):  # stdout is closed: the worker goes on
        show.say(line, at_once=True)
