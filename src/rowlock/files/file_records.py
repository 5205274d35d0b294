"""What rowlock's own table remembers of files: how they were when they got their row, or why they have none.

The user's table is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rowlock.files.folder import FileRefused, Found, OpenFolder
from rowlock.files.places import Places
from rowlock.files.tables import FileTable, Session, json_list

_FORGET_AT_ONCE = 1_000


class FileRecord(msgspec.Struct, frozen=True):
    """What is remembered of a file without a row."""

    state: str  # waiting, never or failed
    size: int | None
    modified: int | None
    failures: int
    run_at: float | None  # when row() is asked again
    error: str | None

    def is_of(self, found: Found) -> bool:
        """Whether the file has not changed since."""
        return (self.size, self.modified) == (found.size, found.modified)


def record(
    source: str,
    service: str,
    path: str,
    state: str,
    found: Found | None = None,
    error: str | None = None,
    failures: int = 0,
    run_at: float | None = None,
) -> dict[str, Any]:
    """What `put_record` writes; `path` is as the user's table has it."""
    return {
        "source": source,
        "path": path,
        "state": state,
        "name": service,
        "size": None if found is None else found.size,
        "modified": None if found is None else found.modified,
        "failures": failures,
        "run_at": run_at,
        "error": error,
    }


class FileRecords:
    """The records of one ingest."""

    def __init__(self, table: FileTable, ingest: str, places: Places) -> None:
        self._table = table
        self._common = {"source": table.source, "name": ingest}
        self._places = places

    def without_row(self, db: Session, paths: str) -> dict[str, FileRecord]:
        """What is known of those of these paths that have no row."""
        rows = db.rows("file_records", paths=paths, source=self._table.source)
        return {path: FileRecord(*rest) for path, *rest in rows}

    def counts(self) -> dict[str, int]:
        """How many files have no row, by state."""
        with self._table.reading() as db:
            return dict(db.rows("count_open", **self._common))

    def forget_vanished(self, there: set[str]) -> None:
        """Forget files without a row that are not among these."""
        with self._table.reading() as db:
            known = [row[0] for row in db.rows("open_records", **self._common)]
        gone = [path for path in known if path not in there]
        for start in range(0, len(gone), _FORGET_AT_ONCE):
            self._forget("forget_records", gone[start : start + _FORGET_AT_ONCE])

    def forget_deleted(self, opened: OpenFolder) -> None:
        """Forget files that are not in the folder any more, and that no row names.

        While a row names one, a new file in its place must not be taken for the one that was ingested.
        """
        last = ""
        while True:
            with self._table.reading() as db:
                rows = db.rows("ingested_records", path=last, count=_FORGET_AT_ONCE, **self._common)
            paths = [row[0] for row in rows]
            gone = [path for path in paths if not self._is_there(opened, path)]
            with self._table.reading() as db:
                named = {row[0] for row in db.rows("known_paths", paths=json_list(gone))}
            self._forget("forget_ingested", [path for path in gone if path not in named])
            if len(paths) < _FORGET_AT_ONCE:
                return
            last = paths[-1]

    def _forget(self, statement: str, paths: Sequence[str]) -> None:
        if paths:
            with self._table.writing() as tx:
                tx.session.run(statement, paths=json_list(paths), source=self._table.source)

    def _is_there(self, opened: OpenFolder, path: str) -> bool:
        try:
            return opened.look(self._places.read(path)) is not None
        except FileRefused:
            return True
