"""The user's table as ingest and janitor need it: looked at once, checked, and the statements written for it.

The only module of this room that knows what is inside the store and the consumers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

from rowlock.consumers import names
from rowlock.consumers.row import Row
from rowlock.consumers.table import _NOTHING as _NO_CONSUMER  # for looks at catalogues alone
from rowlock.consumers.table import DIALECTS
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.stores.base import Store
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import SqlStore
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import SqlUserTransactions, UserSession

__all__ = [
    "App",
    "FileTable",
    "Row",
    "Session",
    "Statements",
    "Store",
    "Transaction",
    "own_files",
    "path_columns",
    "table_name",
]

_MARK = re.compile(r"«(\w+)»")
_PACKAGE = "rowlock.files"
_TIMEOUT = 300.0  # seconds for a statement of a user's function


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
    def janitors(self) -> Mapping[str, Any]:
        """The declared janitors by name."""
        ...

    def consumer_host(self, name: str) -> Any:
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
    """A table whose rows name files."""

    def __init__(self, store: Store, owner: str, table: str, paths: Sequence[str]) -> None:
        self._store = cast("SqlStore", store)
        self._owner = owner  # for messages: "ingest 'microphones'"
        self.parts = names.table(table)
        self.name = ".".join(self.parts)
        self.paths = tuple(paths)
        self.dialect_name: str = cast("Any", store)._dialect
        self._dialect = DIALECTS[self.dialect_name]
        self.types: dict[str, str] = {}
        self.unique: set[str] = set()
        self.primary: list[str] = []
        self._look()

    # -- looking ---------------------------------------------------------------------------------

    def _look(self) -> None:
        cast("Store", self._store).open()
        shared, own = (("rowlock.consumers", file) for file in ("shared.sql", f"{self.dialect_name}.sql"))
        look = self._store.statements(shared, own, words=_NO_CONSUMER)
        is_sqlite = self.dialect_name == "sqlite"
        asked = self.parts[-1] if is_sqlite else ".".join(map(names.quoted, self.parts))
        with self._store.reading() as session:
            db = session.using(look)
            if is_sqlite and len(self.parts) == 2:
                found = db.rows("table_columns_in", table=self.parts[1], schema=self.parts[0])
            else:
                found = db.rows("table_columns", table=asked)
            unique = {row[0] for row in db.rows("unique_columns", table=asked)}
        if not found:
            raise ConfigurationError(
                f"{self._owner}: there is no table {self.name} in this database; create it first"
            )
        self.types = {name: kind for name, kind, *_ in found}
        if is_sqlite:
            self.primary = [row[0] for row in found if row[2]]
        else:
            with self._store.reading() as session:
                own_look = self._store.statements((_PACKAGE, "catalogue.sql"), words={})
                self.primary = [row[0] for row in session.using(own_look).rows("primary_key", table=asked)]
        if len(self.primary) == 1:
            unique |= set(self.primary)
        self.unique = unique

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

    def constraints(self) -> dict[str, str]:
        """What creates the unique constraint, and an index for each other path column, by name."""
        table = self.parts[-1]
        made = {}
        for place, column in enumerate(self.paths):
            name = f"rowlock_{table}_{column}"[:63]
            unique = "UNIQUE " if place == 0 else ""
            made[name] = (
                f"CREATE {unique}INDEX IF NOT EXISTS {names.quoted(name)} ON {self.quoted} "
                f"({names.quoted(column)})"
            )
        return made

    def create_constraints(self) -> None:
        """Create them, unless they are there."""
        for name, statement in self.constraints().items():
            try:
                with self._store.writing() as session:
                    session.using(Statements({"create": self.escaped(statement)})).run("create")
            except TRANSIENT:
                raise
            except StoreError as error:
                raise ConfigurationError(
                    f"{self._owner}: {name} cannot be created on {self.name}: {error}"
                ) from error
        self._look()

    # -- statements ------------------------------------------------------------------------------

    @property
    def quoted(self) -> str:
        """The table's name in SQL."""
        return ".".join(map(names.quoted, self.parts))

    def escaped(self, text: str) -> str:
        """SQL of the user's: a percent sign means something to some drivers, wherever it stands."""
        return text.replace("%", "%%") if self._dialect.style == "pyformat" else text

    def parameter(self, name: str) -> str:
        """A bound value in the driver's own way."""
        return f"%({name})s" if self._dialect.style == "pyformat" else f":{name}"

    def statements(self, file: str, words: Mapping[str, str], theirs: Mapping[str, str]) -> Statements:
        """The statements of this file for this table; `theirs` is the user's SQL, put in for each «name»."""
        sources = ("shared.sql", f"{self.dialect_name}.sql", file)
        written = self._store.statements(*((_PACKAGE, source) for source in sources), words=words)
        own = {"table": self.quoted, "t": names.quoted(self.parts[-1]), **theirs}

        def filled(text: str) -> str:
            while _MARK.search(text):
                text = _MARK.sub(lambda match: own[match[1]], text)
            return text

        return Statements({name: filled(text) for name, text in written.items()})

    def stamp(self, column: str) -> tuple[str, str, str]:
        """For a time column: what writes now into it, whether it is older than :age, its Unix seconds."""
        kind, quoted = self.types[column], names.quoted(column)
        for fits, now, older, seconds in self._dialect.stamps:
            if fits(kind):
                return now, older.replace("{0}", quoted), seconds.replace("{0}", quoted)
        raise AssertionError(kind)

    # -- transactions ----------------------------------------------------------------------------

    @contextmanager
    def reading(self, statements: Mapping[str, str], now: float | None = None) -> Iterator[Session]:
        """A short read."""
        with self._store.reading(now) as session:
            yield session.using(statements)

    @contextmanager
    def writing(
        self, statements: Mapping[str, str], now: float | None = None, with_connection: bool = False
    ) -> Iterator[Transaction]:
        """A transaction that commits durably when the block ends; `with_connection` for a user's function."""
        if not with_connection:
            with self._store.writing(now) as session:
                yield Transaction(session.using(statements), None, None)
            return
        own = cast("Store", self._store).transaction(_TIMEOUT)
        try:
            session = cast("UserSession", cast("SqlUserTransactions", self._store).session_on(own.borrowed))
            if now is not None:
                session = UserSession(own.borrowed, statements, {**session._always, "now": now})
            with self._explained():
                yield Transaction(session.using(statements), own.connection, own.borrowed)
            own.commit()
        finally:
            own.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the driver raises, as the store's own errors: so that a lost server is known as one."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            told = self.explained(error)
            if told is None:
                raise
            raise told from error

    def explained(self, error: BaseException) -> StoreError | None:
        """A driver's error as the store's own, or None if it is something else."""
        explain = cast("Any", _EXPLAIN[self.dialect_name])(self._store)
        found = explain(error)
        return cast("StoreError | None", found)


def _sqlite(store: Any) -> Callable[[BaseException], StoreError | None]:
    import sqlite3

    return lambda error: store.explained(error) if isinstance(error, sqlite3.Error) else None


def _postgresql(store: Any) -> Callable[[BaseException], StoreError | None]:
    import psycopg

    from rowlock.stores.postgres.faults import explain

    return lambda error: explain(error, store.url) if isinstance(error, psycopg.Error) else None


_EXPLAIN = {"sqlite": _sqlite, "postgresql": _postgresql}


def path_columns(value: Any) -> tuple[str, ...]:
    """`path=` as a list of columns; the first identifies the row."""
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not found or len(set(found)) < len(found):
        raise ConfigurationError(f"path={value!r}: must be a column's name, or a list of different ones")
    return tuple(names.column("path", one) for one in found)


def own_files(store: Store) -> list[str]:
    """The files of the queue's own database: never ingested, and never deleted."""
    connections = getattr(store, "connections", None)
    path = getattr(connections, "path", None) if cast("Any", store)._dialect == "sqlite" else None
    return [] if path is None else [f"{path}{end}" for end in ("", "-wal", "-shm", "-journal", "-wake")]


def table_name(value: Any) -> str:
    """A table's name, checked."""
    return ".".join(names.table(value))
