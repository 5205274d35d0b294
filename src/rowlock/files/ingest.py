"""Ingest: finds the finished files of a folder and writes one row for each, once.

It assigns no work and deletes nothing. Scans are the truth; what a watcher says only makes it prompt.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.files.folder import FileRefused, Found, OpenFolder
from rowlock.files.folder_watch import watching
from rowlock.files.ingest_table import IngestTable
from rowlock.files.limits import takes
from rowlock.files.options import IngestOptions
from rowlock.files.patterns import matcher
from rowlock.files.records import FileServiceRecord, FileTrouble, Ingested
from rowlock.files.rows import Finished, RowWriter
from rowlock.files.service import ErrorBackoff, FileService
from rowlock.files.settling import SETTLE_SECONDS, FileSettling
from rowlock.files.tables import App
from rowlock.options import check_seconds

_BATCH = 500  # files in one transaction
_CHANGES_AT_ONCE = 1_000
_FORGET_EVERY = 3_600.0  # seconds
Progress = Callable[[int, int], None]


class Ingest(FileService):
    """A declared ingest: `run_once()` scans once, `run()` goes on until it is told to stop."""

    kind = "ingest"
    options = IngestOptions

    def __init__(self, app: App, home: str, name: str, given: IngestOptions) -> None:
        super().__init__(app, home, name, given)
        self._fits = matcher(given.get("pattern", "**/*"))
        self._row = given.get("row")
        self.wants_tx = self._row is not None and takes("row", self._row, 1)
        settle = check_seconds("settle", given.get("settle", SETTLE_SECONDS))
        if settle is None:
            raise ConfigurationError("settle=None: must be seconds for which a file has to stand still")
        self.settling = FileSettling(settle)
        self._changed: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # paths; None: some were missed
        self._forget_at = 0.0

    @cached_property
    def file_table(self) -> IngestTable:
        """Its table, described when it is first asked for."""
        return IngestTable(self._app, self)

    def call_row(self, path: str, tx: Any) -> Mapping[str, Any] | bool | None:
        """What the user's function says about a file."""
        if self._row is None:
            return {}
        place = self.folder.at(path)
        return self._row(place, tx) if self.wants_tx else self._row(place)

    # -- running ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the folder, the table or its unique constraint is not as it should be."""
        self.folder.check(writable=False)
        self.file_table.check_constraint()

    def init(self) -> list[str]:
        """Create the unique constraint, and an index for each other path column; returns their names."""
        names = self.file_table.create_constraints()
        self.file_table.check_constraint()
        return names

    def run_once(self, now: float | None = None, progress: Progress | None = None) -> Ingested:
        """Scan the whole folder and write the rows of what is finished; `progress(done, total)` is told."""
        self.file_table.check_constraint()
        self._check_mounted()
        unreadable: list[FileTrouble] = []
        with self._opened(self.folder) as opened:
            # Oldest first, so that rows are numbered in the order in which their files were made.
            found = sorted(
                opened.scan(self._fits, lambda *trouble: unreadable.append(self._left_alone(*trouble))),
                key=lambda one: (one.modified, one.path),
            )
            self.settling.keep(one.path for one in found)
            files = self._take(opened, found, now, progress, rescan=True)
            if time.monotonic() >= self._forget_at:
                self._forget_at = time.monotonic() + _FORGET_EVERY
                self.file_table.forget_deleted(partial(self._is_there, opened))
        self.file_table.forget_vanished({self.folder.written(one.path) for one in found})
        self._note_run(len(unreadable))
        return self._report(files, unreadable)

    def _is_there(self, opened: OpenFolder, path: str) -> bool:
        """Whether something is at this path of the table."""
        try:
            return opened.look(self.folder.read(path)) is not None
        except FileRefused:
            return True

    def _report(self, files: Sequence[Finished], unreadable: list[FileTrouble]) -> Ingested:
        def paths(state: str) -> list[str]:
            return [file.path for file in files if file.state == state]

        return Ingested(
            name=self.name,
            ingested=paths("ingested"),
            waiting=paths("waiting"),
            settling=self.settling.paths,
            failed=[FileTrouble(file.path, file.error) for file in files if file.state == "failed"],
            later=paths("later"),
            unreadable=unreadable,
            known=len(paths("known")),
            never=len(paths("never")),
        )

    @classmethod
    def loops(cls, services: Sequence[Ingest]) -> list[Callable[[], None]]:
        """Each for itself."""
        return [one._loop for one in services]

    def stop(self) -> None:
        """Let `run` end, after the batch that it is at; safe in a signal handler."""
        super().stop()
        self._changed.put(None)  # it may be waiting

    def _loop(self) -> None:
        backoff = ErrorBackoff(self.title)
        next_scan = time.monotonic()
        with watching(self.folder.path, self._changed):
            while not self.stopping.is_set():
                try:
                    if time.monotonic() >= next_scan:
                        self.run_once()
                        next_scan = time.monotonic() + self.interval
                    moment = time.monotonic()
                    due = self.settling.next_due(time.time(), moment)
                    missed = self._take_changes(min(due, next_scan - moment))
                    backoff.succeeded()
                    if missed:
                        next_scan = min(next_scan, time.monotonic() + 1.0)
                except Exception as error:  # a database or a disk that comes back, a mistake in a table
                    self.stopping.wait(backoff.failed(error))
                    next_scan = time.monotonic()  # what has changed meanwhile is in the scan

    def _take_changes(self, wait: float) -> bool:
        """Wait for changes, or for files to be finished, and take them; True if some may have been missed."""
        told: set[str | None] = set()
        with suppress(queue.Empty):
            told.add(self._changed.get(timeout=max(0.0, wait)))
            while len(told) < _CHANGES_AT_ONCE:
                told.add(self._changed.get_nowait())
        paths = {path for path in told if path is not None}
        paths.update(self.settling.due(time.time(), time.monotonic()))
        if paths:
            self._look_at(paths)
        return None in told

    def _look_at(self, paths: Iterable[str]) -> None:
        with self._opened(self.folder) as opened:
            found = {one.path: one for path in sorted(paths) for one in self._found_at(opened, path)}
            if found:
                self._take(opened, list(found.values()))

    def _found_at(self, opened: OpenFolder, path: str) -> Iterator[Found]:
        try:
            seen = opened.look(path) if self._fits(path) else None
        except FileRefused:  # a link, a folder, a name that is none
            seen = None
        if seen is not None:
            yield seen
            return
        self.settling.forget(path)
        if opened.is_folder(path):  # its files may have been there before somebody watched it
            yield from opened.scan(self._fits, self._left_alone, below=path)

    # -- taking ----------------------------------------------------------------------------------

    def _take(
        self,
        opened: OpenFolder,
        found: list[Found],
        now: float | None = None,
        progress: Progress | None = None,
        rescan: bool = False,
    ) -> list[Finished]:
        """Write the rows of those files that are finished; says what became of each."""
        wall = time.time() if now is None else now
        finished = [one for one in found if self.settling.is_finished(one, wall, time.monotonic())]
        writer = RowWriter(self, opened, now)
        done: list[Finished] = []
        for start in range(0, len(finished), _BATCH):
            if progress is not None:
                progress(start, len(finished))
            batch = writer.write(finished[start : start + _BATCH], rescan)
            done += batch
            for file in batch:
                if file.state == "changed":
                    self._watch_again(opened, file.found.path, wall)
                elif file.state == "settling":
                    self.settling.wait_for(file.found.path, file.others, time.monotonic())
            if any(file.state == "ingested" for file in batch):
                self._app.wake(self.table)
            if self.stopping.is_set():
                return done
        if progress is not None:
            progress(len(finished), len(finished))
        return done

    def _watch_again(self, opened: OpenFolder, path: str, wall: float) -> None:
        """Somebody has written to it since it was looked at."""
        with suppress(FileRefused):
            seen = opened.look(path)
            if seen is not None:
                self.settling.is_finished(seen, wall, time.monotonic())

    def _left_alone(self, path: str, why: str) -> FileTrouble:
        trouble = FileTrouble(path, why)
        self._log_once(trouble, "is left alone")
        return trouble

    def record(self) -> FileServiceRecord:
        """How it stands, for front ends."""
        counts = self.file_table.count_without_row()
        waiting, failed = counts.get("waiting", 0), counts.get("failed", 0)
        return msgspec.structs.replace(super().record(), waiting=waiting, failed=failed)
