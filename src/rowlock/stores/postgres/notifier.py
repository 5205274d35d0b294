"""LISTEN and NOTIFY as a hint: a worker that waits says so in its row, and is told by its own name.

NOTIFY makes commits wait for each other, so nobody is told who does not wait, and one is told, not all.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections.abc import Callable
from hashlib import md5
from typing import Protocol

import psycopg
from psycopg import sql

from rowlock.errors import StoreError
from rowlock.stores.base import Bell
from rowlock.stores.postgres.connections import Link
from rowlock.stores.postgres.dialect import CHANNEL

log = logging.getLogger("rowlock.wake")

_ASK_AFTER_SECONDS = 5.0  # seconds without a word after which the listener asks whether anybody is there
_ANSWER_TIMEOUT_SECONDS = 5.0  # seconds that the answer may take: else the connection is half-open
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 10.0


class SleepRegistry(Protocol):
    """What a sleeper asks of its store."""

    def open_link(self) -> Link:
        """A connection of its own."""
        ...

    def fall_asleep(self, worker: str) -> bool:
        """Say in the worker's row that it waits for jobs; True if it does so for some queues only."""
        ...

    def wake_another(self, worker: str) -> None:
        """Tell somebody else who waits, if there is work for them."""
        ...


class Listener:
    """One worker's ear: a thread with a connection of its own."""

    def __init__(self, store: SleepRegistry, worker: Callable[[], str], ring: Callable[[], None]) -> None:
        self._store = store
        self._worker = worker
        self._ring = ring
        self._stop = threading.Event()
        self._listening_as: str | None = None
        self._asleep_as: str | None = None
        self._picky = False  # it takes some queues only: there may have been more than it was told of
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._loop, name="rowlock-listen", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while a word would be heard."""
        return self._listening_as is not None and self._listening_as == self._worker()

    # -- what the poller calls -------------------------------------------------------------------

    def before_claim(self, idle: bool) -> None:
        """Nothing to note: whoever commits while we wait tells us."""

    def claimed(self, leaves_some: bool) -> None:
        """The claim has cleared the row's mark; who cannot take all there may be passes the word on."""
        was_asleep, self._asleep_as = self._asleep_as, None
        if was_asleep is not None and (leaves_some or self._picky):
            try:
                self._store.wake_another(self._worker())
            except StoreError as error:
                log.debug("could not pass a wake-up on: %s", error)

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait for the bell. The first wait only says that we sleep: what came before that is polled for."""
        worker = self._worker()
        if self.alive and self._asleep_as != worker:
            try:
                self._picky = self._store.fall_asleep(worker)
            except StoreError as error:
                log.debug("could not say that %s sleeps: %s", worker, error)
            else:
                self._asleep_as = worker
                return False
        try:
            bell.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def close(self) -> None:
        """End the thread and its connection."""
        self._stop.set()
        self._listening_as = None
        link = self._link
        if link is not None and threading.current_thread() is not self._thread:
            link.interrupt()
        self._thread.join(timeout=10)

    # -- in the listener's thread ----------------------------------------------------------------

    def _loop(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                self._link = self._store.open_link()
                self._link.connection.patience = _ASK_AFTER_SECONDS + _ANSWER_TIMEOUT_SECONDS
                self._listen(self._link.connection)
                failures = 0
            except (StoreError, psycopg.Error, OSError) as error:
                if self._listening_as is not None:
                    failures = 0
                if not failures and not self._stop.is_set():
                    first = str(error).partition("\n")[0]  # the others are libpq's guesses
                    log.warning("wake-ups are not heard for now, polling goes on: %s", first)
                failures += 1
            finally:
                self._listening_as = None
                if self._link is not None:
                    self._link.close()
                    self._link = None
            wait = min(_BACKOFF_MOST, _BACKOFF_FIRST * 2.0 ** min(failures, 10))
            self._stop.wait(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the workers, hides nothing

    def _listen(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        worker = self._worker()
        name = CHANNEL + md5(worker.encode(), usedforsecurity=False).hexdigest()
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))
        self._listening_as = worker
        self._ring()  # something may have come before we listened
        while not self._stop.is_set() and self._worker() == worker:
            heard = False
            for _ in connection.notifies(timeout=_ASK_AFTER_SECONDS, stop_after=1):
                heard = True
            if self._stop.is_set():
                return
            if heard:
                self._ring()
            else:
                connection.execute("SELECT 1")  # with its own patience: a half-open connection ends here


class NoWake:
    """Behind a pooler nothing can be listened to: polling alone, at its own pace."""

    alive = False

    def before_claim(self, idle: bool) -> None:
        """Nothing to note."""

    def claimed(self, leaves_some: bool) -> None:
        """Nobody to tell."""

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait until the bell rings or time is up."""
        try:
            bell.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def close(self) -> None:
        """Nothing is held open."""
