"""The user's table as ingest and janitor need it: described, checked, and the statements written for it.

The only module of this room that knows what is inside the store and the consumers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

from rowlock.codec import json_text
from rowlock.consumers import names
from rowlock.consumers.described import DescribedTable, real_name
from rowlock.consumers.dialects import DIALECTS
from rowlock.consumers.row import Row
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import UserSession

__all__ = ["App", "FileTable", "Row", "Session", "Transaction", "json_list", "own_files", "path_columns"]

_MARK = re.compile(r"«(\w+)»")
_PACKAGE = "rowlock.files"
_STATEMENT_TIMEOUT = 300.0  # seconds for a statement of a user's function


class App(Protocol):
    """What this room needs of an app."""

    @property
    def store(self) -> Store:
        """The store at the app's URL."""
        ...

    @property
    def consumers(self) -> Mapping[str, Any]:
        """The registered consumers by name."""
        ...

    @property
    def ingests(self) -> Mapping[str, Any]:
        """The declared ingests by name."""
        ...

    @property
    def janitors(self) -> Mapping[str, Any]:
        """The declared janitors by name."""
        ...

    def consumer_source(self, name: str) -> Any:
        """A consumer with its table."""
        ...

    def wake(self, table: str) -> None:
        """Tell whoever waits for rows of this table."""
        ...


class Transaction:
    """One durable transaction: named statements, and the driver's own connection for the user's functions."""

    def __init__(self, session: Session, connection: Any, borrowed: UserConnection | None) -> None:
        self.session = session
        self.connection = connection
        self._borrowed = borrowed

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that is undone alone if it raises."""
        assert self._borrowed is not None
        self._borrowed.run("SAVEPOINT rowlock_file", {})
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the connection is gone: so is the savepoint
                self._borrowed.run("ROLLBACK TO SAVEPOINT rowlock_file", {})
                self._borrowed.run("RELEASE SAVEPOINT rowlock_file", {})
            raise
        self._borrowed.run("RELEASE SAVEPOINT rowlock_file", {})

    def plain_rows(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Rows as the user's driver gives them to anybody."""
        assert self._borrowed is not None
        return self._borrowed.run(statement, values).rows


