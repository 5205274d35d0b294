"""apsw with the face of the `sqlite3` module, as far as rowlock's store needs it.

Put in the place of `sqlite3` before rowlock is imported, so that the store's own code runs on a file system
of the tests. Only in a process of its own: it is a second copy of SQLite, which drops the locks of the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apsw

VFS = ""  # the name of the file system that connections are opened on
REWRITE: Callable[[str], str] = str  # looks at each statement before it is run
PRAGMAS = ""  # what a new connection is told first; the store's own settings come after it

sqlite_version = apsw.sqlite_lib_version()
sqlite_version_info = tuple(int(part) for part in sqlite_version.split("."))
complete_statement = apsw.complete


class Error(Exception): ...


class DatabaseError(Error): ...


class OperationalError(DatabaseError): ...


class IntegrityError(DatabaseError): ...


class ProgrammingError(DatabaseError): ...


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except apsw.ConstraintError as error:
        raise IntegrityError(str(error)) from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise DatabaseError(str(error)) from error
    except (apsw.ConnectionClosedError, apsw.CursorClosedError, apsw.BindingsError) as error:
        raise ProgrammingError(str(error)) from error
    except apsw.Error as error:
        raise OperationalError(str(error)) from error


class Cursor:
    """A statement and its rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection.real
        self._real = self._connection.cursor()
        self.rowcount = -1
        self.lastrowid: int | None = None

    @property
    def description(self) -> Any:
        try:
            return self._real.get_description() or None
        except apsw.ExecutionCompleteError:
            return None

    def execute(self, sql: str, values: Any = ()) -> Cursor:
        with _translated():
            self._real.execute(REWRITE(sql), values)
            self._count()
        return self

    def executemany(self, sql: str, values: Any) -> Cursor:
        with _translated():
            self._real.executemany(REWRITE(sql), values)
            self._count()
        return self

    def _count(self) -> None:
        self.rowcount = self._connection.changes()
        self.lastrowid = self._connection.last_insert_rowid()

    def fetchone(self) -> Any:
        with _translated():
            return self._real.fetchone()

    def fetchall(self) -> list[Any]:
        with _translated():
            return list(self._real.fetchall())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    def close(self) -> None:
        self._real.close(force=True)


class Connection:
    """A connection in autocommit mode, as the store uses it."""

    isolation_level = None

    def __init__(self, database: str, timeout: float = 5.0, **_: Any) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        with _translated():
            self.real = apsw.Connection(database, flags=flags, vfs=VFS)
            self.real.set_busy_timeout(int(timeout * 1000))
            self.real.execute(PRAGMAS)

    @property
    def in_transaction(self) -> bool:
        return self.real.in_transaction

    def execute(self, sql: str, values: Any = ()) -> Cursor:
        return Cursor(self).execute(sql, values)

    def executemany(self, sql: str, values: Any) -> Cursor:
        return Cursor(self).executemany(sql, values)

    def close(self) -> None:
        with _translated():
            self.real.close(force=True)


def connect(database: str, *, factory: type[Connection] = Connection, **others: Any) -> Connection:
    """Open a connection of that kind."""
    return factory(database, **others)


def take_the_place_of_sqlite3() -> None:
    """From now on `import sqlite3` gives this module."""
    sys.modules["sqlite3"] = sys.modules[__name__]
