"""What rowlock needs of a connection or session that belongs to the user, whatever library made it.

The libraries themselves are in `borrowing.py`; what is written and when it is committed, others decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from rowlock.errors import ConfigurationError, StoreError
from rowlock.stores.sql.held_session import HeldConnection, HeldSession
from rowlock.stores.sql.session import Session

T = TypeVar("T")


class Answer(NamedTuple):
    """What a statement gave back; of one that returns rows, `changed` is their number."""

    rows: list[tuple[Any, ...]]
    changed: int


class UserConnection:
    """A user's connection: runs statements in the user's transaction, and ends it only when told to."""

    dialect: str  # "sqlite", "postgresql" or "duckdb"
    style = "named"  # parameters are :name; with "pyformat", %(name)s; with "dollar", $name
    asynchronous = False
    lines = "with ctx.{}() as tx:\n        tx.execute(...)"  # how a task should be written
    async_lines = "async with ctx.{}() as tx:\n        await tx.execute(...)"  # the same of an async task
    witness: Callable[[Session], bool] | None = None  # as a session's

    def __init__(self, given: Any) -> None:
        self._given = given

    @property
    def key(self) -> object | None:
        """The driver's own connection, or None where it cannot be had."""
        return self._given  # type: ignore[no-any-return]

    def run(self, sql: str, values: Mapping[str, Any]) -> Answer:
        """Execute one statement and fetch all of its rows."""
        raise NotImplementedError

    def begin(self) -> None:
        """Make sure that a transaction is open."""
        raise NotImplementedError

    def commit(self) -> None:
        """Commit the user's transaction."""
        self._given.commit()

    def rollback(self) -> None:
        """Roll the user's transaction back."""
        self._given.rollback()

    def mark(self) -> object:
        """Leave a mark in the transaction by which the same one is known again; or its number."""
        if self.dialect == "duckdb":  # which has no savepoints
            return self._transaction_number()
        self.run("SAVEPOINT rowlock_task", {})
        return None

    def find_mark(self, mark: object) -> None:
        """Raise if this is not the transaction with the mark any more."""
        if self.dialect != "duckdb":
            self.run("RELEASE SAVEPOINT rowlock_task", {})
        elif mark != (found := self._transaction_number()):
            raise StoreError(f"the transaction {mark} has ended; this is {found}")

    def _transaction_number(self) -> object:
        return self.run("SELECT txid_current()", {}).rows[0][0]

    def hold(self, refusal: str) -> HeldConnection | HeldSession | None:
        """Keep it open if the task closes it, and refuse its commit; None where that cannot be done."""
        return None

    def call(self, work: Callable[[UserConnection], T]) -> T:
        """Do `work` on this connection."""
        if self.asynchronous:
            kind = type(self._given).__name__
            raise ConfigurationError(f"{kind} is asynchronous: write `await task.using(…).aenqueue(…)`")
        return work(self)

    async def acall(self, work: Callable[[UserConnection], T]) -> T:
        """Do `work` from a coroutine; a synchronous connection stays on the caller's thread."""
        return work(self)


class OwnTransaction(UserConnection):
    """A connection of the store in the hands of one task, which rowlock alone commits."""

    connection: Any  # what the task gets: the driver's own connection

    def close(self) -> None:
        """Roll back what is not committed, and take the connection back."""
        raise NotImplementedError

    def revoke(self) -> None:
        """Undo it under the hands of a task that does not stop; safe from another thread."""
        raise NotImplementedError
