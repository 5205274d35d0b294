"""The rows that ingest writes: which files have one already, what the user's function says, one row per file.

Also remembers, in rowlock's own table, how each file was when it got its row, and why others have none.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import msgspec

from rowlock.consumers import names
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.files.folder import FileRefused, Found, OpenFolder
from rowlock.files.places import Places
from rowlock.files.settling import Settling
from rowlock.files.tables import FileTable, Statements, Store, Transaction
from rowlock.headline import describe, headline, storable
from rowlock.insights.filing import FileServiceRecord
from rowlock.job import utc

log = logging.getLogger("rowlock.ingest")

_RETRY_FIRST, _RETRY_MOST = 30.0, 3_600.0  # seconds until row() is asked again after an error
_LONGEST_ERROR = 2_000
_FORGET_AT_ONCE = 1_000
_LONG = 0.5  # seconds after which a transaction with the user's function in it ends
CallRow = Callable[[str, Any], "Mapping[str, Any] | bool | None"]


class Verdict(msgspec.Struct, frozen=True):
    """What became of a file: ingested, known, waiting, never, failed, later (its pause lasts), or changed."""

    state: str
    error: str = ""


class _Record(msgspec.Struct, frozen=True):
    """What rowlock's own table knows of a file without a row."""

    state: str
    size: int | None
    modified: int | None
    failures: int
    run_at: float | None
    error: str | None

    def is_of(self, found: Found) -> bool:
        return (self.size, self.modified) == (found.size, found.modified)