class FileTable:
    """A table whose rows name files, and the statements that one ingest or janitor runs on it."""

    def __init__(self, store: Store, owner: str, table: str, paths: Sequence[str]) -> None:
        self._database = store.database
        self._owner = owner  # for messages: "ingest 'microphones'"
        self.parts = names.table(table)
        self.name = ".".join(self.parts)
        self.quoted = ".".join(map(names.quoted, self.parts))
        self.paths = tuple(paths)
        self.dialect_name = self._database.dialect
        if self.dialect_name not in ("sqlite", "postgresql"):
            raise ConfigurationError(f"{owner}: files are for SQLite and PostgreSQL, not {self.dialect_name}")
        self._dialect = DIALECTS[self.dialect_name]
        self.statements = Statements({})
        store.open()
        self._describe()
        for column in self.paths:
            self.need("path", column)

    # -- its columns -----------------------------------------------------------------------------

    def _describe(self) -> None:
        found = DescribedTable(self._database, self.parts)
        if not found.columns:
            raise ConfigurationError(
                f"{self._owner}: there is no table {self.name} in this database; create it first"
            )
        self.source = self.real_name(self.parts)
        self.types = found.types
        self.primary_key, self.unique = found.primary_key, found.unique

    def real_name(self, parts: Sequence[str]) -> str:
        """The one name of a table in this database, however it is spelled; as it is if there is none."""
        return real_name(self._database, parts)

    def need(self, what: str, column: str) -> str:
        """The column's name; raises if the table has none of it."""
        names.column(what, column)
        if column not in self.types:
            raise ConfigurationError(
                f"{self._owner}: {what}={column!r}, but {self.name} has no such column; it has: "
                f"{', '.join(self.types)}"
            )
        return column

    @property
    def lacks_constraint(self) -> bool:
        """Whether two rows could name the same file."""
        return self.paths[0] not in self.unique

    def check_constraint(self) -> None:
        """Raise unless one row per file is certain."""
        if self.lacks_constraint:
            raise ConfigurationError(
                f"{self._owner}: {self.name}.{self.paths[0]} has no unique constraint of its own, so that "
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
                    f"{self._owner}: {name} cannot be created on {self.name}: {error}"
                ) from error
            made.append(name)
        self._describe()
        return made

    # -- statements ------------------------------------------------------------------------------

    def escaped(self, text: str) -> str:
        """SQL of the user's: a percent sign means something to some drivers, wherever it stands."""
        return text.replace("%", self._dialect.percent)

    def insert_statement(self, columns: Sequence[str]) -> str:
        """What writes a row with these columns, bound as :v0, :v1, ..., unless its file has one."""
        listed = ", ".join(map(names.quoted, columns))
        values = ", ".join(self._dialect.parameter.format(f"v{place}") for place in range(len(columns)))
        first = names.quoted(self.paths[0])
        return f"INSERT INTO {self.quoted} ({listed}) VALUES ({values}) ON CONFLICT ({first}) DO NOTHING"  # noqa: S608 - quoted names

    def load(self, file: str, words: Mapping[str, str], theirs: Mapping[str, str]) -> None:
        """Load the statements of this file for this table; `theirs` is the user's SQL for each «name»."""
        sources = ("shared.sql", f"{self.dialect_name}.sql", file)
        written = self._database.statements(*((_PACKAGE, source) for source in sources), words=words)
        own = {"table": self.quoted, "t": names.quoted(self.parts[-1]), **theirs}

        def filled(text: str) -> str:
            while _MARK.search(text):
                text = _MARK.sub(lambda match: own[match[1]], text)
            return text

        self.statements = Statements({name: filled(text) for name, text in written.items()})

    def stamp(self, column: str) -> tuple[str, str, str]:
        """For a time column: what writes now into it, whether it is older than :age, its Unix seconds."""
        held, quoted = self._dialect.column_time(self.types[column]), names.quoted(column)
        return held.now, held.older(quoted), held.seconds.replace("{0}", quoted)

    # -- transactions ----------------------------------------------------------------------------

    @contextmanager
    def reading(self, now: float | None = None) -> Iterator[Session]:
        """A short read."""
        with self._database.read(now) as session:
            yield session.using(self.statements)

    @contextmanager
    def writing(self, now: float | None = None, with_connection: bool = False) -> Iterator[Transaction]:
        """A transaction that commits durably when the block ends; `with_connection` for a user's function."""
        if not with_connection:
            with self._database.write(now) as session:
                yield Transaction(session.using(self.statements), None, None)
            return
        own = self._database.transaction(_STATEMENT_TIMEOUT)
        try:
            session = cast("UserSession", self._database.session_on(own))
            if now is not None:
                session = UserSession(own, self.statements, {**session._always, "now": now})
            try:
                yield Transaction(session.using(self.statements), own.connection, own)
            except Exception as error:
                if (explained := self._database.explained(error)) is None:
                    raise
                raise explained from error
            own.commit()
        finally:
            own.close()

    def raise_if_transient(self, error: Exception) -> None:
        """Raise a driver's error as the store's own if it says that the server is lost or busy.

        Any other is of the user's function or table, and stays in the driver's words: the store's are about
        the queue's own tables.
        """
        explained = self._database.explained(error) or error
        if isinstance(explained, TRANSIENT):
            raise explained from error


def path_columns(value: Any) -> tuple[str, ...]:
    """`path=` as a list of columns; the first identifies the row."""
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not found or len(set(found)) < len(found):
        raise ConfigurationError(f"path={value!r}: must be a column's name, or a list of different ones")
    return tuple(names.column("path", one) for one in found)


def own_files(store: Store) -> list[str]:
    """The files of the queue's own database: never ingested, and never deleted."""
    connections = getattr(store.database, "connections", None)
    path = getattr(connections, "path", None) if store.database.dialect == "sqlite" else None
    return [] if path is None else [f"{path}{end}" for end in ("", "-wal", "-shm", "-journal", "-wake")]


def json_list(values: Iterable[Any]) -> str:
    """Keys or paths as one bound value."""
    return json_text(list(values))
