"""`rowlock consume` and `rowlock consumers`: a user's own table as the queue, from the command line.

The work is `rowlock.worker`'s, what is shown `rowlock.consumers`'.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rowlock import Rowlock
from rowlock.cli import logs, options, show, target
from rowlock.cli.failing import USAGE, CommandFailed, note
from rowlock.cli.options import App, Database, Json, flag
from rowlock.cli.work import run_worker, worker_options
from rowlock.options import CONSUMERS, check_strategy_applies
from rowlock.worker.options import STOP_GRACE

commands = typer.Typer()
consumers_commands = typer.Typer(invoke_without_command=True)
commands.add_typer(consumers_commands, name="consumers", rich_help_panel="Queues and workers")


@commands.command(rich_help_panel="Work")
def consume(
    context: typer.Context,
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODULE:APP] NAME",
            show_default=False,
            help="Where the Rowlock is (else ROWLOCK_APP, or pyproject.toml), and the consumer's name.",
        ),
    ],
    strategy: options.RowStrategyName = "FIFO",
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
    """Work on the rows of a consumer's table. Signals and exit codes are those of `rowlock worker`.

    Example: rowlock consume lab:app birdnet
    Or: rowlock consume lab:app birdnet --concurrency 1 --until-empty
    Or: rowlock consume lab:app birdnet --via rq
    """
    logs.configure(log_level, log_format)
    if len(given) > 2:
        raise CommandFailed(f"one consumer at a time: {' '.join(given)!r} names several", USAGE)
    app, consumer = (given[0], given[1]) if len(given) == 2 else (None, given[0])
    _, rowlock = target.the_app(app)
    check_strategy_applies(CONSUMERS + consumer, strategy)
    chosen = worker_options(context)
    source = rowlock.consumer_source(consumer)
    if via is not None:
        from rowlock.cli.relay import work_via

        work_via(via, rowlock, [source.consumer.queue], chosen, until_empty, log_format)
        return
    made = rowlock.consuming(consumer, **chosen)
    rows = f"rows of {'.'.join(source.consumer.table)} for {consumer} in {target.address(rowlock)}"
    takes = f"{rows}, {made.concurrency} at once"
    run_worker(made, takes, until_empty, log_format, look=lambda: source.table)


@consumers_commands.callback()
def consumers(
    context: typer.Context,
    app: App = None,
    database: Database = None,
    exact: Annotated[bool, flag("Count what is done, which reads the whole table.", "--exact")] = False,
    json: Json = False,
) -> None:
    """Show how the consumers of an app stand: due, in flight, done, failed, oldest due, rate and lag.

    With a database and no app: what is in flight, and who works.

    Example: rowlock consumers --app lab:app
    Or: rowlock consumers --database lab.db
    Or: rowlock consumers init --app lab:app
    """
    if context.invoked_subcommand is not None:
        context.obj = app
        return
    from rowlock import insights

    if app is None and (database is not None or not target.named_app()):
        _show_known(target.queue_at(database), json)
        return
    records = insights.consumers(_with_consumers(app), exact)
    if json:
        show.print_json(records)
        return
    rows = [
        {
            "consumer": record.name,
            "table": record.table,
            "due": record.due,
            "in flight": record.in_flight,
            "waiting": record.waiting,
            "done": f"{'' if record.done_is_exact else '~'}{record.done}",
            "failed": record.failed,
            "per minute": f"{record.per_minute:g}",
            "lag": "" if record.lag is None else show.duration(record.lag),
            "paused": show.paused(record),
            "oldest due": "" if record.oldest_due is None else str(record.oldest_due),
        }
        for record in records
    ]
    show.table(rows, right=("due", "in flight", "waiting", "done", "failed", "per minute", "lag"))
    for record in records:
        if not record.has_index:
            note(f"{record.name} has no index, so all of this was counted row by row: rowlock consumers init")
        if record.broken:
            note(f"{record.name} skips {record.broken} rows whose state is no JSON object")


def _show_known(rowlock: Rowlock, json: bool) -> None:
    from rowlock import insights

    records = insights.known_consumers(rowlock.store)
    if json:
        show.print_json(records)
        return
    if not records:
        note(f"no consumers in {target.address(rowlock)} yet")
        return
    rows = [
        {
            "consumer": record.name,
            "workers": record.workers,
            "in flight": record.in_flight,
            "waiting": record.waiting,
            "paused": show.paused(record),
        }
        for record in records
    ]
    show.table(rows, right=("workers", "in flight", "waiting"))
    note("what is due, done and failed is in the consumers' tables, which the app names: --app MODULE:APP")


@consumers_commands.command("retry")
def retry(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")],
    failed: Annotated[bool, flag("Make the rows due again that are out of attempts.", "--failed")] = False,
    app: App = None,
) -> None:
    """Clear the failures of a consumer, so that these rows are worked on again.

    Example: rowlock consumers retry birdnet --failed --app lab:app
    """
    from rowlock.consumers import overview

    if not failed:
        raise CommandFailed("what should be tried again? Write --failed for all rows that failed", USAGE)
    cleared = overview.retry_failed(_with_consumers(app or context.obj).consumer_source(name))
    show.say(f"{name}: {cleared} {'row is' if cleared == 1 else 'rows are'} due again")


@consumers_commands.command("init")
def init(
    context: typer.Context,
    sql: Annotated[bool, flag("Only print the statements, for whoever may run them.", "--sql")] = False,
    app: App = None,
) -> None:
    """Create the indexes that make claims and counts cheap; those that fit are kept.

    Example: rowlock consumers init --app lab:app
    Or: rowlock consumers init --sql
    """
    from rowlock.consumers import overview

    rowlock = _with_consumers(app or context.obj)
    for name in rowlock.consumers:
        source = rowlock.consumer_source(name)
        if sql:
            for sentence in overview.left_out(source):
                show.print_text(f"-- {name}: {sentence}\n")
            for statements in source.table.indexes.create_statements().values():
                show.print_text("".join(f"{one};\n" for one in statements))
        else:
            indexes = source.table.indexes
            if anew := indexes.outdated:
                note(f"{name}: made anew, because the consumer has changed: {', '.join(anew)}")
            indexes.create()
            there, verb = list(indexes.definitions), "is" if len(indexes.definitions) == 1 else "are"
            show.say(
                f"{name}: {', '.join(there)} {verb} there" if there else f"{name}: this database needs none"
            )
            for sentence in overview.left_out(source):
                note(f"{name}: {sentence}")
            if not source.table.has_index:
                index = source.consumer.index
                note(f"{name}: {index} was made for another condition or order: drop it, and run this again")


def _with_consumers(app: str | None) -> Rowlock:
    where, rowlock = target.the_app(app)
    if not rowlock.consumers:
        raise CommandFailed(f"{where} has no consumers")
    return rowlock
