"""The user's table as one ingest sees it, and what rowlock's own remembers of its files.

Of a file with a row, how it was then; of one without, why it has none. Rows are written in `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rowlock.consumers import names
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.files.folder import Found
from rowlock.files.service import FileService
from rowlock.files.tables import App, FileTable, Session, json_list

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


class IngestTable(FileTable):
    """The user's table as one ingest sees it."""

    def __init__(self, app: App, ingest: FileService) -> None:
        super().__init__(app, ingest)
        self._common = {"source": self.source, "name": ingest.name}
        columns = {f"column_{place}": names.quoted(column) for place, column in enumerate(self.paths)}
        known = " UNION ".join(
            f"SELECT «{mark}» FROM «table» WHERE «{mark}» {{among_paths}}"  # noqa: S608 - no names in it yet
            for mark in columns
        )
        self.load("ingest.sql", {"known_rows": known}, columns)

    # -- one row per file ------------------------------------------------------------------------

    @property
    def lacks_constraint(self) -> bool:
        """Whether two rows could name the same file."""
        return self.paths[0] not in self.unique

    def check_constraint(self) -> None:
        """Raise unless one row per file is certain."""
        if self.lacks_constraint:
            raise ConfigurationError(
                f"{self._title}: {self.name}.{self.paths[0]} has no unique constraint of its own, so that "
                "one file could get two rows: create it with `rowlock ingest module:app --init`"
            )

    def create_constraints(self) -> list[str]:
        """Create the unique constraint, and an index for each other path column; returns their names."""
        made = []
        for column in self.paths:
            name = f"rowlock_{self.parts[-1]}_{column}"[:63]
            unique = "UNIQUE " if column == self.paths[0] else ""
            statement = (
                f"CREATE {unique}INDEX IF NOT EXISTS {names.quoted(name)} ON {self.quoted} "
                f"({names.quoted(column)})"
            )
            try:
                with self._database.write() as session:
                    session.using({"create": self.escaped(statement)}).run("create")
            except TRANSIENT:
                raise
            except StoreError as error:
                raise ConfigurationError(
                    f"{self._title}: {name} cannot be created on {self.name}: {error}"
                ) from error
            made.append(name)
        self._describe()
        return made

    def insert_statement(self, columns: Sequence[str]) -> str:
        """What writes a row with these columns, bound as :v0, :v1, ..., unless its file has one."""
        listed = ", ".join(map(names.quoted, columns))
        values = ", ".join(self._dialect.parameter.format(f"v{place}") for place in range(len(columns)))
        first = names.quoted(self.paths[0])
        return f"INSERT INTO {self.quoted} ({listed}) VALUES ({values}) ON CONFLICT ({first}) DO NOTHING"  # noqa: S608 - quoted names

    def known(self, db: Session, paths: str) -> set[str]:
        """Those of these paths that some row names, in whichever column."""
        return {row[0] for row in db.rows("known_paths", paths=paths)}

    # -- what is remembered ----------------------------------------------------------------------

    def without_row(self, db: Session, paths: str) -> dict[str, FileRecord]:
        """What is known of those of these paths that have no row."""
        rows = db.rows("file_records", paths=paths, source=self.source)
        return {path: FileRecord(*rest) for path, *rest in rows}

    def count_without_row(self) -> dict[str, int]:
        """How many files have no row, by state."""
        with self.reading() as db:
            return dict(db.rows("count_open", **self._common))

    def forget_vanished(self, there: set[str]) -> None:
        """Forget files without a row that are not among these."""
        with self.reading() as db:
            known = [row[0] for row in db.rows("open_records", **self._common)]
        gone = [path for path in known if path not in there]
        for start in range(0, len(gone), _FORGET_AT_ONCE):
            self._forget("forget_records", gone[start : start + _FORGET_AT_ONCE])

    def forget_deleted(self, is_there: Callable[[str], bool]) -> None:
        """Forget files that are not in the folder any more, and that no row names.

        While a row names one, a new file in its place must not be taken for the one that was ingested.
        """
        last = ""
        while True:
            with self.reading() as db:
                rows = db.rows("ingested_records", path=last, count=_FORGET_AT_ONCE, **self._common)
            paths = [row[0] for row in rows]
            gone = [path for path in paths if not is_there(path)]
            with self.reading() as db:
                named = self.known(db, json_list(gone))
            self._forget("forget_ingested", [path for path in gone if path not in named])
            if len(paths) < _FORGET_AT_ONCE:
                return
            last = paths[-1]

    def _forget(self, statement: str, paths: Sequence[str]) -> None:
        if paths:
            with self.writing() as tx:
                tx.run(statement, paths=json_list(paths), source=self.source)
