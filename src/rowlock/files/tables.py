"""The user's table as ingest and janitor need it: described, checked, and the statements written for it.

The only module of this room that knows what is inside the store and the consumers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from rowlock.codec import json_text
from rowlock.consumers import names
from rowlock.consumers.described import DescribedTable, real_name
from rowlock.consumers.dialects import DIALECTS
from rowlock.consumers.row import Row
from rowlock.errors import TRANSIENT, ConfigurationError
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import OwnTransaction
from rowlock.stores.sql.user_transaction import UserSession

if TYPE_CHECKING:
    from rowlock.files.folder import Found
    from rowlock.files.service import FileService

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


class Transaction(UserSession):
    """A durable transaction in which the user's functions write, too, on the driver's own connection."""

    def __init__(self, own: OwnTransaction, statements: Mapping[str, str], always: dict[str, Any]) -> None:
        super().__init__(own, statements, always)
        self.connection = own.connection

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that is undone alone if it raises."""
        self._user.run("SAVEPOINT rowlock_file", {})
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the connection is gone: so is the savepoint
                self._user.run("ROLLBACK TO SAVEPOINT rowlock_file", {})
                self._user.run("RELEASE SAVEPOINT rowlock_file", {})
            raise
        self._user.run("RELEASE SAVEPOINT rowlock_file", {})

    def plain_rows(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Rows as the user's driver gives them to anybody."""
        return self._user.run(self._statements[name], values).rows


class FileTable:
    """A table whose rows name files, and the statements that one ingest or janitor runs on it."""

    def __init__(self, app: App, service: FileService) -> None:
        self._app = app
        self._database = app.store.database
        self._service = service
        self._title = service.title
        self.name = service.table
        self.parts = names.table(service.table)
        self.quoted = ".".join(map(names.quoted, self.parts))
        self.paths = service.columns
        self.dialect_name = self._database.dialect
        if self.dialect_name not in ("sqlite", "postgresql"):
            raise ConfigurationError(
                f"{self._title}: files are for SQLite and PostgreSQL, not {self.dialect_name}"
            )
        self._dialect = DIALECTS[self.dialect_name]
        self.statements = Statements({})
        app.store.open()
        self._describe()
        for column in self.paths:
            self.need("path", column)

    # -- its columns -----------------------------------------------------------------------------

    def _describe(self) -> None:
        found = DescribedTable(self._database, self.parts)
        if not found.columns:
            raise ConfigurationError(
                f"{self._title}: there is no table {self.name} in this database; create it first"
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
                f"{self._title}: {what}={column!r}, but {self.name} has no such column; it has: "
                f"{', '.join(self.types)}"
            )
        return column

    # -- statements ------------------------------------------------------------------------------

    def escaped(self, text: str) -> str:
        """SQL of the user's: a percent sign means something to some drivers, wherever it stands."""
        return text.replace("%", self._dialect.percent)

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

    def file_record(self, path: str, state: str, found: Found | None = None, **more: Any) -> dict[str, Any]:
        """What `put_record` writes; `path` is as the user's table has it."""
        return {
            "source": self.source,
            "name": self._service.name,
            "path": path,
            "state": state,
            "size": None if found is None else found.size,
            "modified": None if found is None else found.modified,
            "failures": 0,
            "run_at": None,
            "error": None,
            **more,
        }

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
    def writing(self, now: float | None = None) -> Iterator[Session]:
        """A transaction that commits durably when the block ends."""
        with self._database.write(now) as session:
            yield session.using(self.statements)

    @contextmanager
    def writing_with_user(self, now: float | None = None) -> Iterator[Transaction]:
        """The same, on a connection that the user's functions are given, too."""
        own = self._database.transaction(_STATEMENT_TIMEOUT)
        try:
            always = cast("UserSession", self._database.session_on(own))._always
            with self._database.explaining():
                yield Transaction(own, self.statements, always if now is None else {**always, "now": now})
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
