"""A task's own transaction in SQLite: it begins with its first statement, and rowlock commits it.

The write lock is held from that statement to the commit, so everybody else waits for it.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rowlock.stores.sql.user_connection import Answer, OwnTransaction
from rowlock.stores.sql.user_connection_kinds import Sqlite
from rowlock.stores.sqlite.connections import Connection

if TYPE_CHECKING:
    from rowlock.stores.sqlite.database import SqliteDatabase

log = logging.getLogger("rowlock.sqlite")

_LOCK_TIMEOUT_SECONDS, _LOCK_RETRY_SECONDS = 60.0, 0.01  # seconds
_LONG = 1.0  # seconds with the write lock in hand that are worth a line
_NOT_YOURS = (
    "rowlock commits this transaction after the task has returned; raise an exception to undo everything"
)


class TaskConnection(Connection):
    """A connection that takes the write lock with its first statement, and is committed by rowlock alone."""

    began: float | None = None
    revoked = False

    def begin(self) -> None:
        """Take the write lock, unless it is held already."""
        self._refuse_if_revoked()
        if not self.in_transaction:
            self._take_lock()
            self.began = time.monotonic()
            self._refuse_if_revoked()  # it was between these lines, if what it had written before is gone

    def _refuse_if_revoked(self) -> None:
        if self.revoked:
            raise sqlite3.OperationalError("this run was given up, and its transaction with it")

    def _take_lock(self) -> None:
        """Wait for the write lock, and longer than the store does: the task has its work behind it.

        SQLite's waiting is not fair. With eight writers on a slow disk one came too late for 5 s, and its job
        was charged an attempt for that.
        """
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while True:
            try:
                sqlite3.Cursor(self).execute("BEGIN IMMEDIATE")  # `execute` of Python 3.10 calls our `cursor`
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or self.revoked or time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_RETRY_SECONDS)
            else:
                return

    def execute(self, *given: Any) -> sqlite3.Cursor:
        self.begin()
        return super().execute(*given)

    def executemany(self, *given: Any) -> sqlite3.Cursor:
        self.begin()
        return super().executemany(*given)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        raise sqlite3.ProgrammingError("executescript commits on its own: use execute for each statement")

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        self.begin()
        return super().cursor(factory)

    def commit(self) -> None:
        raise sqlite3.ProgrammingError(_NOT_YOURS)

    def rollback(self) -> None:
        raise sqlite3.ProgrammingError(_NOT_YOURS)

    def __exit__(self, *_: object) -> Any:
        return False  # sqlite3's own `with` would commit


class SqliteTransaction(OwnTransaction, Sqlite):
    """The connection in the hands of one task."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.connection = database.connections.lend(TaskConnection)
        super().__init__(self.connection)

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        """Run a statement of rowlock's own, in the task's transaction."""
        self.connection.begin()
        return super().run(sql, values)

    def commit(self) -> None:
        """Make it durable; a commit that fails is undone."""
        if self.connection.began is not None:  # somebody has executed something
            with self._database.explaining():
                self._end("COMMIT")

    def close(self) -> None:
        """Undo what is not committed, and close the connection."""
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self._end("ROLLBACK")
        self._database.connections.take_back(self.connection)

    def revoke(self) -> None:
        """Let go of the write lock under the hands of a task that does not stop; safe from another thread."""
        self.connection.revoked = True
        self.connection.interrupt()
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self._end("ROLLBACK")

    def _end(self, how: str) -> None:
        sqlite3.Cursor(self.connection).execute(how)
        held = time.monotonic() - (self.connection.began or time.monotonic())
        if held > _LONG:
            log.warning(
                "a task held the write lock of %s for %.1f s and others waited: compute first, then write",
                self._database.path,
                held,
            )
