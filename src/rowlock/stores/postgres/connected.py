"""The PostgreSQL store's ground floor: opening, transactions, and the look-up of answers that were lost.

What is done with them is in `store.py`, and the verbs it shares with other databases in `stores/sql.py`.
"""

from __future__ import annotations

import logging
import os
import random
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import Enum
from typing import TypeVar

import psycopg

from rowlock.errors import (
    ConfigurationError,
    OutcomeUnknown,
    SchemaMismatch,
    StoreError,
    StoreMissing,
    StoreUnusable,
)
from rowlock.job import Outcome, Report, utc
from rowlock.stores.postgres import schema
from rowlock.stores.postgres.connections import Connections, Link, Stamp
from rowlock.stores.postgres.dialect import statements, with_others
from rowlock.stores.postgres.faults import explain, is_lost
from rowlock.stores.postgres.session import Limited, PostgresSession, Reading, Witness, Writing
from rowlock.stores.postgres.transaction import PostgresTransaction
from rowlock.stores.postgres.url import Address
from rowlock.stores.sql.finishing import took_effect
from rowlock.stores.sql.reading import SqlReads
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import SqlStore
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import NOT_OUTERMOST, SqlUserTransactions, UserSession
from rowlock.stores.sql.versions import check

log = logging.getLogger("rowlock.postgres")

T = TypeVar("T")
LOOKED_UP = "the answer to %s was lost on the way from %s; it was looked up: %s"
_OLDEST = 13
_STATEMENT_TIMEOUT = 30.0


