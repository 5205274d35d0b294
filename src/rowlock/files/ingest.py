"""Ingest: finds the finished files of a folder and writes one row for each, once.

It assigns no work and deletes nothing. Scans are the truth; what a watcher says only makes it prompt.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.files.folder import FileRefused, Found, OpenFolder
from rowlock.files.limits import takes
from rowlock.files.patterns import matcher
from rowlock.files.records import FileTrouble, Ingested
from rowlock.files.rows import Finished, RowTable
from rowlock.files.service import ErrorBackoff, FileService, Stop
from rowlock.files.settling import SETTLE_SECONDS, FileSettling
from rowlock.files.tables import App, FileTable
from rowlock.files.watching import FolderWatcher
from rowlock.insights.filing import FileServiceRecord
from rowlock.options import check_seconds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rowlock.files.options import ServiceOptions

_BATCH = 500  # files in one transaction
_CHANGES_AT_ONCE = 1_000
_FORGET_EVERY = 3_600.0  # seconds
Progress = Callable[[int, int], None]


class Ingest(FileService):
    """A declared ingest: `run_once()` scans once, `run()` goes on until it is told to stop."""

    kind = "ingest"

    def __init__(
        self,
        app: App,
        home: str,
        name: str,
        *,
        pattern: str = "**/*",
        row: Callable[..., Mapping[str, Any] | bool | None] | None = None,
        settle: float = SETTLE_SECONDS,
        **common: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(app, home, name, **common)
        self.pattern = pattern
        self._fits = matcher(pattern)
        self._row = row
        self._wants_tx = row is not None and takes("row", row, 1, "tx")
        settled = check_seconds("settle", settle)
        if settled is None:
            raise ConfigurationError("settle=None: must be seconds for which a file has to stand still")
        self._settling = FileSettling(settled)
        self._rows: RowTable | None = None
        self._forget_at = 0.0

    # -- running ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the folder, the table or its unique constraint is not as it should be."""
        self.folder.check(writable=False)
        self._bound().check()

    def init(self) -> list[str]:
        """Create the unique constraint, and an index for each other path column; returns their names."""
        names = self._file_table().create_constraints()
        self._bound().check()
        return names

    @property
    def lacks_constraint(self) -> bool:
        """Whether two rows could name the same file."""
        return self._file_table().lacks_constraint

    def run_once(self, now: float | None = None, progress: Progress | None = None) -> Ingested:
        """Scan the whole folder and write the rows of what is finished; `progress(done, total)` is told."""
        rows = self._bound()
        rows.check()
        self._check_mounted()
        run = _Run(self.name)
        with self._for_run(self.folder).opened() as opened:
            # Oldest first, so that rows are numbered in the order in which their files were made.
            found = sorted(
                opened.scan(self._fits, self._unreadable(run)), key=lambda one: (one.modified, one.path)
            )
            self._settling.keep(one.path for one in found)
            self._take(opened, found, run, now, progress, rescan=True)
            if time.monotonic() >= self._forget_at:
                self._forget_at = time.monotonic() + _FORGET_EVERY
                rows.records.forget_deleted(opened)
        rows.records.forget_vanished({self._places.written(one.path) for one in found})
        self._note_run(len(run.unreadable))
        return run.report(self._settling.paths)

    def loop(self, stop: Stop) -> None:
        """Run until told to stop, without signals: for a thread."""
        self._stop = stop
        changed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        backoff = ErrorBackoff(self.title)
        next_scan = time.monotonic()
        with stop.waking(changed), FolderWatcher(self.folder.path, changed):
            while not stop.told:
                try:
                    if time.monotonic() >= next_scan:
                        self.run_once()
                        next_scan = time.monotonic() + self.interval
                    missed = self._take_changes(changed, self._pause(next_scan))
                    backoff.succeeded()
                    if missed:
                        next_scan = min(next_scan, time.monotonic() + 1.0)
                except Exception as error:  # a database or a disk that comes back, a mistake in a table
                    stop.wait(backoff.failed(error))
                    next_scan = time.monotonic()  # what has changed meanwhile is in the scan

    def _pause(self, next_scan: float) -> float:
        moment = time.monotonic()
        due = self._settling.next_due(time.time(), moment)
        left = next_scan - moment
        return max(0.0, left if due is None else min(left, due))

    def _take_changes(self, changed: queue.SimpleQueue[str | None], wait: float) -> bool:
        """Wait for changes, or for files to be finished, and take them; True if some may have been missed."""
        paths: set[str] = set()
        missed = False
        with suppress(queue.Empty):
            path = changed.get(timeout=wait) if wait > 0 else changed.get_nowait()
            while True:
                missed = missed or path is None
                paths |= set() if path is None else {path}
                if len(paths) >= _CHANGES_AT_ONCE:
                    break
                path = changed.get_nowait()
        paths |= set(self._settling.due(time.time(), time.monotonic()))
        if paths:
            self._look_at(paths)
        return missed

    def _look_at(self, paths: Iterable[str]) -> None:
        run = _Run(self.name)
        with self._for_run(self.folder).opened() as opened:
            found: dict[str, Found] = {}
            for path in sorted(paths):
                found.update((one.path, one) for one in self._found_at(opened, path, run))
            if found:
                self._take(opened, list(found.values()), run, None, None, rescan=False)

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
        opened: OpenFolder,
        found: list[Found],
        run: _Run,
        now: float | None,
        progress: Progress | None,
        rescan: bool,
    ) -> None:
        wall = time.time() if now is None else now
        finished = [one for one in found if self._settling.is_finished(one, wall, time.monotonic())]
        for start in range(0, len(finished), _BATCH):
            if progress is not None:
                progress(start, len(finished))
            done = self._bound().write(finished[start : start + _BATCH], opened, now, rescan)
            run.add(done)
            for file in done:
                if file.state == "changed":
                    self._watch_again(opened, file.found.path, wall)
                elif file.other is not None and file.state == "settling":
                    self._settling.wait_for(file.found.path, file.other, time.monotonic())
            if any(file.state == "ingested" for file in done):
                self._app.wake(self.table)
            if self._stop.told:
                break
        else:
            if progress is not None:
                progress(len(finished), len(finished))

    def _watch_again(self, opened: OpenFolder, path: str, wall: float) -> None:
        """Somebody has written to it since it was looked at."""
        with suppress(FileRefused):
            seen = opened.look(path)
            if seen is not None:
                self._settling.is_finished(seen, wall, time.monotonic())

    def _unreadable(self, run: _Run) -> Callable[[str, str], None]:
        def report(path: str, why: str) -> None:
            run.unreadable.append(FileTrouble(path, why))
            self._log_once(run.unreadable[-1], "is left alone")

        return report

    def _file_table(self) -> FileTable:
        return self._bound().table

    def _bound(self) -> RowTable:
        if self._rows is None:
            table = FileTable(self._app.store, self.title, self.table, self.columns)
            self._rows = RowTable(
                table, self.name, self._places, self._call_row, self._wants_tx, self._settling
            )
        return self._rows

    def _call_row(self, path: str, tx: Any) -> Mapping[str, Any] | bool | None:
        if self._row is None:
            return {}
        place = Path(self.folder.path, *path.split("/"))
        return self._row(place, tx) if self._wants_tx else self._row(place)

    def record(self) -> FileServiceRecord:
        """How it stands, for front ends."""
        counts = self._bound().records.counts()
        waiting, failed = counts.get("waiting", 0), counts.get("failed", 0)
        return msgspec.structs.replace(super().record(), waiting=waiting, failed=failed)


class _Run:
    """What happens in one run, as it happens."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._by_state: dict[str, list[str]] = {}
        self.failed: list[FileTrouble] = []
        self.unreadable: list[FileTrouble] = []

    def add(self, files: Iterable[Finished]) -> None:
        """Some files were looked at."""
        for file in files:
            self._by_state.setdefault(file.state, []).append(file.path)
            if file.state == "failed":
                self.failed.append(FileTrouble(file.path, file.error))

    def report(self, settling: list[str]) -> Ingested:
        """What it came to."""
        return Ingested(
            name=self._name,
            ingested=self._by_state.get("ingested", []),
            waiting=self._by_state.get("waiting", []),
            settling=settling,
            failed=self.failed,
            later=self._by_state.get("later", []),
            unreadable=self.unreadable,
            known=len(self._by_state.get("known", [])),
            never=len(self._by_state.get("never", [])),
        )
