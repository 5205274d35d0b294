"""A task's own transaction in PostgreSQL: a connection of the store that nobody but rowlock commits.

Its statements may take as long as the task may. The connection is opened for it and closed after it: what the
task did to the session, and what it still runs there, ends with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowlock.stores.sql.user_connection import OwnTransaction
from rowlock.stores.sql.user_connection_kinds import Psycopg

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase

_FOR_EVER = 10.0 * 365 * 86_400


class PostgresTransaction(OwnTransaction, Psycopg):
    """The connection in the hands of one task."""

    def __init__(self, database: PostgresDatabase, timeout: float | None) -> None:
        self._database = database
        self.connection = database.connect()
        super().__init__(self.connection)
        try:
            self._stamp = self.connection.begin(database.connections.begin_task(timeout))
        except BaseException:
            self.connection.close()
            raise
        self.connection.answer_timeout = (
            _FOR_EVER if timeout is None else timeout + self.connection.answer_timeout
        )
        self.connection.guarded = True

    def commit(self) -> None:
        """Make it durable; if the answer is lost, look up how it ended."""
        self.connection.guarded = False
        with self._database.explaining():
            self._database.answers.commit(self.connection, self._stamp, self)

    def close(self) -> None:
        """Close the connection, which undoes what is not committed."""
        self.connection.close()

    def revoke(self) -> None:
        """Take it away from a task that does not stop.

        The server is told, too: it would not notice before its statement has ended, and keep the locks.
        """
        self.connection.stop()
        self.connection.interrupt()