class Fate(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    UNDONE = "not committed"
    UNKNOWN = "unknown"


class ConnectedStore(SqlReads, SqlStore, SqlUserTransactions):
    """A database that holds a queue: opened, written to, and asked again when an answer was lost."""

    _dialect = "postgresql"

    def __init__(self, address: Address, *, busy_timeout: float = 5.0) -> None:
        super().__init__()
        self.address = address
        self.url = address.shown
        self.queries = statements(address.schema)
        self.connections = Connections(
            address.conninfo,
            name=address.name,
            most=address.pool_size,
            statement_timeout=_STATEMENT_TIMEOUT,
            lock_timeout=busy_timeout,
            pooled=address.pooled,
        )
        self._opened_in: int | None = None
        self._settled: weakref.WeakKeyDictionary[UserConnection, Outcome] = weakref.WeakKeyDictionary()

    # -- the life of the store -------------------------------------------------------------------

    def open(self, create: bool = True) -> None:
        if self._opened_in == os.getpid():
            return
        with self.explained(), self.connections.borrowed() as link:
            server, place = link.connection, self.address.schema
            if server.info.server_version < _OLDEST * 10_000:
                raise StoreUnusable(f"{self.url} is older than PostgreSQL {_OLDEST}, which rowlock needs")
            facts = schema.meta(server, place)
            if facts is None:
                if not create:
                    raise StoreMissing(f"no queue at {self.url}: run `rowlock init`")
                schema.create(server, place)
                facts = schema.meta(server, place)
            if facts is None:
                raise SchemaMismatch(f"the queue's tables could not be created at {self.url}")
            check(facts, self.url, schema.VERSION)
        self._opened_in = os.getpid()

    def ddl(self) -> str:
        return schema.ddl(self.address.schema)

    def upgrade(self) -> tuple[int, int]:
        with self.explained(), self.connections.borrowed() as link:
            return schema.upgrade(link.connection, self.address.schema)

    def close(self) -> None:
        self.connections.close()
        self._opened_in = None

    # -- transactions ----------------------------------------------------------------------------

    def _write(self, now: float | None = None) -> Writing:
        self.open()
        return Writing(self, now)

    def _read(self, now: float | None = None) -> Reading:
        self.open()
        return Limited(self, now) if self.address.pooled else Reading(self, now)

    @contextmanager
    def _snapshot(self) -> Iterator[PostgresSession]:
        with self._read() as session:
            # Behind a pooler the session is in a transaction already, and ends it.
            begin = "SET TRANSACTION" if self.address.pooled else "BEGIN"
            session.link.cursor.execute(f"{begin} ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield session
            if not self.address.pooled:
                session.link.cursor.execute("COMMIT")

    def borrow(self) -> Link:
        try:
            return self.connections.borrow()
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say what PostgreSQL's errors mean."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    def commit(self, link: Link, stamp: Stamp, witness: Witness | None = None) -> None:
        """Commit the transaction of that stamp; if there is no answer, look up how it ended."""
        try:
            link.cursor.execute("COMMIT")
        except psycopg.Error as error:
            if not is_lost(error) or not self._has_committed(stamp, witness, error):
                raise explain(error, self.url) from error

    def _has_committed(self, stamp: Stamp, witness: Witness | None, reason: BaseException) -> bool:
        """After a COMMIT without an answer: look up how that transaction ended."""
        fate = self.look_up(lambda db: _fate(db, stamp, witness), reason)
        log.warning(LOOKED_UP, "COMMIT", self.url, fate.value)
        if fate is Fate.UNKNOWN:
            raise self._unknown_end(reason) from reason
        return fate is Fate.COMMITTED

    def _unknown_end(self, reason: BaseException) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the connection to {self.url} was lost, and it could not be found out whether the last "
            f"statement was committed ({reason})"
        )

    def look_up(self, look: Callable[[PostgresSession], T | None], reason: BaseException) -> T:
        """Ask a server that may just be coming back, until it gives an answer; never assume one."""
        deadline = time.monotonic() + _STATEMENT_TIMEOUT
        wait = 0.02
        while True:
            with suppress(psycopg.Error, StoreError), self.connections.borrowed() as link:
                answer = look(PostgresSession(link, self.queries, None))
                if answer is not None:
                    return answer
            if time.monotonic() > deadline:
                raise self._unknown_end(reason) from reason
            time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the callers, hides nothing
            wait = min(1.0, wait * 2)

    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> Statements:
        return with_others(self.address.schema, style or "pyformat", sources, words)

    def _numbers(self, tx: Session, count: int) -> list[int]:
        return sorted(row[0] for row in tx.rows("draw_numbers", count=count))

    def _time(self, stored: float) -> datetime:
        return utc(stored)

    def transaction(self, timeout: float | None) -> PostgresTransaction:
        self.open()
        with self.explained():
            return PostgresTransaction(self.connections, self._commit_task, timeout)

    def finish_on(self, user: UserConnection, worker: str, outcome: Outcome, report: Report | None) -> bool:
        written = super().finish_on(user, worker, outcome, report)
        if written:
            self._settled[user] = outcome
        return written

    def _commit_task(self, user: UserConnection, link: Link, stamp: Stamp) -> None:
        self.commit(link, stamp, self._witness_on(user))

    def commit_on(self, user: UserConnection) -> None:
        stamp = Stamp(*self._session_on(user).row("transaction_number"))
        try:
            user.commit()
        except Exception as error:  # whatever the user's library makes of a lost connection
            if not self._has_committed(stamp, self._witness_on(user), error):
                raise
            return
        with self._read() as db:
            if _fate(db, stamp, None) in (None, Fate.UNDONE):
                raise ConfigurationError(NOT_OUTERMOST)

    def _witness_on(self, user: UserConnection) -> Witness | None:
        outcome = self._settled.get(user)
        return None if outcome is None else lambda db: took_effect(db, outcome)

    def _session_on(self, user: UserConnection) -> Session:
        return UserSession(user, statements(self.address.schema, user.style), {"now": None})


def _fate(db: PostgresSession, stamp: Stamp, witness: Witness | None) -> Fate | None:
    """How the transaction ended; None while it has not.

    A server that crashed gives the numbers of transactions that left no trace a second time, so that
    "committed" may be said of somebody else's. What the transaction wrote is the witness of its own.
    """
    try:
        status, server, recovered = db.row("transaction_status", number=stamp.number, at=stamp.began)
    except psycopg.errors.InvalidParameterValue:  # a number that is not given yet: this server has crashed
        return Fate.UNDONE
    if status == "in progress" and server == stamp.server:
        return None
    if status != "committed":
        return Fate.UNDONE
    if witness is not None:
        return Fate.COMMITTED if witness(db) else Fate.UNDONE
    return Fate.COMMITTED if server == stamp.server and not recovered else Fate.UNKNOWN
