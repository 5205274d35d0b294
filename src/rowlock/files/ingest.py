"""Ingest: finds the finished files of a folder and writes one row for each, once.

It assigns no work and deletes nothing. Scans are the truth; what a watcher says only makes it prompt.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.files.folder import FileRefused, Folder, Found, OpenFolder, refuse_missing_disk
from rowlock.files.limits import takes
from rowlock.files.patterns import matcher
from rowlock.files.places import Places
from rowlock.files.records import FileTrouble, Ingested
from rowlock.files.rows import RowTable, Verdict
from rowlock.files.service import Stop, Troubles, interval_of, monotonic, run_services
from rowlock.files.settling import Settling
from rowlock.files.space import space
from rowlock.files.tables import App, own_files, path_columns, table_name
from rowlock.files.watching import Watcher
from rowlock.insights.filing import FileServiceRecord
from rowlock.options import check_name, check_seconds

log = logging.getLogger("rowlock.ingest")

_BATCH = 500  # files in one transaction
_CHANGES_AT_ONCE = 1_000
_FORGET_EVERY = 3_600.0  # seconds
Progress = Callable[[int, int], None]


class Ingest:
    """A declared ingest: `run_once()` scans once, `run()` goes on until it is told to stop."""

    kind = "ingest"

    def __init__(
        self,
        app: App,
        name: str,
        *,
        table: str,
        folder: str | os.PathLike[str],
        pattern: str = "**/*",
        path: str | Sequence[str] = "path",
        paths: str = "absolute",
        row: Callable[..., Mapping[str, Any] | bool | None] | None = None,
        settle: float = 2.0,
        interval: float = 60.0,
        home: str = "",
    ) -> None:
        self._app = app
        self.name = check_name("name", name)
        self.table = table_name(table)
        self.columns = path_columns(path)
        self.folder = Folder(folder, home)
        self.pattern = pattern
        self._fits = matcher(pattern)
        self._places = Places(self.folder.path, paths)
        self.paths = paths
        self._row = row
        self._wants_tx = row is not None and takes("row", row, 1, "tx")
        settled = check_seconds("settle", settle)
        if settled is None:
            raise ConfigurationError("settle=None: must be seconds for which a file has to stand still")
        self._settling = Settling(settled)
        self.interval = interval_of(interval)
        self._stop = Stop()
        self._rows: RowTable | None = None
        self._told: set[tuple[str, str]] = set()
        self._forget_at = 0.0

    def __repr__(self) -> str:
        return f"<ingest {self.name!r} of {self.folder.path} into {self.table}>"

    @property
    def title(self) -> str:
        """How it is called in messages."""
        return f"ingest {self.name!r}"

    # -- running ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the folder, the table or its unique constraint is not as it should be."""
        self.folder.check(writable=False)
        self._bound().check()

    def init(self) -> list[str]:
        """Create the unique constraint, and an index for each other path column; returns their names."""
        return self._bound().create_constraints()

    def run_once(self, now: float | None = None, progress: Progress | None = None) -> Ingested:
        """Scan the whole folder and write the rows of what is finished; `progress(done, total)` is told."""
        rows = self._bound()
        rows.check()
        refuse_missing_disk(self.title, self.folder, rows.was_mounted)
        run = _Run(self.name)
        with self._opened() as opened:
            # Oldest first, so that rows are numbered in the order in which their files were made.
            found = sorted(
                opened.scan(self._fits, self._unreadable(run)), key=lambda one: (one.modified, one.path)
            )
            self._settling.keep(one.path for one in found)
            self._take(rows, opened, found, run, now, progress or _no_progress, rescan=True)
            if monotonic() >= self._forget_at:
                self._forget_at = monotonic() + _FORGET_EVERY
                rows.forget_gone(opened)
        rows.forget_vanished({self._places.written(one.path) for one in found})
        rows.ran(len(run.unreadable) + len(run.failed), self.folder.is_mounted)
        return run.report(self._settling.paths)

    def run(self) -> None:
        """Scan every `interval` seconds, and take new files as they are finished, until told to stop."""
        run_services([self], self._stop)

    def stop(self) -> None:
        """Let `run` end, after the batch that it is at."""
        self._stop.tell()

    def loop(self, stop: Stop) -> None:
        """The same without signals, for a thread."""
        self._stop = stop
        try:
            self._loop(stop)
        finally:
            self._stop = Stop()

    def _loop(self, stop: Stop) -> None:
        changed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        troubles = Troubles(self.title)
        next_scan = monotonic()
        with stop.ringing(changed), Watcher(self.folder.path, changed):
            while not stop.told:
                try:
                    if monotonic() >= next_scan:
                        self.run_once()
                        next_scan = monotonic() + self.interval
                    missed = self._hear(changed, self._pause(next_scan))
                    troubles.over()
                    if missed:
                        next_scan = min(next_scan, monotonic() + 1.0)
                except (
                    Exception
                ) as error:  # a database or a disk that comes back, a user's mistake in a table
                    wait = troubles.happened(error)
                    stop.wait(wait)
                    next_scan = monotonic()  # what was heard meanwhile is in the scan

    def _pause(self, next_scan: float) -> float:
        moment = monotonic()
        due = self._settling.next_due(time.time(), moment)
        left = next_scan - moment
        return max(0.0, left if due is None else min(left, due))

    def _hear(self, changed: queue.SimpleQueue[str | None], wait: float) -> bool:
        """Wait for changes, or for files to be finished, and take them; True if some may have been missed."""
        heard: set[str] = set()
        missed = False
        try:
            first = changed.get(timeout=wait) if wait > 0 else changed.get_nowait()
            while True:
                if first is None:
                    missed = True
                else:
                    heard.add(first)
                if len(heard) >= _CHANGES_AT_ONCE:
                    break
                first = changed.get_nowait()
        except queue.Empty:
            pass
        heard |= set(self._settling.due(time.time(), monotonic()))
        if heard:
            self._look_at(heard)
        return missed

    def _look_at(self, paths: Iterable[str]) -> None:
        rows = self._bound()
        run = _Run(self.name)
        with self._opened() as opened:
            found: dict[str, Found] = {}
            for path in sorted(paths):
                found.update((one.path, one) for one in self._found_at(opened, path, run))
            if found:
                self._take(rows, opened, list(found.values()), run, None, _no_progress, rescan=False)

    def _found_at(self, opened: OpenFolder, path: str, run: _Run) -> Iterator[Found]:
        try:
            seen = opened.look(path) if self._fits(path) else None
        except FileRefused:  # a link, a folder, a name that is none
            seen = None
        if seen is not None:
            yield seen
            return
        self._settling.forget(path)
        if opened.is_folder(path):  # its files may have been there before somebody watched it
            yield from opened.scan(self._fits, self._unreadable(run), below=path)

    # -- taking ----------------------------------------------------------------------------------

    def _take(
        self,
        rows: RowTable,
        opened: OpenFolder,
        found: list[Found],
        run: _Run,
        now: float | None,
        progress: Progress,
        rescan: bool,
    ) -> None:
        wall = time.time() if now is None else now
        finished = [one for one in found if self._settling.is_finished(one, wall, monotonic())]
        progress(0, len(finished))
        for start in range(0, len(finished), _BATCH):
            batch = finished[start : start + _BATCH]
            for one, verdict in rows.write(batch, opened, now, rescan):
                run.note(self._places.written(one.path), verdict)
                if verdict.state == "changed":
                    self._watch_again(opened, one.path, wall)
            progress(min(start + _BATCH, len(finished)), len(finished))
            if run.new:
                run.new = False
                self._app.wake(self.table)
            if self._stop.told:
                break

    def _watch_again(self, opened: OpenFolder, path: str, wall: float) -> None:
        """Somebody has written to it since it was looked at."""
        try:
            seen = opened.look(path)
        except FileRefused:
            return
        if seen is not None:
            self._settling.is_finished(seen, wall, monotonic())

    def _unreadable(self, run: _Run) -> Callable[[str, str], None]:
        def report(path: str, why: str) -> None:
            run.unreadable.append(FileTrouble(path, why))
            if (path, why) not in self._told:
                self._told.add((path, why))
                log.warning("%s: %r is left alone: %s", self.title, path, why)

        return report

    def _opened(self) -> Any:
        return Folder(self.folder.path, keep=own_files(self._app.store)).opened()

    def _bound(self) -> RowTable:
        if self._rows is None:
            self._rows = RowTable(
                self._app.store,
                self.name,
                self.table,
                self.columns,
                self._places,
                self._call_row,
                self._wants_tx,
                self._settling,
            )
        return self._rows

    def _call_row(self, path: str, tx: Any) -> Mapping[str, Any] | bool | None:
        if self._row is None:
            return {}
        place = Path(self.folder.path, *path.split("/"))
        return self._row(place, tx) if self._wants_tx else self._row(place)

    # -- asking ----------------------------------------------------------------------------------

    def record(self) -> FileServiceRecord:
        """How it stands, for front ends."""
        known = self._bound().record()
        disk = space(self.folder.path) if os.path.isdir(self.folder.path) else None
        return msgspec.structs.replace(
            known,
            folder=self.folder.path,
            free=None if disk is None else disk.free,
            total=None if disk is None else disk.total,
        )

    @property
    def lacks_constraint(self) -> bool:
        """Whether two rows could name the same file."""
        return self._bound().lacks_constraint


def _no_progress(done: int, total: int) -> None:
    """Nobody looks."""


class _Run:
    """What happens in one run, as it happens."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._by_state: dict[str, list[str]] = {}
        self.failed: list[FileTrouble] = []
        self.unreadable: list[FileTrouble] = []
        self.new = False

    def note(self, path: str, verdict: Verdict) -> None:
        """One file was looked at."""
        self._by_state.setdefault(verdict.state, []).append(path)
        if verdict.state == "ingested":
            self.new = True
        elif verdict.state == "failed":
            self.failed.append(FileTrouble(path, verdict.error))

    def report(self, settling: list[str]) -> Ingested:
        """What it came to."""
        return Ingested(
            name=self._name,
            ingested=self._by_state.get("ingested", []),
            waiting=self._by_state.get("waiting", []),
            settling=settling,
            failed=self.failed,
            unreadable=self.unreadable,
            known=len(self._by_state.get("known", [])),
            never=len(self._by_state.get("never", [])),
        )
