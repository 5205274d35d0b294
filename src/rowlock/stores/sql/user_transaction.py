"""Writing on a connection that is not the store's own: a user's, or the one that a task's transaction holds.

The rows commit or roll back with whatever else is written there; nothing here does either.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from rowlock.codec import json_text
from rowlock.errors import ConfigurationError
from rowlock.job import Claim, Inserted, Job, NewJob, Outcome, Report
from rowlock.stores.source import Source
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.inserting import insert
from rowlock.stores.sql.reading import job_of
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.user_connection import UserConnection

_ELSEWHERE = (
    "this connection is not to the database that holds the queue; nothing could commit together: "
    "use a connection to the queue's database, or enqueue without using(...)"
)


class UserSession(Session):
    """Runs named statements on somebody else's connection."""

    def __init__(self, user: UserConnection, statements: Mapping[str, str], always: dict[str, Any]) -> None:
        super().__init__(statements)
        self._user = user
        self._always = always

    @property
    def now(self) -> float:
        """The store's clock."""
        return float(self.row("clock")[0])

    def run(self, name: str, /, **values: Any) -> int:
        return self._user.run(self._statements[name], self._always | values).changed

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        rows = self._user.run(self._statements[name], self._always | values).rows
        return [tuple(_plain(value) for value in row) for row in rows]

    def take(self, statement: str, /, **values: Any) -> list[Any]:
        raise NotImplementedError("claims are made on the store's own connections")


def _plain(value: Any) -> Any:
    """Times as seconds and JSON as text, whatever the user's driver makes of them."""
    if isinstance(value, datetime):
        return value.timestamp()
    return json_text(value) if isinstance(value, (dict, list)) else value


class UserTransactions:
    """The verbs that write on a user's connection."""

    def __init__(self, database: Database, source: Source) -> None:
        self._database = database
        self._source = source
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # drivers' connections to this database

    def insert_on(self, user: UserConnection, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write the jobs in the transaction of a borrowed connection, and commit nothing."""
        tx = self._checked(user)
        self._database.check_open(tx)
        inserted = insert(tx, jobs)
        self._database.hint(tx, {job.queue for job in jobs}, {job.task for job in jobs})
        return inserted

    def get_on(self, user: UserConnection, job: int) -> Job | None:
        """One job as that transaction sees it."""
        row = self._database.session_on(user).row("get_job", id=job)
        return None if row is None else job_of(row)

    def finish_on(self, user: UserConnection, worker: str, outcome: Outcome, report: Report | None) -> bool:
        """Write a run's last report and its outcome there; False means that the claim was lost."""
        written = self._source.finish_on(self._checked(user), user.style, worker, outcome, report)
        if written:
            user.witness = lambda db: self._source.took_effect(db, outcome)
        return written

    def confirm_on(self, user: UserConnection, claim: Claim, report: Report | None) -> bool:
        """Write a run's report there and keep its claim from being lost before the commit; False: it was."""
        return self._source.confirm_on(self._checked(user), user.style, claim, report)

    def _checked(self, user: UserConnection) -> Session:
        """A session there, once it is sure that this queue is in that database."""
        database, key = self._database, user.key
        if user.dialect != database.dialect:
            raise ConfigurationError(_ELSEWHERE)
        tx = database.session_on(user)
        if key in self._known:
            return tx
        # Asked in two steps: a statement that fails would spoil the user's transaction.
        there = tx.row("queue_there") is not None
        if not there and not database.make_tables_on(user, tx):
            raise ConfigurationError(_ELSEWHERE)
        identity = database.identity(tx)
        if not database.is_file_of(user) and identity != database.install_id():
            raise ConfigurationError(_ELSEWHERE)
        if there:  # what was only made just now may be rolled back
            with suppress(TypeError):  # sqlite3's cannot be remembered; there the questions cost little
                self._known.add(key)
        return tx
