"""A task's own transaction in DuckDB: it begins with its first statement, and rowlock commits it.

Nobody waits for it: if another transaction changes the same rows meanwhile, one of the two is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rowlock.stores.sql.user_connection import Answer, OwnTransaction
from rowlock.stores.sql.user_connection_kinds import Duckdb

if TYPE_CHECKING:
    import duckdb

_NOT_YOURS = (
    "rowlock commits this transaction after the task has returned; raise an exception to undo everything"
)
_ENDS_IT = re.compile(r"\s*(begin|start\s+transaction|commit|end|rollback|abort)\b", re.IGNORECASE)


class TaskConnection:
    """A DuckDB connection in whose transaction a task writes; rowlock alone commits it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._began = False
        self.revoked = False

    def begin_now(self) -> None:
        """Begin, unless it has begun already."""
        if self.revoked:
            raise RuntimeError("this run was given up, and its transaction with it")
        if not self._began:
            self._connection.execute("BEGIN")
            self._began = True

    def execute(self, query: Any, *given: Any, **named: Any) -> TaskConnection:
        """Run one statement; its rows are fetched from what it returns."""
        if isinstance(query, str) and _ENDS_IT.match(query):
            raise RuntimeError(_NOT_YOURS)
        self.begin_now()
        self._connection.execute(query, *given, **named)
        return self

    def executemany(self, query: Any, *given: Any, **named: Any) -> TaskConnection:
        """Run one statement for each set of values."""
        self.begin_now()
        self._connection.executemany(query, *given, **named)
        return self

    def cursor(self) -> TaskConnection:
        """The same: a cursor of DuckDB's would be a connection with a transaction of its own."""
        return self

    def begin(self) -> None:
        """Refused: the transaction is rowlock's."""
        raise RuntimeError(_NOT_YOURS)

    commit = rollback = close = begin

    def __enter__(self) -> TaskConnection:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        self.begin_now()
        return getattr(self._connection, name)


class DuckdbTransaction(OwnTransaction, Duckdb):
    """The connection in the hands of one task."""

    def __init__(
        self,
        driver: duckdb.DuckDBPyConnection,
        explain: Callable[[Exception], Exception],
        closed: Callable[[], None],
        committed: Callable[[], None],
    ) -> None:
        super().__init__(driver)
        self._explain = explain
        self._closed = closed
        self._committed = committed
        self.connection = TaskConnection(driver)

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        """Run a statement of rowlock's own, in the task's transaction."""
        self.connection.begin_now()
        return super().run(sql, values)

    def commit(self) -> None:
        """Make it durable; a commit that fails is undone."""
        try:
            self._given.execute("COMMIT")
        except Exception as error:
            raise self._explain(error) from error
        self._committed()

    def close(self) -> None:
        """Undo what is not committed, and close the connection."""
        with suppress(Exception):
            self._given.execute("ROLLBACK")
        with suppress(Exception):
            self._given.close()
        self._closed()

    def revoke(self) -> None:
        """Undo it under the hands of a task that does not stop; safe from another thread."""
        self.connection.revoked = True
        with suppress(Exception):
            self._given.interrupt()
            self._given.execute("ROLLBACK")
