"""A task's own transaction in PostgreSQL: a connection of the store that nobody but rowlock commits.

Its statements are the user's: they may take as long as the task may.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from rowlock.stores.borrowed import Borrowed, Psycopg
from rowlock.stores.postgres.connections import Connection, Link

if TYPE_CHECKING:
    from rowlock.stores.postgres.connections import Connections

_FOR_EVER = 10.0 * 365 * 86_400


class PostgresTransaction:
    """The connection in the hands of one task."""

    def __init__(
        self, connections: Connections, commit: Callable[[Link, str], None], timeout: float | None
    ) -> None:
        self._connections = connections
        self._commit = commit
        self._link = connections.borrow()
        self.connection: Connection = self._link.connection
        self.borrowed: Borrowed = Psycopg(self.connection)
        self._patience = self.connection.patience
        try:
            self._number = self._link.begin(connections.begin_task(timeout))
        except BaseException:
            connections.give_back(self._link)
            raise
        self.connection.patience = _FOR_EVER if timeout is None else timeout + self._patience
        self.connection.guarded = True

    def commit(self) -> None:
        """Make it durable; if the answer is lost, look up how it ended."""
        self.connection.guarded = False
        self._commit(self._link, self._number)

    def close(self) -> None:
        """Undo what is not committed, and take the connection back."""
        self.connection.guarded = False
        self.connection.patience = self._patience
        with suppress(psycopg.Error):
            if not self.connection.closed and self.connection.info.transaction_status:
                self._link.cursor.execute("ROLLBACK")
        self._connections.give_back(self._link)
