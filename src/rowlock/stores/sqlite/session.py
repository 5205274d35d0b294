"""Named statements on one SQLite connection, and the durable transaction around them."""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rowlock.stores.sql.session import FileSession
from rowlock.stores.sqlite.dialect import STATEMENTS

if TYPE_CHECKING:
    from rowlock.stores.sqlite.database import SqliteDatabase

log = logging.getLogger("rowlock.sqlite")


class SqliteSession(FileSession):
    """Runs named statements on one connection."""

    def __init__(self, connection: sqlite3.Connection, now: float | None) -> None:
        super().__init__(STATEMENTS, now)
        self.connection = connection

    def execute(self, statement: str, values: dict[str, Any]) -> sqlite3.Cursor:
        values["now"] = self._now
        values["mono"] = self._mono
        return self.connection.execute(statement, values)

    def run(self, name: str, /, **values: Any) -> int:
        return self.execute(self._statements[name], values).rowcount

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        try:
            return self.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            # Only what writes nothing is run again. A text_factory for all statements would slow them down.
            if "decode to UTF-8" not in str(error) or not statement.lstrip().startswith("SELECT"):
                raise
        self.connection.text_factory = _text_or_bytes
        try:
            return self.execute(statement, values).fetchall()
        finally:
            self.connection.text_factory = str

    def row(self, name: str, /, **values: Any) -> Any:
        cursor = self.execute(self._statements[name], values)
        row = cursor.fetchone()
        cursor.close()  # an unfinished SELECT would hold its snapshot, and with it the WAL
        return row


def _text_or_bytes(value: bytes) -> str | bytes:
    """A user's text; as bytes if it is no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


class Writing:
    """A durable transaction as a `with` block; a class, because generators cost 8 us of 90 per enqueue."""

    __slots__ = ("_began", "_connection", "_database", "_now")

    def __init__(self, database: SqliteDatabase, now: float | None) -> None:
        self._database = database
        self._now = now

    def __enter__(self) -> SqliteSession:
        try:
            self._connection = connection = self._database.connections.borrow()
        except sqlite3.Error as error:  # a thread's first use opens one, and a bad disk may refuse that
            raise self._database.meaning(error) from error
        try:
            # A deferred transaction that turns from reading to writing fails at once, whatever the timeout.
            connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            if connection.uses == 1 and connection.in_transaction:  # interrupted after it had begun
                connection.execute("ROLLBACK")
            self._database.connections.give_back(connection)
            if isinstance(error, sqlite3.Error):
                raise self._database.meaning(error) from error
            raise
        self._began = time.monotonic()
        return SqliteSession(connection, self._now)  # its clock is read once the lock is held

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        connection, raised = self._connection, error
        try:
            if error is None:
                connection.execute("COMMIT")
        except BaseException as failed:
            error = failed
        if error is not None and connection.in_transaction:
            with suppress(sqlite3.Error):  # the first error is the one to tell
                connection.execute("ROLLBACK")
        try:
            if error is None:
                self._database.checkpoints.after_write(connection, time.monotonic() - self._began)
        except sqlite3.Error as late:  # what was written is committed: this must not look as if it were not
            log.warning("a checkpoint failed, the next one tries again: %s", self._database.meaning(late))
        finally:
            self._database.connections.give_back(connection)
        if isinstance(error, sqlite3.Error):
            raise self._database.meaning(error) from error
        if error is not None and error is not raised:
            raise error
