"""`rowlock init`, `upgrade`, `backup` and `doctor`: the care of the database itself.

The store does it and `rowlock.insights` judges it; here it is only said.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rowlock.cli import show, target
from rowlock.cli.failing import CommandFailed
from rowlock.cli.options import Database, Json, flag
from rowlock.errors import StoreMissing

if TYPE_CHECKING:
    from rowlock import Rowlock
    from rowlock.insights import Finding

commands = typer.Typer()

_MARKS = {
    "ok": ("✓", "+", "green"),
    "note": ("·", "-", "blue"),
    "warning": ("!", "!", "yellow"),
    "error": ("✗", "x", "red"),
}


@commands.command(rich_help_panel="The database")
def init(
    sql: Annotated[
        bool, flag("Only print what would be run, for an administrator; opens nothing.", "--sql")
    ] = False,
    database: Database = None,
) -> None:
    """Create the queue's tables; does nothing if they are there.

    Example: rowlock init --database sqlite:///jobs.db
    Or: rowlock init --sql --database postgresql://app@db/shop | psql --username admin shop
    """
    if sql:
        show.print_text(target.new_queue_at(database).store.ddl())
        return
    app = target.new_queue_at(database)
    where = target.address(app)
    there = os.path.exists(where)
    try:
        app.store.open(create=False)
    except StoreMissing:
        app.store.open(create=True)
        said = f"created rowlock's tables in {where}" if there else f"created a queue at {where}"
    else:
        said = f"there is a queue at {where} already"
    show.say(f"{said} (schema version {app.store.facts()['schema_version']})")


@commands.command(rich_help_panel="The database")
def upgrade(database: Database = None) -> None:
    """Bring the queue's tables to the version that this rowlock uses; jobs are kept.

    Example: rowlock upgrade -d sqlite:///jobs.db
    """
    app = target.new_queue_at(database)
    before, after = app.store.upgrade()
    where = target.address(app)
    if before == after:
        show.say(f"{where}: already at version {after}")
    else:
        show.say(f"{where}: upgraded from version {before} to {after}")


@commands.command(rich_help_panel="The database")
def backup(
    to: Annotated[str, typer.Argument(metavar="TARGET", help="The file to write; must not exist.")],
    database: Database = None,
) -> None:
    """Copy the database, consistently, while it is in use.

    Example: rowlock backup jobs-monday.db
    """
    app = target.queue_at(database)
    if os.path.exists(to):
        raise CommandFailed(f"{to} exists already; a backup never overwrites: name another file")
    folder = os.path.dirname(os.path.abspath(to))
    if not os.path.isdir(folder):
        raise CommandFailed(f"{to} cannot be written: there is no folder {folder}")
    size = app.store.backup(to)
    show.say(f"{target.address(app)} copied to {to}: {size:,} bytes")


@commands.command(rich_help_panel="The database")
def doctor(database: Database = None, json: Json = False) -> None:
    """Check the database, the jobs and the workers; exit code 1 if something needs doing.

    Consumers, ingests and janitors are checked if ROWLOCK_APP or pyproject.toml names the app that has them.

    Example: rowlock doctor
    Or: rowlock doctor --json
    """
    from rowlock import insights

    app = target.new_queue_at(database)
    findings = insights.doctor(app.store, create=False)
    opens = findings[0].level == "ok"
    findings.append(insights.configured(app.settings, app.given))
    if opens and _is_relayed(app):
        findings += _redis_findings(app)
    if opens and app.consumers:
        from rowlock.consumers import overview

        findings += overview.findings(app)
    if opens and (app.ingests or app.janitors):
        from rowlock.files import overview as files

        findings += files.findings(app)
    bad = [one for one in findings if one.level in ("warning", "error")]
    if json:
        show.print_json({"healthy": not bad, "findings": findings})
    else:
        _print(findings)
        show.say(f"\nneeds attention: {', '.join(one.check for one in bad)}" if bad else "\nall is well")
    if bad:
        raise typer.Exit(1)


def _is_relayed(app: Rowlock) -> bool:
    """Whether somebody has named a Redis, or a relay is at work."""
    named = "redis_url" in app.settings.model_fields_set
    return named or any("relay" in worker.info for worker in app.store.workers() if worker.alive)


def _redis_findings(app: Rowlock) -> list[Finding]:
    try:
        from rowlock.relays import overview
    except ImportError as error:
        from rowlock.insights import Finding

        advice = "pip install 'rowlock[rq]', or unset REDIS_URL"
        return [Finding("Redis", "note", f"it cannot be looked at: {error}", advice)]
    return overview.findings(app)


def _print(findings: Sequence[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    fancy_console = show.console().encoding.startswith("utf")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for one in findings:
        fancy, plain, colour = _MARKS[one.level]
        mark = fancy if fancy_console else plain
        said = show.safe(one.message)
        if one.advice and one.level != "ok":
            said.append(f"\n{'→' if fancy_console else '->'} {show.visible(one.advice)}", style="dim")
        grid.add_row(Text(f"{mark} {one.level}", style=colour), one.check, said)
    show.out(grid)