class RowTable:
    """The user's table as one ingest writes it."""

    def __init__(
        self,
        store: Store,
        name: str,
        table: str,
        columns: Sequence[str],
        places: Places,
        call: CallRow,
        wants_tx: bool,
        settling: Settling,
    ) -> None:
        self._name = name
        self._title = f"ingest {name!r}"
        self._table = FileTable(store, self._title, table, columns)
        for column in columns:
            self._table.need("path", column)
        self._places = places
        self._call = call
        self._wants_tx = wants_tx
        self._settling = settling
        known = " UNION ".join(
            f"SELECT «column_{place}» FROM «table» WHERE «column_{place}» {{among_paths}}"  # noqa: S608 - no name is in it yet
            for place in range(len(columns))
        )
        theirs = {f"column_{place}": names.quoted(column) for place, column in enumerate(columns)}
        self._statements = self._table.statements("ingest.sql", {"known_rows": known}, theirs)
        self._inserts: dict[tuple[str, ...], str] = {}

    # -- checking --------------------------------------------------------------------------------

    @property
    def lacks_constraint(self) -> bool:
        """Whether two rows could name the same file."""
        return self._table.lacks_constraint

    def check(self) -> None:
        """Raise unless one row per file is certain."""
        if self.lacks_constraint:
            raise ConfigurationError(
                f"{self._title}: {self._table.name}.{self._table.paths[0]} has no unique constraint of its "
                "own, so that one file could get two rows: create it with `rowlock ingest module:app --init`"
            )

    def create_constraints(self) -> list[str]:
        """Create what is missing; returns the names."""
        self._table.create_constraints()
        self.check()
        return list(self._table.constraints())

    # -- writing ---------------------------------------------------------------------------------

    def write(
        self, batch: Sequence[Found], opened: OpenFolder, now: float | None, rescan: bool
    ) -> list[tuple[Found, Verdict]]:
        """Write a row for each of these finished files that has none; says what became of each."""
        done: list[tuple[Found, Verdict]] = []
        asked: list[tuple[Found, _Record | None]] = []
        known, records = self._look(batch, now)
        moment = time.time() if now is None else now
        for found in batch:
            path = self._places.written(found.path)
            record = records.get(path)
            if path in known:
                done.append((found, Verdict("known")))
            elif record is not None and record.state == "never":
                done.append((found, Verdict("never")))
            elif record is not None and record.is_of(found) and not _is_due(record, moment, rescan):
                done.append((found, Verdict("waiting" if record.state == "waiting" else "later")))
            else:
                asked.append((found, record))
        write = self._write_each if self._wants_tx else self._write_all
        return done + (write(asked, opened, now) if asked else [])

    def _look(self, batch: Sequence[Found], now: float | None) -> tuple[set[str], dict[str, _Record]]:
        paths = _json(self._places.written(found.path) for found in batch)
        with self._table.reading(self._statements, now) as db:
            known = {row[0] for row in db.rows("known_paths", paths=paths)}
            rows = db.rows("file_records", paths=paths, source=self._table.name)
        return known, {path: _Record(*rest) for path, *rest in rows if rest[0] not in ("ingested", "deleted")}

    def _write_all(
        self, asked: list[tuple[Found, _Record | None]], opened: OpenFolder, now: float | None
    ) -> list[tuple[Found, Verdict]]:
        """All in one transaction; if one of them cannot be written, each in its own."""
        answers = [self._answer(found, None) for found, _ in asked]
        try:
            return self._write_answers(asked, answers, opened, now)
        except TRANSIENT:
            raise
        except StoreError as error:
            if len(asked) == 1:
                found, record = asked[0]
                return self._write_answers([(found, record)], [error], opened, now)
        return [
            done
            for one, answer in zip(asked, answers, strict=True)
            for done in self._write_alone(one, answer, opened, now)
        ]

    def _write_alone(
        self, one: tuple[Found, _Record | None], answer: Any, opened: OpenFolder, now: float | None
    ) -> list[tuple[Found, Verdict]]:
        try:
            return self._write_answers([one], [answer], opened, now)
        except TRANSIENT:
            raise
        except StoreError as error:
            return self._write_answers([one], [error], opened, now)

    def _write_answers(
        self,
        asked: list[tuple[Found, _Record | None]],
        answers: list[Any],
        opened: OpenFolder,
        now: float | None,
    ) -> list[tuple[Found, Verdict]]:
        with self._table.writing(self._statements, now) as tx:
            verdicts = self._settle(tx, asked, answers, opened, now)
            self._count(tx, asked, verdicts)
        self._tell(asked, verdicts)
        return [(found, verdict) for (found, _), verdict in zip(asked, verdicts, strict=True)]

    def _write_each(
        self, asked: list[tuple[Found, _Record | None]], opened: OpenFolder, now: float | None
    ) -> list[tuple[Found, Verdict]]:
        """With the user's function in the transaction: what one of them spoils is undone alone."""
        done: list[tuple[Found, Verdict]] = []
        while len(done) < len(asked):
            began = time.monotonic()
            part: list[tuple[Found, _Record | None]] = []
            verdicts: list[Verdict] = []
            with self._table.writing(self._statements, now, with_connection=True) as tx:
                for one in asked[len(done) :]:
                    part.append(one)
                    verdicts.append(self._write_one(tx, one, opened, now))
                    if time.monotonic() - began > _LONG:
                        break
                self._count(tx, part, verdicts)
            self._tell(part, verdicts)
            done += [(found, verdict) for (found, _), verdict in zip(part, verdicts, strict=True)]
        return done

    def _write_one(
        self, tx: Transaction, one: tuple[Found, _Record | None], opened: OpenFolder, now: float | None
    ) -> Verdict:
        try:
            with tx.savepoint():
                answer = self._answer(one[0], tx.connection)
                if isinstance(answer, Exception):
                    raise answer
                return self._settle(tx, [one], [answer], opened, now)[0]
        except Exception as error:
            explained = self._table.explained(error) or error
            if isinstance(explained, TRANSIENT):
                raise explained from error
            return self._settle(tx, [one], [explained], opened, now)[0]

    def _answer(self, found: Found, tx: Any) -> Any:
        """What the user's function says, checked; an exception is an answer, too."""
        try:
            answer = self._call(found.path, tx)
            if answer is None or answer is False:
                return answer
            return self._values(found, answer)
        except Exception as error:
            return error

    def _values(self, found: Found, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, Mapping):
            raise TypeError(
                f"row() returned {answer!r}: it must be a dict of columns, None (not yet) or False (never)"
            )
        path = self._places.written(found.path)
        values: dict[str, Any] = {self._table.paths[0]: path}
        for column, value in answer.items():
            self._table.need("row", column)
            given = self._places.given(value) if column in self._table.paths else self._plain(value)
            if column == self._table.paths[0] and given != path:
                raise ValueError(f"row() gave {column}={value!r}, but that is the file's own path: {path!r}")
            values[column] = given
        return values

    def _plain(self, value: Any) -> Any:
        """A value as every driver takes it; SQLite's own way with times is about to go."""
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

    def _settle(
        self,
        tx: Transaction,
        asked: Sequence[tuple[Found, _Record | None]],
        answers: Sequence[Any],
        opened: OpenFolder,
        now: float | None,
    ) -> list[Verdict]:
        """Write the rows and what is remembered of the files, inside the transaction."""
        verdicts: list[Verdict] = []
        records: list[dict[str, Any]] = []
        rows: dict[tuple[str, ...], list[tuple[int, dict[str, Any]]]] = {}
        for place, ((found, record), answer) in enumerate(zip(asked, answers, strict=True)):
            if not _is_still(opened, found):  # written to, or gone, since it was looked at
                verdicts.append(Verdict("changed"))
            elif isinstance(answer, Exception):
                error = _shown(answer)
                failures = (record.failures if record is not None and record.state == "failed" else 0) + 1
                wait = min(_RETRY_FIRST * 2.0 ** (failures - 1), _RETRY_MOST)
                moment = time.time() if now is None else now
                records.append(self._record(found, "failed", error, failures, moment + wait))
                verdicts.append(Verdict("failed", error))
            elif answer is None or answer is False:
                state = "waiting" if answer is None else "never"
                if record is None or record.state != state or not record.is_of(found):
                    records.append(self._record(found, state))
                verdicts.append(Verdict(state))
            else:
                rows.setdefault(tuple(answer), []).append((place, answer))
                verdicts.append(Verdict("ingested"))
        for columns, chosen in rows.items():
            statement = self._insert(columns)
            values = [{f"v{number}": value for number, value in enumerate(row.values())} for _, row in chosen]
            written = tx.session.using(Statements({"insert": statement})).count_each("insert", values)
            for (place, row), count in zip(chosen, written, strict=True):
                if count:
                    records += self._ingested(asked[place][0], row, opened, now)
                else:
                    verdicts[place] = Verdict("known")  # another ingest was faster
        if records:
            tx.session.each("put_record", records)
        return verdicts

    def _ingested(
        self, found: Found, row: Mapping[str, Any], opened: OpenFolder, now: float | None
    ) -> list[dict[str, Any]]:
        """How the files of the row are now: one that has changed when it is to be deleted will be kept."""
        records = [self._record(found, "ingested")]
        for column in self._table.paths[1:]:
            if (text := row.get(column)) is None:
                continue
            try:
                other = opened.look(self._places.read(text))
            except FileRefused:
                continue
            moment = time.time() if now is None else now
            if other is not None and self._settling.is_old_enough(other, moment):
                records.append(self._record(other, "ingested"))
        return records

    def _record(
        self,
        found: Found,
        state: str,
        error: str | None = None,
        failures: int = 0,
        run_at: float | None = None,
    ) -> dict[str, Any]:
        return {
            "source": self._table.name,
            "path": self._places.written(found.path),
            "state": state,
            "name": self._name,
            "size": found.size,
            "modified": found.modified,
            "failures": failures,
            "run_at": run_at,
            "error": error,
        }

    def _insert(self, columns: tuple[str, ...]) -> str:
        if columns not in self._inserts:
            listed = ", ".join(names.quoted(column) for column in columns)
            values = ", ".join(self._table.parameter(f"v{number}") for number in range(len(columns)))
            first = names.quoted(self._table.paths[0])
            self._inserts[columns] = (
                f"INSERT INTO {self._table.quoted} ({listed}) VALUES ({values}) "  # noqa: S608 - quoted names
                f"ON CONFLICT ({first}) DO NOTHING"
            )
        return self._inserts[columns]

    def _count(
        self, tx: Transaction, asked: Sequence[tuple[Found, _Record | None]], verdicts: Sequence[Verdict]
    ) -> None:
        sizes = [
            found.size
            for (found, _), verdict in zip(asked, verdicts, strict=True)
            if verdict.state == "ingested"
        ]
        if sizes:
            tx.session.run(
                "add_to_service", kind="ingest", name=self._name, more=len(sizes), bytes=sum(sizes)
            )

    def _tell(self, asked: Sequence[tuple[Found, _Record | None]], verdicts: Sequence[Verdict]) -> None:
        for (found, record), verdict in zip(asked, verdicts, strict=True):
            if verdict.state == "ingested":
                log.debug("%s: %s has its row", self._title, found.path)
            elif verdict.state == "failed" and (record is None or record.error != verdict.error):
                log.error(
                    "%s: %s has no row yet, and is tried again later: %s",
                    self._title,
                    found.path,
                    verdict.error,
                )

    # -- what is remembered ----------------------------------------------------------------------

    def forget_vanished(self, there: set[str]) -> None:
        """Forget what was remembered of files without a row that are gone, or have a row by now."""
        with self._table.reading(self._statements) as db:
            kept = db.rows("open_records", name=self._name, source=self._table.name)
        gone = [path for path, *_ in kept if path not in there]
        for start in range(0, len(gone), _FORGET_AT_ONCE):
            with self._table.writing(self._statements) as tx:
                paths = _json(gone[start : start + _FORGET_AT_ONCE])
                tx.session.run("forget_records", paths=paths, source=self._table.name)

    def forget_gone(self, opened: OpenFolder) -> None:
        """Forget how files were that are not there any more: nobody can delete them by mistake."""
        last = ""
        while True:
            with self._table.reading(self._statements) as db:
                found = db.rows(
                    "ingested_records",
                    source=self._table.name,
                    name=self._name,
                    path=last,
                    count=_FORGET_AT_ONCE,
                )
            gone = [path for (path,) in found if not self._is_there(opened, path)]
            if gone:
                with self._table.writing(self._statements) as tx:
                    tx.session.run("forget_ingested", paths=_json(gone), source=self._table.name)
            if len(found) < _FORGET_AT_ONCE:
                return
            last = found[-1][0]

    def _is_there(self, opened: OpenFolder, path: str) -> bool:
        try:
            return opened.look(self._places.read(path)) is not None
        except FileRefused:
            return True

    def ran(self, refused: int, mounted: bool) -> None:
        """Note that a scan is done."""
        with self._table.writing(self._statements) as tx:
            tx.session.run(
                "service_ran",
                kind="ingest",
                name=self._name,
                refused=refused,
                mounted=int(mounted),
                error=None,
            )

    @property
    def was_mounted(self) -> bool:
        """Whether the folder was a disk of its own when it was last scanned."""
        with self._table.reading(self._statements) as db:
            known = db.row("service", kind="ingest", name=self._name)
        return known is not None and bool(known[3])

    def record(self) -> FileServiceRecord:
        """How it stands."""
        with self._table.reading(self._statements) as db:
            done, size, refused, _, last, error = db.row("service", kind="ingest", name=self._name) or (
                *(0, 0, 0, 0),
                *(None, None),
            )
            counts: dict[str, int] = dict(db.rows("count_open", name=self._name, source=self._table.name))
        return FileServiceRecord(
            kind="ingest",
            name=self._name,
            table=self._table.name,
            folder="",
            done=done,
            bytes=size,
            waiting=counts.get("waiting", 0),
            failed=counts.get("failed", 0),
            refused=refused,
            last_run=None if last is None else utc(last),
            error=error,
        )


def _is_due(record: _Record, moment: float, rescan: bool) -> bool:
    if record.state == "waiting":
        return rescan
    return record.run_at is None or record.run_at <= moment


def _is_still(opened: OpenFolder, found: Found) -> bool:
    try:
        seen = opened.look(found.path)
    except FileRefused:
        return False
    return seen is not None and seen.is_same(found)


def _shown(error: Exception) -> str:
    """The line of an error that names it, fit for any database."""
    return storable(headline(describe(error)) or type(error).__name__)[:_LONGEST_ERROR]


def _json(value: Iterable[str]) -> str:
    return msgspec.json.encode(list(value)).decode()
