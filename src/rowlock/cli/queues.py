"""`rowlock queues`, `pause` and `resume`: how the queues stand.

Lays out what the store says; counts nothing itself.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from rowlock import get_strategy, strategies
from rowlock.cli import show, target
from rowlock.cli.failing import CommandFailed, note
from rowlock.cli.options import App, Database, Json, QueueName, strategy_option
from rowlock.options import CONSUMERS

commands = typer.Typer()
queues_commands = typer.Typer(invoke_without_command=True)
commands.add_typer(queues_commands, name="queues", rich_help_panel="Queues and workers")


@queues_commands.callback()
def queues(context: typer.Context, database: Database = None, json: Json = False) -> None:
    """List the queues: how many jobs are in which state, paused or not, strategy.

    Example: rowlock queues
    Or: rowlock queues set gpu --strategy LIFO
    """
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    app = target.queue_at(database)
    records = app.store.queues()
    if json:
        show.print_json(records)
        return
    if not records:
        show.hint(f"no queues in {target.address(app)} yet")
        return
    numbers = ("scheduled", "queued", "running", "failed")
    rows = [
        {
            "queue": one.name,
            **{state: one.counts[state] for state in numbers},
            "paused": show.paused(one),
            "strategy": one.strategy or "",
            "oldest due": f"{show.duration(show.since(one.oldest_due))} ago" if one.oldest_due else "",
        }
        for one in records
    ]
    show.table(rows, right=numbers)


@queues_commands.command("set")
def set_queue(
    context: typer.Context,
    name: QueueName,
    strategy: Annotated[
        str,
        strategy_option(
            "FIFO, LIFO, PRIORITY, WEIGHTED_RANDOM, or one that the app registers; "
            "none leaves it to each worker."
        ),
    ],
    database: Database = None,
    app: App = None,
) -> None:
    """Set the order in which all workers claim from a queue, also those that run already.

    Example: rowlock queues set gpu --strategy LIFO
    Or: rowlock queues set gpu --strategy none
    """
    wanted = None if strategy == "NONE" else _strategy(strategy, app)
    target.queue_at(database or context.obj).set_strategy(name, wanted)
    order = "by each worker's own strategy" if wanted is None else f"by {wanted}"
    is_consumer = name.startswith(CONSUMERS)
    what = f"rows of consumer {name.removeprefix(CONSUMERS)}" if is_consumer else f"jobs of queue {name}"
    show.say(f"{what} are now claimed {order}")


def _strategy(name: str, app: str | None) -> str:
    """A strategy that is built in, or that the app registers when it is imported."""
    if name not in strategies.names():
        if target.named_app(app):
            with redirect_stdout(sys.stderr):
                target.the_app(app)
        else:
            raise CommandFailed(
                f"unknown strategy {name!r}; built in are: {', '.join(strategies.names())}. One that an app "
                "registers is known with --app module:app"
            )
    return get_strategy(name).name


@commands.command(rich_help_panel="Queues and workers")
def pause(name: QueueName, database: Database = None) -> None:
    """Let nothing more be claimed from a queue; what runs goes on.

    Example: rowlock pause gpu
    """
    _set_paused(name, database, paused=True)


@commands.command(rich_help_panel="Queues and workers")
def resume(name: QueueName, database: Database = None) -> None:
    """Let jobs be claimed from a paused queue again.

    Example: rowlock resume gpu
    """
    _set_paused(name, database, paused=False)


def _set_paused(name: str, database: str | None, paused: bool) -> None:
    app = target.queue_at(database)
    before = next((record for record in app.store.queues() if record.name == name), None)
    (app.pause if paused else app.resume)(name)
    word = "paused" if paused else "resumed"
    if before is None:
        note(f"queue {name} has no jobs yet")
    elif before.paused == paused and before.paused_until is None:
        word = f"{'paused' if paused else 'not paused'} already"
    waiting = before.counts["queued"] if before else 0
    jobs = f"; {waiting} {'job waits' if waiting == 1 else 'jobs wait'}" if waiting else ""
    show.say(f"queue {name}: {word}{jobs}")
