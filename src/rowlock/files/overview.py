"""What a doctor says about ingests and janitors: folders, rights, space, constraints, and tiers at odds.

Short reads only; nothing here deletes or writes anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import combinations, permutations
from typing import Any

from rowlock.errors import RowlockError
from rowlock.files.ingest import Ingest
from rowlock.files.janitor import Janitor
from rowlock.files.records import FileServiceRecord
from rowlock.files.tables import App
from rowlock.insights.finding import Finding

_LATE = 60.0  # seconds that a run may be late beyond three intervals


def findings(app: App) -> list[Finding]:
    """What a doctor says about the files of an app."""
    found = [one for ingest in app.ingests.values() for one in _ingest(ingest)]
    if app.ingests and find_spec("watchfiles") is None:
        message = "watchfiles is not installed: new files are found by scans alone"
        found.append(Finding("watchfiles", "note", message, "pip install 'rowlock[files]'"))
    found += [one for janitor in app.janitors.values() for one in _janitor(janitor)]
    return [*found, *_tiers(list(app.janitors.values())), *_other_paths(app)]


def _ingest(ingest: Ingest) -> Iterator[Finding]:
    what = f"ingest {ingest.name}"
    try:
        ingest.folder.check(writable=False)
        lacks_constraint, known = ingest.file_table.lacks_constraint, ingest.record()
    except RowlockError as error:
        yield Finding(what, "error", str(error), "mend the folder, the table or the options")
        return
    if lacks_constraint:
        message = f"{ingest.table}.{ingest.columns[0]} has no unique constraint: it will not start"
        yield Finding(what, "error", message, "create it: rowlock ingest module:app --init")
        return
    yield Finding(what, "ok", f"{known.done} files ingested, {known.waiting} waiting, {known.failed} failed")
    if known.failed:
        message = f"{known.failed} files have no row, because row() or the table refuses them"
        yield Finding(what, "warning", message, "the log says why; they are tried again")
    if known.refused:
        message = f"{known.refused} files or folders cannot be read, or have names that are not UTF-8"
        yield Finding(what, "warning", message, "rename them, or give this user the right to read them")
    yield from _running(what, known, ingest.interval)


def _janitor(janitor: Janitor) -> Iterator[Finding]:
    what = f"janitor {janitor.name}"
    try:
        janitor.check()
        known = janitor.record()
    except RowlockError as error:
        yield Finding(what, "error", str(error), "mend the folder, the table or the options")
        return
    try:
        wanted = janitor.limits_now()
    except RowlockError as error:
        yield Finding(what, "error", f"a limit cannot be read: {error}", "mend the function, or the setting")
        return
    disk = wanted.disk
    share = f"{disk.free / max(1, disk.total):.0%} of the disk is free"
    yield Finding(what, "ok", f"{known.done} rows deleted, {known.bytes:,} bytes freed; {share}")
    if wanted.min_free is not None and disk.free < wanted.min_free:
        message = f"{disk.free:,} bytes are free, and {wanted.min_free:,} are wanted"
        yield Finding(
            what, "warning", message, f"see what may go: rowlock janitor module:app {janitor.name} --dry-run"
        )
    if known.error:
        yield Finding(what, "warning", f"its last run says: {known.error}", "see rowlock janitor --dry-run")
    if known.refused:
        message = f"{known.refused} files were refused by its last run"
        yield Finding(what, "warning", message, "the log, or rowlock janitor --dry-run, says which and why")
    yield from _running(what, known, janitor.interval)


def _running(what: str, known: FileServiceRecord, interval: float) -> Iterator[Finding]:
    if known.last_run is None:
        yield Finding(what, "note", "it has never run", f"start it: rowlock {known.kind} module:app")
        return
    age = time.time() - known.last_run.timestamp()
    if age > 3 * interval + _LATE:
        yield Finding(
            what, "note", f"it last ran {age:.0f} s ago", f"start it: rowlock {known.kind} module:app"
        )


def _tiers(janitors: list[Janitor]) -> Iterator[Finding]:
    """Janitors of one folder and table that contradict each other."""
    for one, other in combinations(janitors, 2):
        if _same_files(one, other):
            mine, theirs = _ways(one), _ways(other)
            differing = [name for name in mine if mine[name] != theirs[name]]
            if differing:
                message = f"{one.name} and {other.name} disagree on {', '.join(differing)} of the same files"
                yield Finding("tiers", "warning", message, "declare these alike, with **common")
    for one, other in permutations(janitors, 2):
        first, second = one.least_free, other.least_free
        if not _same_files(one, other) or first is None or second is None or not other.limits.only_space:
            continue
        begins_first = first > second or (first == second and janitors.index(one) < janitors.index(other))
        if begins_first and _protects_no_more(one, other):
            message = (
                f"{one.name} begins before {other.name} and protects no more, so that {other.name} never acts"
            )
            yield Finding(
                "tiers", "warning", message, "give the tier that begins first the stricter conditions"
            )


def _same_files(one: Janitor, other: Janitor) -> bool:
    return (one.table, one.folder.path) == (other.table, other.folder.path)


def _ways(janitor: Janitor) -> dict[str, Any]:
    choice = janitor.choice
    return {
        "path": janitor.columns,
        "paths": janitor.folder.paths,
        "deleted": choice.deleted,
        "remove_rows": choice.remove_rows,
    }


def _protects_no_more(one: Janitor, other: Janitor) -> bool:
    """Whether whatever the second may delete, the first may, too."""
    mine, theirs = one.choice, other.choice
    return (
        set(mine.after) <= set(theirs.after)
        and (mine.failed_too or not theirs.failed_too or not mine.after)
        and mine.where in (None, theirs.where)
    )


def _other_paths(app: App) -> Iterator[Finding]:
    for ingest in app.ingests.values():
        for janitor in app.janitors.values():
            if (ingest.table, ingest.folder.path) != (janitor.table, janitor.folder.path):
                continue
            if ingest.folder.paths != janitor.folder.paths:
                message = (
                    f"ingest {ingest.name} writes {ingest.folder.paths} paths, janitor {janitor.name} reads "
                    f"{janitor.folder.paths} ones"
                )
                yield Finding("paths", "error", message, "declare paths= alike")
            elif missing := set(ingest.columns) - set(janitor.columns):
                message = (
                    f"janitor {janitor.name} leaves the files of {', '.join(sorted(missing))} on the disk"
                )
                yield Finding("paths", "note", message, "name these columns in its path=[...], too")
