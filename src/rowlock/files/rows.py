"""The rows that ingest writes: which files have one already, what the user's function says, one row per file.

What is asked of the table, and remembered of files beside their rows, is in `ingest_table.py`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.error_text import describe, headline, storable
from rowlock.errors import TRANSIENT, StoreError
from rowlock.files.folder import FileRefused, Found, OpenFolder
from rowlock.files.ingest_table import FileRecord
from rowlock.files.tables import Session, Transaction, json_list

if TYPE_CHECKING:
    from rowlock.files.ingest import Ingest

log = logging.getLogger("rowlock.ingest")

_RETRY_FIRST, _RETRY_MOST = 30.0, 3_600.0  # seconds until row() is asked again after an error
_LONGEST_ERROR = 2_000
_LONGEST_TRANSACTION = 0.5  # seconds after which one with the user's function in it ends


class Finished(msgspec.Struct):
    """A finished file: what is known of it, what row() said about it, and what became of it."""

    found: Found
    path: str  # as the user's table has it
    record: FileRecord | None
    answer: Any = None  # of row(): columns, None, False, or an exception
    state: str = ""  # ingested, known, waiting, never, failed, later (after its pause), changed, settling
    error: str = ""
    others: list[Found] = []  # other files of its row; of a settling one, some are not finished


class _NotYet(Exception):
    """The row cannot be written at this moment."""


class RowWriter:
    """Writes rows in one run of an ingest, with its folder open."""

    def __init__(self, ingest: Ingest, opened: OpenFolder, now: float | None) -> None:
        self._ingest = ingest
        self._table = ingest.file_table
        self._folder = ingest.folder
        self._settling = ingest.settling
        self._opened = opened
        self._now = now

    @property
    def _moment(self) -> float:
        return time.time() if self._now is None else self._now

    # -- writing ---------------------------------------------------------------------------------

    def write(self, batch: Sequence[Found], rescan: bool) -> list[Finished]:
        """Write a row for each of these finished files that has none; says what became of each."""
        paths = {found: self._folder.written(found.path) for found in batch}
        with self._table.reading(self._now) as db:
            listed = json_list(paths.values())
            known = self._table.known(db, listed)
            records = self._table.without_row(db, listed)
        files = [Finished(found, path, records.get(path)) for found, path in paths.items()]
        for file in files:
            file.state = "known" if file.path in known else _state_from_record(file, self._moment, rescan)
        asked = [file for file in files if not file.state]
        if asked and self._ingest.wants_tx:
            self._write_with_tx(asked)
        elif asked:
            for file in asked:
                file.answer = self._answer(file.found, None)
            self._write_answers(asked)
        return files

    def _write_answers(self, files: list[Finished]) -> None:
        """All in one transaction; if one of them cannot be written, each in its own."""
        try:
            self._write_together(files)
        except TRANSIENT:
            raise
        except StoreError as error:
            if len(files) > 1:
                for file in files:
                    self._write_answers([file])
            else:
                files[0].answer = error
                self._write_together(files)

    def _write_together(self, files: list[Finished]) -> None:
        with self._table.writing(self._now) as tx:
            self._look_again(tx, files)
            self._settle(tx, files)
            self._count(tx, files)
        self._log(files)

    def _write_with_tx(self, files: list[Finished]) -> None:
        """With the user's function in the transaction: what one file spoils is undone alone."""
        while files:
            began = time.monotonic()
            done: list[Finished] = []
            with self._table.writing_with_user(self._now) as tx:
                for file in files:
                    done.append(file)
                    self._write_one(tx, file)
                    if time.monotonic() - began > _LONGEST_TRANSACTION:
                        break
                self._count(tx, done)
            self._log(done)
            files = files[len(done) :]

    def _write_one(self, tx: Transaction, file: Finished) -> None:
        self._look_again(tx, [file])
        if file.state == "known":
            return
        try:
            with tx.savepoint():
                file.answer = self._answer(file.found, tx.connection)
                if isinstance(file.answer, Exception):
                    raise file.answer
                self._settle(tx, [file])
                if file.state in ("changed", "settling"):
                    raise _NotYet
        except _NotYet:  # what row() wrote is undone, too
            return
        except Exception as error:
            self._table.raise_if_transient(error)
            file.answer = error
            self._settle(tx, [file])

    # -- what the user's function says -----------------------------------------------------------

    def _answer(self, found: Found, tx: Any) -> Any:
        """What the user's function says, checked; an exception is an answer, too."""
        try:
            answer = self._ingest.call_row(found.path, tx)
            return answer if answer is None or answer is False else self._values(found, answer)
        except Exception as error:
            return error

    def _values(self, found: Found, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, Mapping):
            raise TypeError(
                f"row() returned {answer!r}: it must be a dict of columns, None (not yet) or False (never)"
            )
        path = self._folder.written(found.path)
        values: dict[str, Any] = {self._table.paths[0]: path}
        for column, value in answer.items():
            self._table.need("row", column)
            is_path = column in self._table.paths and value is not None
            given = self._folder.given(value) if is_path else self._plain(value)
            if column == self._table.paths[0] and given != path:
                raise ValueError(f"row() gave {column}={value!r}, but that is the file's own path: {path!r}")
            values[column] = given
        return values

    def _plain(self, value: Any) -> Any:
        """A value as every driver takes it; sqlite3's own adapters of times are deprecated."""
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, Mapping):
            return json.dumps(value)
        if self._table.dialect_name == "sqlite":
            if isinstance(value, datetime):
                return value.isoformat(" ")
            if isinstance(value, date):
                return value.isoformat()
            if isinstance(value, (list, tuple)):
                return json.dumps(value)
        return value

    # -- inside the transaction ------------------------------------------------------------------

    def _look_again(self, tx: Session, files: Sequence[Finished]) -> None:
        """A row that was written meanwhile may name one of them."""
        known = self._table.known(tx, json_list(file.path for file in files))
        for file in files:
            file.state = "known" if file.path in known else ""

    def _settle(self, tx: Session, files: Sequence[Finished]) -> None:
        """Write the rows, and what is remembered of the files."""
        records: list[dict[str, Any]] = []
        rows: dict[tuple[str, ...], list[Finished]] = {}
        named: set[str] = set()  # by the rows that are written here, as one of their other files
        for file in files:
            if file.state == "known" or file.path in named:
                file.state = "known"
            elif not _is_still(self._opened, file.found):  # written to, or gone, since it was looked at
                file.state = "changed"
            elif isinstance(file.answer, Exception):
                records.append(self._failed(file))
            elif isinstance(file.answer, dict):
                file.others = self._others(file.answer)
                if any(self._settling.is_busy(one, self._moment) for one in file.others):
                    file.state = "settling"
                    continue
                rows.setdefault(tuple(file.answer), []).append(file)
                named.update(file.answer[one] for one in self._table.paths[1:] if file.answer.get(one))
            else:
                file.state = "waiting" if file.answer is None else "never"
                before = file.record
                if before is None or before.state != file.state or not before.is_of(file.found):
                    records.append(self._record(file.found, file.state))
        for columns, some in rows.items():
            insert = tx.using({"insert": self._table.insert_statement(columns)})
            values = [
                {f"v{place}": value for place, value in enumerate(file.answer.values())} for file in some
            ]
            for file, count in zip(some, insert.each("insert", values), strict=True):
                file.state = "ingested" if count else "known"  # known: another ingest was faster
                records += self._ingested(file) if count else []
        if records:
            tx.each("put_record", records)

    def _failed(self, file: Finished) -> dict[str, Any]:
        file.state, file.error = "failed", _one_line(file.answer)
        failures = 1 + (file.record.failures if file.record and file.record.state == "failed" else 0)
        run_at = self._moment + min(_RETRY_FIRST * 2.0 ** (failures - 1), _RETRY_MOST)
        return self._record(file.found, "failed", error=file.error, failures=failures, run_at=run_at)

    def _ingested(self, file: Finished) -> list[dict[str, Any]]:
        """How the files of the row are now: one that has changed when it is to be deleted will be kept."""
        finished = [one for one in file.others if self._settling.is_old_enough(one, self._moment)]
        return [self._record(one, "ingested") for one in (file.found, *finished)]

    def _others(self, values: Mapping[str, Any]) -> list[Found]:
        """The row's other files, as far as they are there."""
        found: list[Found] = []
        for column in self._table.paths[1:]:
            if values.get(column) is not None:
                with suppress(FileRefused):
                    other = self._opened.look(self._folder.read(values[column]))
                    found += [] if other is None else [other]
        return found

    def _record(self, found: Found, state: str, **more: Any) -> dict[str, Any]:
        return self._table.file_record(self._folder.written(found.path), state, found, **more)

    def _count(self, tx: Session, files: Sequence[Finished]) -> None:
        sizes = [file.found.size for file in files if file.state == "ingested"]
        if sizes:
            done = {"kind": "ingest", "name": self._ingest.name, "more": len(sizes), "bytes": sum(sizes)}
            tx.run("add_to_service", **done)

    def _log(self, files: Sequence[Finished]) -> None:
        for file in files:
            if file.state == "ingested":
                log.debug("%s: %s has its row", self._ingest.title, file.found.path)
            elif file.state == "failed" and (file.record is None or file.record.error != file.error):
                said = "%s: %s has no row yet, and is tried again later: %s"
                log.error(said, self._ingest.title, file.found.path, file.error)


def _state_from_record(file: Finished, moment: float, rescan: bool) -> str:
    """What is known without asking the user's function; empty if it has to be asked."""
    known = file.record
    if known is None:
        return ""
    if known.state == "never":
        return "never"
    if not known.is_of(file.found):
        return ""
    if known.state == "waiting":
        return "" if rescan else "waiting"
    # A longer pause than there is means that the clock was moved back.
    left = 0.0 if known.run_at is None else known.run_at - moment
    return "later" if 0 < left <= _RETRY_MOST else ""


def _is_still(opened: OpenFolder, found: Found) -> bool:
    try:
        seen = opened.look(found.path)
    except FileRefused:
        return False
    return seen is not None and seen.is_same(found)


def _one_line(error: Exception) -> str:
    """The line of an error that names it, fit for any database."""
    return storable(headline(describe(error)) or type(error).__name__)[:_LONGEST_ERROR]
