"""What rowlock needs of a connection or session that belongs to the user, whatever library made it.

The libraries themselves are in `user_connection_kinds.py`; others decide what is written, and when it is
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from rowlock.errors import ConfigurationError, Fail, StoreError
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
    witness: Callable[[Session], bool] | None = None  # as a session's

    def __init__(self, given: Any) -> None:
        self._given = given
        self._refusal: str | None = None  # while a task's transaction is held here
        self._mark: object = None
        self._driver: Any = None  # the driver's own connection, while it is held

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
        self.let_go()
        self._given.commit()

    def rollback(self) -> None:
        """Roll the user's transaction back."""
        self.let_go()
        self._given.rollback()

    # -- in a task's hands: rowlock ends the transaction, and nobody else ------------------------

    def lines(self, block: str, on_loop: bool) -> str:
        """How a task should be written that uses such a connection."""
        if on_loop:
            return f"async with ctx.{block}() as tx:\n        await tx.execute(...)"
        return f"with ctx.{block}() as tx:\n        tx.execute(...)"

    def hold(self, refusal: str) -> None:
        """Begin, and leave a mark by which the same transaction is known again.

        Where that can be done, it is also kept open if the task closes it, and its commit is refused.
        """
        self._refusal = refusal  # first: a task must not complete without what it could not begin
        self.begin()
        self._driver = self.key
        if self.dialect == "duckdb":  # which has no savepoints
            self._mark = self._transaction_number()
        else:
            self.run("SAVEPOINT rowlock_task", {})

    def check_held(self) -> None:
        """Raise if it is another transaction than the one that is held, without the task's rows."""
        if self._refusal is None:
            return
        try:
            if self.dialect != "duckdb":
                self.run("RELEASE SAVEPOINT rowlock_task", {})
            elif self._mark != (found := self._transaction_number()):
                raise StoreError(f"the transaction {self._mark} has ended; this is {found}")
        except Exception as error:
            if self._was_lost(error):
                raise
            raise Fail(self._refusal) from error  # it would be the same at each attempt

    def _was_lost(self, error: Exception) -> bool:
        """Whether the server has ended the connection, and not the task: another attempt may succeed."""
        by_sqlalchemy = getattr(error, "connection_invalidated", False)
        by_psycopg = getattr(self._driver, "broken", False) or getattr(self._driver, "closed", 0) == 2
        return bool(by_sqlalchemy or by_psycopg)

    def _transaction_number(self) -> object:
        return self.run("SELECT txid_current()", {}).rows[0][0]

    def let_go(self) -> None:
        """It may be committed, rolled back and closed again."""

    def close(self) -> None:
        """The transaction has ended: do what was put off until then."""
        self.let_go()

    def revoke(self) -> None:
        """The run was given up; what it does on a connection of the user's is not rowlock's to break off."""

    # -- calling ---------------------------------------------------------------------------------

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

    def rollback(self) -> None:
        """Nothing: `close` does it."""

    def close(self) -> None:
        """Roll back what is not committed, and take the connection back."""
        raise NotImplementedError

    def revoke(self) -> None:
        """Undo it under the hands of a task that does not stop; safe from another thread."""
        raise NotImplementedError
