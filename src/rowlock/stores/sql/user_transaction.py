"""Writing on a connection that is not the store's own: a user's, or the one that a task's transaction holds.

The rows commit or roll back with whatever else is written there; nothing here does either.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.job import Claim, Inserted, Job, NewJob, Outcome, Report
from rowlock.stores.base import Store
from rowlock.stores.sql.finishing import finish, write_reports
from rowlock.stores.sql.inserting import insert
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.user_connection import UserConnection

_ELSEWHERE = (
    "this connection is not to the database that holds the queue; nothing could commit together: "
    "use a connection to the queue's database, or enqueue without using(...)"
)

NOT_OUTERMOST = (
    "the session is inside a transaction of somebody else, so that its commit commits nothing: give "
    "ctx.transaction() a session or connection that begins its own"
)


class UserSession:
    """Runs named statements on somebody else's connection."""

    def __init__(self, user: UserConnection, queries: Mapping[str, str], always: dict[str, Any]) -> None:
        self._lent = user
        self._queries = queries
        self._always = always

    @property
    def now(self) -> float:
        """The store's clock."""
        return float(self.row("clock")[0])

    def run(self, name: str, /, **values: Any) -> int:
        return self._lent.run(self._queries[name], self._always | values).changed

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        rows = self._lent.run(self._queries[name], self._always | values).rows
        return [tuple(_plain(value) for value in row) for row in rows]

    def row(self, name: str, /, **values: Any) -> Any:
        rows = self.rows(name, **values)
        return rows[0] if rows else None

    def take(self, statement: str, /, **values: Any) -> list[Any]:
        raise NotImplementedError("claims are made on the store's own connections")

    def each(self, name: str, /, values: Sequence[dict[str, Any]]) -> None:
        self.count_each(name, values)

    def count_each(self, name: str, /, values: Sequence[dict[str, Any]]) -> list[int]:
        return [self.run(name, **one) for one in values]

    def using(self, statements: Mapping[str, str]) -> UserSession:
        return UserSession(self._lent, statements, self._always)


def _plain(value: Any) -> Any:
    """Times as seconds and JSON as text, whatever the user's driver makes of them."""
    if isinstance(value, datetime):
        return value.timestamp()
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list)) else value


class SqlUserTransactions(ABC):
    """The verbs that write on a borrowed connection."""

    _dialect: str

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # connections that were asked already

    @abstractmethod
    def _session_on(self, user: UserConnection) -> Session:
        """A session that runs this store's statements there."""

    @abstractmethod
    def _hint(self, tx: Session, queues: Collection[str] = (), tasks: Collection[str] = ()) -> None:
        """Tell one who sleeps that there may be work, where a commit alone does not tell."""

    @abstractmethod
    def _job(self, row: Any) -> Job:
        """A row of the jobs as a record."""

    @abstractmethod
    def _identity(self, tx: Session) -> str:
        """The random name of the queue that this session sees."""

    @abstractmethod
    def install_id(self) -> str:
        """The random name of this queue, by which a foreign database is recognised."""

    def session_on(self, user: UserConnection) -> Session:
        """A session there for another room, once it is sure that this queue is in that database."""
        return self._checked(user)

    def insert_on(self, user: UserConnection, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write the jobs there."""
        tx = self._checked(user)
        inserted = insert(tx, jobs)
        self._hint(tx, {job.queue for job in jobs}, {job.task for job in jobs})
        return inserted

    def get_on(self, user: UserConnection, job: int) -> Job | None:
        """One job as that transaction sees it."""
        row = self._session_on(user).row("get_job", id=job)
        return None if row is None else self._job(row)

    def finish_on(self, user: UserConnection, worker: str, outcome: Outcome, report: Report | None) -> bool:
        """Write what a run said last, and its outcome as the last statement; False: the claim was lost."""
        tx = self._checked(user)
        if report is not None:
            write_reports(tx, [report])
        return not finish(tx, worker, [outcome])

    def confirm_on(self, user: UserConnection, claim: Claim, report: Report | None) -> bool:
        """Write what a run has said, and hold its claim until the commit; False: the claim was lost."""
        tx = self._checked(user)
        if report is not None:
            write_reports(tx, [report])
        return tx.run("hold_claim", id=claim.id, claim=claim.claim) > 0

    def _appears(self, user: UserConnection, tx: Session) -> bool:
        """The queue's tables are not there yet: make them, if that is where they belong."""
        self.install_id()
        return tx.row("queue_there") is not None

    def _identity_for(self, user: UserConnection) -> str:
        """The install id that has to be found there."""
        return self.install_id()

    def commit_on(self, user: UserConnection) -> None:
        """Commit the transaction there; where a lost answer can be looked up, the store does."""
        driver: Any = user.key  # before the commit: asked after it, a session would begin anew
        user.commit()
        still_open = False
        with suppress(Exception):  # closed by now: then it is committed
            still_open = bool(driver.in_transaction)
        if still_open:
            raise ConfigurationError(NOT_OUTERMOST)

    def _checked(self, user: UserConnection) -> Session:
        """A session there, once it is sure that this queue is in that database."""
        tx = self._session_on(user) if user.dialect == self._dialect else None
        key = user.key
        if tx is not None and _remembers(self._known, key):
            return tx
        # Asked in two steps: a statement that fails would spoil the user's transaction.
        there = tx is not None and tx.row("queue_there") is not None
        if tx is None or (not there and not self._appears(user, tx)):
            raise ConfigurationError(_ELSEWHERE)
        if self._identity(tx) != self._identity_for(user):
            raise ConfigurationError(_ELSEWHERE)
        if there:  # what was only made just now may be rolled back
            with suppress(TypeError):  # sqlite3's cannot be remembered; there the questions cost little
                self._known.add(key)
        return tx


def _remembers(known: weakref.WeakSet[Any], key: object | None) -> bool:
    try:
        return key in known
    except TypeError:
        return False


class UserDestination:
    """A store together with a borrowed connection: what `task.using(x)` enqueues on."""

    def __init__(self, store: Store, user: UserConnection) -> None:
        self.store = store
        self.borrowed = user
        self.open = True  # False once the task's transaction that it belongs to has ended

    @property
    def asynchronous(self) -> bool:
        """True if enqueuing on it has to be awaited."""
        return self.borrowed.asynchronous

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write the jobs there."""
        return self.borrowed.call(lambda user: self.store.insert_on(user, jobs))

    async def ainsert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same from a coroutine."""
        return await self.borrowed.acall(lambda user: self.store.insert_on(user, jobs))

    def get(self, job: int) -> Job | None:
        """One job as that transaction sees it."""
        return self.borrowed.call(lambda user: self.store.get_on(user, job))

    async def aget(self, job: int) -> Job | None:
        """The same from a coroutine."""
        return await self.borrowed.acall(lambda user: self.store.get_on(user, job))
