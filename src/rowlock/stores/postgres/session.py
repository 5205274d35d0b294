"""Named statements on one connection: one by one, or in a transaction whose end is always known.

Errors of the driver leave these blocks as the store's own, with a sentence that says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from rowlock.stores.postgres.connections import Link
from rowlock.stores.postgres.faults import explain
from rowlock.stores.postgres.prepared import Row, Value, prepared
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase


class PostgresSession(Session):
    """Runs named statements on one connection."""

    def __init__(self, link: Link, queries: Mapping[str, str], now: float | None) -> None:
        self.link = link
        self._cursor = link.cursor
        self._queries = queries
        self._now = now

    @property
    def now(self) -> float:
        """The server's clock."""
        return float(self.row("clock")[0])

    def run(self, name: str, /, **values: Any) -> int:
        values["now"] = self._now
        changed: int = self._cursor.execute(self._queries[name], values, binary=True).rowcount
        return max(0, changed)

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        values["now"] = self._now
        rows: list[Any] = self._cursor.execute(self._queries[name], values, binary=True).fetchall()
        return rows

    def ask(self, statement: str, values: dict[str, Value]) -> list[Row]:
        """The rows of a statement that has no name of its own, because it was put together; as text."""
        values["now"] = self._now
        return prepared(statement).rows(self.link, values)

    def take(self, statement: str, /, **values: Any) -> list[Any]:
        values["now"] = self._now  # one statement chooses, locks, marks and returns
        rows: list[Any] = self._cursor.execute(statement, values, binary=True).fetchall()
        return rows

    def using(self, statements: Mapping[str, str]) -> PostgresSession:
        """The same transaction with other statements."""
        return PostgresSession(self.link, statements, self._now)

    def each(self, name: str, /, values: Sequence[dict[str, Any]]) -> None:
        if len(values) == 1:
            self.run(name, **values[0])
        elif values:
            self._cursor.executemany(self._queries[name], [{**one, "now": self._now} for one in values])

    def count_each(self, name: str, /, values: Sequence[dict[str, Any]]) -> list[int]:
        if len(values) < 2:
            return [self.run(name, **one) for one in values]
        # In a pipeline: all are sent before the first answer is read.
        self._cursor.executemany(
            self._queries[name], [{**one, "now": self._now} for one in values], returning=True
        )
        counts = [max(0, self._cursor.rowcount)]
        while self._cursor.nextset():
            counts.append(max(0, self._cursor.rowcount))
        return counts


class Reading:
    """Statements that commit one by one, as a `with` block; a class, as every job goes through it."""

    __slots__ = ("_database", "_link", "_now")

    def __init__(self, database: PostgresDatabase, now: float | None) -> None:
        self._database = database
        self._now = now

    def __enter__(self) -> PostgresSession:
        database = self._database
        try:
            self._link = database.connections.borrow()
        except psycopg.Error as error:
            raise explain(error, database.url) from error
        return PostgresSession(self._link, database.queries, self._now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._database.connections.give_back(
            self._link, clean=error is None and not self._database.address.pooled
        )
        if isinstance(error, psycopg.Error):
            raise explain(error, self._database.url) from error


class Limited(Reading):
    """The same behind a pooler: in a transaction, which is the only thing there that can carry limits."""

    __slots__ = ()

    def __enter__(self) -> PostgresSession:
        session = super().__enter__()
        try:
            self._link.cursor.execute(self._database.connections.limits_statement)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with suppress(psycopg.Error):  # it has only read
            if not self._link.connection.closed:
                self._link.cursor.execute("ROLLBACK" if error else "COMMIT")
        super().__exit__(kind, error, trace)


class Writing:
    """A durable transaction as a `with` block; if its COMMIT is not answered, its end is looked up."""

    def __init__(self, database: PostgresDatabase, now: float | None) -> None:
        self._database = database
        self._now = now

    def __enter__(self) -> PostgresSession:
        database = self._database
        with database.meaning():
            self._link = database.connections.borrow()
            try:
                self._stamp = self._link.begin(database.connections.begin_statement)
            except BaseException:
                database.connections.give_back(self._link)
                raise
        self._session = PostgresSession(self._link, database.queries, self._now)
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        database = self._database
        try:
            if error is None:
                database.answers.commit(self._link, self._stamp, self._session)
                return
            if not self._link.connection.closed:
                with suppress(psycopg.Error):  # the first error is the one to tell
                    self._link.cursor.execute("ROLLBACK")
            if isinstance(error, psycopg.Error):
                raise explain(error, database.url) from error
        finally:
            database.connections.give_back(self._link)
