"""Named statements on one connection: one by one, or in a transaction whose end is always known.

Errors of the driver leave these blocks as the store's own, with a sentence that says what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from rowlock.stores.postgres.connections import Link
from rowlock.stores.postgres.faults import explain
from rowlock.stores.postgres.prepared import Row, Value, prepared

if TYPE_CHECKING:
    from rowlock.stores.postgres.connected import ConnectedStore


Witness = Callable[["PostgresSession"], bool]


class PostgresSession:
    """Runs named statements on one connection."""

    def __init__(self, link: Link, queries: Mapping[str, str], now: float | None) -> None:
        self.link = link
        self._cursor = link.cursor
        self._queries = queries
        self._now = now
        self.witness: Witness | None = None  # sees, should the answer to COMMIT be lost, that it was done

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

    def row(self, name: str, /, **values: Any) -> Any:
        rows = self.rows(name, **values)
        return rows[0] if rows else None

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

    __slots__ = ("_link", "_now", "_store")

    def __init__(self, store: ConnectedStore, now: float | None) -> None:
        self._store = store
        self._now = now

    def __enter__(self) -> PostgresSession:
        store = self._store
        try:
            self._link = store.connections.borrow()
        except psycopg.Error as error:
            raise explain(error, store.url) from error
        return PostgresSession(self._link, store.queries, self._now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._store.connections.give_back(self._link, clean=error is None and not self._store.address.pooled)
        if isinstance(error, psycopg.Error):
            raise explain(error, self._store.url) from error


class Limited(Reading):
    """The same behind a pooler: in a transaction, which is the only thing there that can carry limits."""

    __slots__ = ()

    def __enter__(self) -> PostgresSession:
        session = super().__enter__()
        try:
            self._link.cursor.execute(self._store.connections.limits_statement)
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

    def __init__(self, store: ConnectedStore, now: float | None) -> None:
        self._store = store
        self._now = now

    def __enter__(self) -> PostgresSession:
        store = self._store
        with store.explained():
            self._link = store.connections.borrow()
            try:
                self._stamp = self._link.begin(store.connections.begin_statement)
            except BaseException:
                store.connections.give_back(self._link)
                raise
        self._session = PostgresSession(self._link, store.queries, self._now)
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        store = self._store
        try:
            if error is None:
                store.commit(self._link, self._stamp, self._session.witness)
                return
            if not self._link.connection.closed:
                with suppress(psycopg.Error):  # the first error is the one to tell
                    self._link.cursor.execute("ROLLBACK")
            if isinstance(error, psycopg.Error):
                raise explain(error, store.url) from error
        finally:
            store.connections.give_back(self._link)
