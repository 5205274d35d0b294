"""`rowlock ingest` and `rowlock janitor`: the files that a user's table names, from the command line.

The work is `rowlock.files`'; here services are chosen, run and shown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowlock.cli import logs, show, target
from rowlock.cli.failing import ERROR, USAGE, CommandFailed
from rowlock.cli.options import Json, LogFormat, LogLevel, flag

if TYPE_CHECKING:
    from rowlock.files.records import Cleaned, FileServiceRecord

commands = typer.Typer()
log = logging.getLogger("rowlock.cli")

Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODULE:APP] [NAME]",
        show_default=False,
        help="Where the Rowlock is (else ROWLOCK_APP, or pyproject.toml), and one that it declares; or all.",
    ),
]
Once = Annotated[bool, flag("Run once and end, for cron.", "--once")]
Status = Annotated[bool, flag("Only show how they stand.", "--status")]


@commands.command(rich_help_panel="Work")
def ingest(
    given: Given = None,
    once: Once = False,
    init: Annotated[
        bool, flag("Create the unique constraint on the path column, and end.", "--init")
    ] = False,
    status: Status = False,
    json: Json = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Write a row for each finished file of the folders that an app ingests. Ctrl-C (or SIGTERM) stops it.

    Example: rowlock ingest lab:app
    Or: rowlock ingest lab:app --init
    Or: rowlock ingest lab:app --once
    """
    logs.configure(log_level, log_format)
    chosen = _chosen(given, "ingest", only_looks=status)
    if init:
        for one in chosen:
            show.say(f"{one.name}: {', '.join(one.init())} are there")
    elif status:
        _show_status([one.record() for one in chosen], json)
    elif once:
        reports = []
        for one in chosen:
            one.check()
            with show.bar(one.name) as move:
                reports.append(one.run_once(progress=move and partial(move, one.name)))
        if json:
            show.print_json(reports)
        else:
            for report in reports:
                show.say(f"{report.name}: {_counted(report)}")
        if any(report.failed or report.later for report in reports):
            raise typer.Exit(ERROR)
    else:
        _serve(chosen, "{0.name} writes rows of {0.table} for the files in {0.folder.path}")


@commands.command(rich_help_panel="Work")
def janitor(
    given: Given = None,
    once: Once = False,
    dry_run: Annotated[
        bool, flag("Only print what would be deleted, and why; changes nothing.", "--dry-run")
    ] = False,
    status: Status = False,
    json: Json = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Delete the files of rows as an app's janitors say, tier by tier. Ctrl-C (or SIGTERM) stops it.

    Exit codes with --once: 1 if a disk stays too full although everything deletable is gone, if a limit
    cannot be read, or if files are gone and the table could not be told.

    Example: rowlock janitor lab:app
    Or: rowlock janitor lab:app --dry-run
    Or: rowlock janitor lab:app panic --once
    """
    logs.configure(log_level, log_format)
    chosen = _chosen(given, "janitor", only_looks=status or dry_run)
    if status:
        _show_status([one.record() for one in chosen], json)
    elif once or dry_run:
        reports: list[Cleaned] = []
        for one in chosen:
            reports.append(one.run_once(dry_run=dry_run, earlier=reports if dry_run else ()))
        if json:
            show.print_json(reports)
        else:
            _show_cleaned(reports, dry_run)
        if not dry_run and any(one.skipped or one.too_full or one.unconfirmed for one in reports):
            raise typer.Exit(ERROR)  # the log has said why
    else:
        _serve(chosen, "{0.name} deletes files in {0.folder.path} as the rows of {0.table} allow")


def _show_cleaned(reports: Sequence[Cleaned], dry_run: bool) -> None:
    if dry_run and any(report.deleted for report in reports):
        rows = [
            {
                "janitor": report.name,
                "row": str(row.key),
                "files": ", ".join(path if path.isprintable() else repr(path) for path in row.paths),
                "bytes": f"{row.freed:,}",
                "why": row.why,
            }
            for report in reports
            for row in report.deleted
        ]
        show.table(rows, right=("bytes",))
    for report in reports:
        verb = "would be deleted" if dry_run else "deleted"
        more = {
            "rows without files not marked": len(report.unconfirmed),
            "files refused": len(report.refused),
            "rows protected": report.kept,
            "gone already": report.healed,
        }
        others = "".join(f", {count} {word}" for word, count in more.items() if count)
        said = f"{len(report.deleted)} rows {verb}, {report.freed:,} bytes{others}"
        show.say(f"{report.name}: {f'skipped: {report.skipped}' if report.skipped else said}")
        if dry_run:  # otherwise the log says it
            for one in report.refused:
                show.say(f"{report.name}: {one.path!r} is kept: {one.why}")
            if report.short:
                show.say(f"{report.name}: {report.short}")


def _counted(report: Any) -> str:
    words = {
        "ingested": len(report.ingested),
        "known": report.known,
        "not finished yet": len(report.settling),
        "waiting": len(report.waiting),
        "never": report.never,
        "failed": len(report.failed),
        "failed before": len(report.later),
        "unreadable": len(report.unreadable),
    }
    return ", ".join(f"{count} {word}" for word, count in words.items() if count or word == "ingested")


# -- what both commands need -----------------------------------------------------------------------


def _chosen(given: list[str] | None, kind: str, only_looks: bool) -> list[Any]:
    """The services that are meant: all of the app, or the one that is named."""
    words = list(given or ())
    app = words.pop(0) if words and ":" in words[0] else None
    if len(words) > 1:
        raise CommandFailed(f"one {kind} at a time, or all: {' '.join(words)!r} names several", USAGE)
    where, rowlock = target.the_app(app)
    known: Mapping[str, Any] = rowlock.ingests if kind == "ingest" else rowlock.janitors
    if not known:
        raise CommandFailed(f"{where} declares no {kind}: write app.{kind}(...) in it")
    if words and words[0] not in known:
        raise CommandFailed(f"{where} declares no {kind} {words[0]!r}; there are: {', '.join(known)}")
    if only_looks:  # then nothing is created
        rowlock.store.open(create=False)
    return [known[words[0]]] if words else list(known.values())


def _serve(chosen: Sequence[Any], introduction: str) -> None:
    """Run the services until told to stop; each is introduced first."""
    from rowlock.files.service import check_services, run_services

    check_services(chosen)
    for one in chosen:
        with suppress(OSError):  # stdout is closed: the service goes on
            show.say(introduction.format(one), at_once=True)
    run_services(chosen, process_ends=True)  # a signal while it closes does not change its exit code
    log.info("stopped in good order")


def _show_status(records: Sequence[FileServiceRecord], json: bool) -> None:
    if json:
        show.print_json(records)
        return
    rows = [
        {
            "name": one.name,
            "table": one.table,
            "folder": one.folder,
            "done": one.done,
            "bytes": f"{one.bytes:,}",
            "waiting": one.waiting,
            "failed": one.failed,
            "refused": one.refused,
            "free": "" if one.free is None or not one.total else f"{one.free / one.total:.0%}",
            "last run": "never" if one.last_run is None else show.clock(one.last_run),
            "trouble": one.error or "",
        }
        for one in records
    ]
    show.table(rows, right=("done", "bytes", "waiting", "failed", "refused", "free"))
