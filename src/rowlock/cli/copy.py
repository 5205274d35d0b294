"""`rowlock copy`: moves a queue to another database, with a progress bar and the numbers of both sides.

What is copied when is decided in `rowlock.copying`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from rowlock.cli import show, target
from rowlock.cli.failing import USAGE, CommandFailed, note
from rowlock.cli.options import Json, flag
from rowlock.errors import StoreMissing

if TYPE_CHECKING:
    from rowlock.copying.report import CopyProgress, CopyReport

commands = typer.Typer()

_SAY_EVERY_SECONDS = 5.0


@commands.command(rich_help_panel="The database")
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM_URL", help="The queue to copy, as a URL or a path.")],
    to: Annotated[str, typer.Argument(metavar="TO_URL", help="Where to; its tables are created if need be.")],
    keep: Annotated[
        bool, flag("Leave the source usable; else it refuses jobs from then on.", "--keep")
    ] = False,
    merge: Annotated[
        bool, flag("Into a queue that is not empty: the jobs get new ids there.", "--merge")
    ] = False,
    with_workers_alive: Annotated[
        bool, flag("Even if workers run jobs of the source: those run again.", "--with-workers-alive")
    ] = False,
    undo: Annotated[bool, flag("Copy nothing; let a source that was moved be used again.", "--undo")] = False,
    json: Json = False,
) -> None:
    """Move a queue (jobs, history, logs, queue settings) to another database; an interrupted copy goes on.

    Consumers' claims and records of files stay where they are.

    Example: rowlock copy sqlite:///jobs.db postgresql://app@db/shop
    Or: rowlock copy jobs.db copy.db --keep
    Or: rowlock copy old.db jobs.db --merge --json
    """
    from rowlock.copying.copier import Copier

    if undo and (keep or merge or with_workers_alive):
        raise CommandFailed("--undo copies nothing: it goes with no other option", USAGE)
    old = target.new_queue_at(source)
    new = target.new_queue_at(to)
    try:
        old.store.open(create=False)
    except StoreMissing:
        raise CommandFailed(
            f"no queue at {target.address(old)}: name the queue that is to be copied as FROM_URL"
        ) from None
    if undo:
        Copier(old.store, new.store).open_again()
        show.say(
            f"{target.address(old)} takes jobs again; what was copied to {target.address(new)} is there, too"
        )
        return
    with _progress(quiet=json) as tell:
        copier = Copier(
            old.store, new.store, merge=merge, keep=keep, with_workers_alive=with_workers_alive, tell=tell
        )
        try:
            report = copier.run()
        except KeyboardInterrupt:
            note("interrupted: the same command goes on where it was; until then the source may take no jobs")
            raise
    if json:
        show.print_json(report)
    else:
        _print(report)
    if not report.is_good:
        raise CommandFailed(
            "the numbers differ, so the source is not marked as moved, and takes no jobs: find out why, then "
            f"`{show.command('copy', source, to, '--undo')}` to go on with the source"
            if report.moved
            else "the numbers differ"
        )


def _print(report: CopyReport) -> None:
    moved = report.moved and report.is_good
    verb = "moved" if moved else "copied"
    jobs = sum(one.source for one in report.counts if one.what not in ("history", "logs"))
    again = ", going on with an interrupted copy" if report.resumed else ""
    show.say(
        f"{verb} {_jobs(jobs)} from {report.source} to {report.target} "
        f"in {show.duration(report.seconds)}{again}"
    )
    rows = [
        {
            "": one.what,
            "source": f"{one.source:,}",
            "target": f"{one.target:,}",
            " ": "" if one.agrees else f"expected {one.expected:,}",
        }
        for one in report.counts
        if one.source or one.target
    ]
    show.table(rows, right=("source", "target"))
    if report.ids_kept:
        show.say("ids are the same")
    else:
        for ids in report.ids:
            first, last = ids.first + ids.shift, ids.last + ids.shift
            show.say(f"ids {ids.first} to {ids.last} are {first} to {last} now (each plus {ids.shift})")
    if report.released:
        show.say(f"running until then: {_jobs(report.released)}; claims have ended, claim numbers stay")
    if report.conflicts_total:
        show.say(
            f"arrived cancelled, because a job there holds the unique key: {_jobs(report.conflicts_total)}"
        )
        for one in report.conflicts[:10]:
            show.say(
                f"  job {one.source_id} is {one.target_id} now; {one.unique_key!r} is held by {one.holder}"
            )
    if report.settings_kept:
        show.say(f"these queues kept the settings they have there: {', '.join(report.settings_kept)}")
    if report.target_in_use and not report.agrees:
        show.say("workers are alive on the target: its numbers change as they work")
    if moved:
        show.say(
            f"{report.source} refuses jobs and workers from now on: they are told to use {report.target}"
        )


def _jobs(number: int) -> str:
    return f"{number:,} job" if number == 1 else f"{number:,} jobs"


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[CopyProgress], None]]:
    """A bar on a terminal; elsewhere a line on stderr now and then."""
    said = time.monotonic()
    with nullcontext() if quiet else show.bar() as move:

        def tell(progress: CopyProgress) -> None:
            nonlocal said
            if move is not None:
                move(progress.phase, progress.done, progress.total)
            elif time.monotonic() - said >= _SAY_EVERY_SECONDS:
                said = time.monotonic()
                note(f"{progress.phase}: {progress.done:,} of {progress.total:,} jobs")

        yield tell
