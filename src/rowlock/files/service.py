"""What ingest and janitor have in common: how they are declared, run and stopped, and their numbers.

What one run does is theirs.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, TypeVar

from rowlock.consumers import names
from rowlock.errors import TRANSIENT, ConfigurationError, RowlockError
from rowlock.files import disk
from rowlock.files.folder import Folder, OpenFolder
from rowlock.files.options import ServiceOptions
from rowlock.files.records import FileServiceRecord, FileTrouble
from rowlock.files.tables import App, FileTable, own_files, path_columns
from rowlock.job import utc
from rowlock.options import check_keywords, check_name, check_seconds
from rowlock.outage import backoff
from rowlock.worker.signals import told_by_signals

log = logging.getLogger("rowlock.files")

_BACKOFF_FIRST, _BACKOFF_MOST = 1.0, 30.0  # seconds
_SHORTEST_INTERVAL = 0.01


class ErrorBackoff:
    """Errors of runs that are tried again: each kind is logged once until a run succeeds; the pauses grow."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._logged: set[type[BaseException]] = set()
        self._failures = 0

    def failed(self, error: Exception) -> float:
        """Log the error if it is new; returns the seconds until the next try."""
        if type(error) not in self._logged:
            self._logged.add(type(error))
            known = isinstance(error, RowlockError)
            said = str(error).removeprefix(f"{self._title}: ")
            log.error("%s: %s; it is tried again", self._title, said, exc_info=None if known else error)
        self._failures += 1
        return backoff(self._failures - 1, _BACKOFF_FIRST, _BACKOFF_MOST)

    def succeeded(self) -> None:
        """A run has succeeded."""
        if self._logged:
            log.info("%s: works again", self._title)
        self._logged.clear()
        self._failures = 0


class FileService(ABC):
    """A declared ingest or janitor: a table whose rows name files, and the folder of these files."""

    kind: str
    options: type  # the TypedDict of what it can be told

    def __init__(self, app: App, home: str, name: str, given: ServiceOptions) -> None:
        check_keywords(f"app.{self.kind}", given, self.options)
        self._app = app
        self.name = check_name("name", name)
        self.table = ".".join(names.table(given["table"]))
        self.columns = path_columns(given.get("path", "path"))
        self.folder = Folder(given["folder"], home, given.get("paths", "absolute"))
        interval = given.get("interval", 60.0)
        seconds = check_seconds("interval", interval)
        if seconds is None or seconds < _SHORTEST_INTERVAL:
            raise ConfigurationError(f"interval={interval!r}: must be {_SHORTEST_INTERVAL:g} seconds or more")
        self.interval = seconds
        self.stopping = threading.Event()
        self._logged: set[FileTrouble] = set()
        self._log = logging.getLogger(f"rowlock.{self.kind}")

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} of {self.folder.path} and {self.table}>"

    @property
    def title(self) -> str:
        """How it is called in messages."""
        return f"{self.kind} {self.name!r}"

    @property
    def declaration(self) -> tuple[Any, ...]:
        """What tells it from another service that was given the same name."""
        return (self.table, self.folder.path)

    @abstractmethod
    def check(self) -> None:
        """Raise if the folder, the table or an option is not as it should be."""

    @classmethod
    @abstractmethod
    def loops(cls, services: Sequence[Any]) -> list[Callable[[], None]]:
        """What runs these services until they are to stop: functions for a thread each."""

    @cached_property
    @abstractmethod
    def file_table(self) -> FileTable:
        """Its table with the statements of this service, described when it is first asked for."""

    def run(self) -> None:
        """Run again and again, every `interval` seconds, until told to stop."""
        check_services([self])
        try:
            run_services([self])
        finally:
            self.stopping.clear()

    def stop(self) -> None:
        """Let `run` end, after the batch that it is at; safe in a signal handler."""
        self.stopping.set()

    # -- what runs have in common ----------------------------------------------------------------

    def _opened(self, folder: Folder) -> AbstractContextManager[OpenFolder]:
        """The folder, open for a run: the files of the queue's own database are left out."""
        return folder.opened(own_files(self._app.store))

    def _log_once(self, trouble: FileTrouble, said: str) -> None:
        if trouble not in self._logged:
            self._logged.add(trouble)
            self._log.warning("%s: %r %s: %s", self.title, trouble.path, said, trouble.why)

    def _check_mounted(self) -> None:
        """Raise if the folder was a disk of its own and is none now: its files are not gone, only away."""
        if self.folder.is_mounted:
            return
        with self.file_table.reading() as db:
            if db.row("was_mounted", mount=self._mount) is None:
                return
        raise ConfigurationError(
            f"{self.title}: {self.folder.path} was a disk of its own and is none now: mount it (or, if that "
            f"is meant, delete the row {self._mount!r} from rowlock_file_services; if it is a disk on other "
            "machines only, give the service a name of its own on each)"
        )

    @property
    def _mount(self) -> str:
        return f"{self.title} {self.folder.path}"

    def _note_run(self, refused: int, error: str | None = None) -> None:
        with self.file_table.writing() as tx:
            tx.run("service_ran", kind=self.kind, name=self.name, refused=refused, error=error)
            if self.folder.is_mounted:
                tx.run("put_mount", mount=self._mount)

    def record(self) -> FileServiceRecord:
        """How it stands, for front ends."""
        with self.file_table.reading() as db:
            row = db.row("service", kind=self.kind, name=self.name)
        done, size, refused, last, error = row or (0, 0, 0, None, None)
        space = disk.space(self.folder.path) if os.path.isdir(self.folder.path) else None
        return FileServiceRecord(
            kind=self.kind,
            name=self.name,
            table=self.table,
            folder=self.folder.path,
            done=done,
            bytes=size,
            refused=refused,
            free=None if space is None else space.free,
            total=None if space is None else space.total,
            last_run=None if last is None else utc(last),
            error=error,
        )


_Declared = TypeVar("_Declared", bound=FileService)


def keep_declared(known: dict[str, _Declared], made: _Declared) -> _Declared:
    """Keep a service under its name; a module that is imported twice may declare it twice."""
    other = known.get(made.name)
    if other is not None and other.declaration != made.declaration:
        raise ConfigurationError(
            f"two different services want the name {made.name!r}: {other!r} and {made!r}; give each a name "
            "of its own"
        )
    known[made.name] = made
    return made


def check_services(services: Sequence[FileService]) -> None:
    """Raise what the user has to change; a database that is down or busy for now is waited for later."""
    for service in services:
        try:
            service.check()
        except TRANSIENT as error:
            log.warning("%s: %s", service.name, error)


def run_services(services: Sequence[FileService], process_ends: bool = False) -> None:
    """Run all of them, which are of one kind, until they are told to stop; the first signal does so."""

    def on_signal(number: int, second: bool) -> None:
        if second:
            raise KeyboardInterrupt
        for service in services:
            service.stop()

    first, *others = services[0].loops(services)
    with told_by_signals(on_signal) as told:
        told.process_ends = process_ends
        if not others:
            first()
            return
        threads = [
            threading.Thread(target=loop, name=f"rowlock {services[0].kind}", daemon=True)
            for loop in (first, *others)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # in pieces: a signal is not noticed during a join on every system
                thread.join(timeout=0.5)
