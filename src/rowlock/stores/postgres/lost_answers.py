"""Commits whose answer was lost: how a transaction ended is looked up, never assumed."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import psycopg

from rowlock.errors import OutcomeUnknown, StoreError
from rowlock.stores.postgres.connections import Connection, Stamp
from rowlock.stores.postgres.faults import is_lost
from rowlock.stores.postgres.session import PostgresSession
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.user_connection import UserConnection

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase

log = logging.getLogger("rowlock.postgres")

T = TypeVar("T")
LOOKED_UP = "the answer to %s was lost on the way from %s; it was looked up: %s"
_LOOK_UP_SECONDS = 30.0


class Fate(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    UNDONE = "not committed"
    UNKNOWN = "unknown"


class LostAnswers:
    """Looks up how transactions ended, on new connections."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def commit(self, connection: Connection, stamp: Stamp, where: Session | UserConnection) -> None:
        """Commit the transaction of that stamp; if there is no answer, look up how it ended."""
        try:
            connection.own_cursor.execute("COMMIT")
        except psycopg.Error as error:
            if not is_lost(error) or not self.has_committed(stamp, where, error):
                raise

    def has_committed(self, stamp: Stamp, where: Session | UserConnection, reason: BaseException) -> bool:
        """After a COMMIT without an answer: look up how that transaction ended."""
        fate = self.look_up(lambda db: fate_of(db, stamp, where.witness), reason)
        log.warning(LOOKED_UP, "COMMIT", self._database.url, fate.value)
        if fate is Fate.UNKNOWN:
            raise self._unknown_end(reason) from reason
        return fate is Fate.COMMITTED

    def look_up(self, look: Callable[[PostgresSession], T | None], reason: BaseException) -> T:
        """Ask a server that may just be coming back, until it gives an answer; never assume one."""
        deadline = time.monotonic() + _LOOK_UP_SECONDS
        wait = 0.02
        while True:
            with suppress(psycopg.Error, StoreError), self._database.connections.borrowed() as connection:
                answer = look(PostgresSession(connection, self._database.queries, None))
                if answer is not None:
                    return answer
            if time.monotonic() > deadline:
                raise self._unknown_end(reason) from reason
            time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the callers, hides nothing
            wait = min(1.0, wait * 2)

    def _unknown_end(self, reason: BaseException) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the connection to {self._database.url} was lost, and it could not be found out whether the "
            f"last statement was committed ({reason})"
        )


def fate_of(db: Session, stamp: Stamp, witness: Callable[[Session], bool] | None) -> Fate | None:
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
