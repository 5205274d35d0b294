"""LISTEN: which workers sleep, and how one receives the hint that there is work.

NOTIFY makes commits wait for each other, so only sleeping workers are notified, and one of them, not all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from hashlib import md5
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from rowlock.errors import StoreError
from rowlock.outage import backoff
from rowlock.stores.base import Bell, Wake, rung
from rowlock.stores.postgres.connections import Connection
from rowlock.stores.postgres.dialect import CHANNEL

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase

log = logging.getLogger("rowlock.wake")

_ASK_AFTER_SECONDS = 5.0  # of silence, after which the listener checks that the connection still works
_ANSWER_TIMEOUT_SECONDS = 5.0  # that this check may take: else the connection is half-open
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 10.0


class Sleepers:
    """The workers of this process whose rows say that they sleep."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._here: set[str] = set()

    def __contains__(self, worker: str) -> bool:
        return worker in self._here

    def fall_asleep(self, worker: str) -> bool:
        """Say in the worker's row that it waits for jobs; True if it does so for some queues only."""
        with self._database.read() as db:
            row = db.row("sleep", worker=worker)
        self._here.add(worker)
        return row is not None and bool(row[0])

    def get_up(self, worker: str, is_told: bool = False) -> None:
        """It waits no more; `is_told` if its row says so already."""
        if worker in self._here:
            if not is_told:
                with self._database.read() as db:
                    db.run("awake", worker=worker)
            self._here.discard(worker)

    def wake_another(self, worker: str) -> None:
        """Notify another worker, if there is work for it."""
        with self._database.read() as db:
            db.rows("wake_another", worker=worker)


class Listener(Wake):
    """Receives NOTIFY for one worker, in a thread with a connection of its own."""

    def __init__(
        self, database: PostgresDatabase, worker: Callable[[], str], ring: Callable[[], None]
    ) -> None:
        self._database = database
        self._worker = worker
        self._ring = ring
        self._stop = threading.Event()
        self._listening_as: str | None = None
        self._asleep_as: str | None = None
        self._picky = False  # it takes some queues only: there may have been more than it was told of
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._loop, name="rowlock-listen", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether a NOTIFY would be received now."""
        return self._listening_as is not None and self._listening_as == self._worker()

    # -- what the poller calls -------------------------------------------------------------------

    def claimed(self, leaves_some: bool) -> None:
        """The claim has cleared the row's mark. If jobs may be left over, another worker is notified."""
        was_asleep, self._asleep_as = self._asleep_as, None
        if was_asleep is not None and (leaves_some or self._picky):
            try:
                self._database.sleepers.wake_another(self._worker())
            except StoreError as error:
                log.debug("could not pass a wake-up on: %s", error)

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait for the bell. The first call only writes that this worker sleeps, and polls once more."""
        worker = self._worker()
        if self.alive and self._asleep_as != worker:
            try:
                self._picky = self._database.sleepers.fall_asleep(worker)
            except StoreError as error:
                log.debug("could not say that %s sleeps: %s", worker, error)
            else:
                self._asleep_as = worker
                return False
        return rung(bell, seconds)

    def close(self) -> None:
        """End the thread and its connection."""
        self._stop.set()
        self._listening_as = None
        connection = self._connection
        if connection is not None and threading.current_thread() is not self._thread:
            connection.interrupt()
        self._thread.join(timeout=10)

    # -- in the listener's thread ----------------------------------------------------------------

    def _loop(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                with closing(self._database.connect()) as self._connection:
                    self._connection.answer_timeout = _ASK_AFTER_SECONDS + _ANSWER_TIMEOUT_SECONDS
                    self._listen(self._connection)
                failures = 0
            except (StoreError, psycopg.Error, OSError) as error:
                if self._listening_as is not None:
                    failures = 0
                if not failures and not self._stop.is_set():
                    first = str(error).partition("\n")[0]  # the others are libpq's guesses
                    log.warning("wake-ups are not received for now, polling goes on: %s", first)
                failures += 1
            finally:
                self._listening_as = self._connection = None
            self._stop.wait(backoff(failures, _BACKOFF_FIRST, _BACKOFF_MOST))

    def _listen(self, connection: Connection) -> None:
        worker = self._worker()
        name = CHANNEL + md5(worker.encode(), usedforsecurity=False).hexdigest()
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))
        self._listening_as = worker
        self._ring()  # something may have come before we listened
        while not self._stop.is_set() and self._worker() == worker:
            heard = list(connection.notifies(timeout=_ASK_AFTER_SECONDS, stop_after=1))
            if self._stop.is_set():
                return
            if heard:
                self._ring()
            else:
                connection.execute("SELECT 1")  # limited by answer_timeout: a half-open connection ends here
