"""One SQLite connection per process and thread, opened on first use with the settings that keep the promises.

Knows nothing of the queue's tables. Nobody uses a connection without holding its lock, so that it can be
closed from another thread, and before a fork.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rowlock.errors import StoreMissing, StoreUnusable

# Before 3.51.3 a writer may reset the WAL while a passive checkpoint runs, which corrupts the file. There the
# automatic (passive) checkpoints are off, and the store makes ones under the write lock: checkpoints.py.
SAFE_AUTOCHECKPOINT = sqlite3.sqlite_version_info >= (3, 51, 3)
_LARGEST_LOG = 16 * 1024 * 1024  # what the WAL is cut to when it starts over


class Connection(sqlite3.Connection):
    """A connection with a lock for its users; closes itself when nobody holds it any more."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.is_open = True
        self.uses = 0

    def close(self) -> None:
        self.is_open = False
        super().close()

    def __del__(self) -> None:
        with suppress(sqlite3.Error, AttributeError):
            super().close()


class Connections:
    """The connections of one database file."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._local = threading.local()
        self.renew_locks()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        _everyone.add(self)

    def renew_locks(self) -> None:
        """Make the locks anew; only for `__init__` and a forked child."""
        self._gate = threading.Lock()
        self._guard = threading.Lock()

    def borrow(self, create: bool = True) -> Connection:
        """This thread's connection in this process, locked; `give_back` it soon."""
        while True:
            connection: Connection | None = getattr(self._local, "connection", None)
            if connection is None or not connection.uses:  # not inside a use of its own
                with self._gate:  # somebody wants them all closed: a busy thread would never let them in
                    pass
            if connection is None or not connection.is_open or connection.process != os.getpid():
                connection = self.open(create)
                self._local.connection = connection
                with self._guard:
                    self._all.add(connection)
            connection.lock.acquire()
            if connection.is_open:
                connection.uses += 1
                return connection
            connection.lock.release()

    def give_back(self, connection: Connection) -> None:
        """End the use of a borrowed connection."""
        connection.uses -= 1
        connection.lock.release()

    @contextmanager
    def borrowed(self, create: bool = True) -> Iterator[Connection]:
        """Borrow for the length of a block."""
        connection = self.borrow(create)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Close those of all threads of this process, once their users are done; later calls open anew."""
        for connection in self.lock_all():
            connection.close()
            connection.lock.release()

    def lock_all(self) -> list[Connection]:
        """Wait until nobody uses any of them, and keep it so."""
        with self._gate:
            with self._guard:
                known = [one for one in self._all if one.is_open and one.process == os.getpid()]
            for connection in known:
                connection.lock.acquire()
        return known

    def open(self, create: bool = True) -> Connection:
        """A new connection, ready to be used."""
        if not create and not os.path.exists(self.path):
            raise StoreMissing(f"no queue at {self.path}")
        mode = "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"{Path(self.path).absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout,
            isolation_level=None,  # transactions are begun by name: BEGIN IMMEDIATE
            check_same_thread=False,  # used by one thread, but closed by `close` from any
            factory=Connection,
        )
        try:
            # FULL: NORMAL lost 500 of 500 acknowledged rows in a simulated power cut, FULL lost none.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA mmap_size = 0")
            connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_LOG}")
            if not SAFE_AUTOCHECKPOINT:
                connection.execute("PRAGMA wal_autocheckpoint = 0")
        except BaseException:
            connection.close()
            raise
        return connection

    def use_wal(self, connection: sqlite3.Connection) -> None:
        """Turn the file to write-ahead logging; it stays so."""
        deadline = time.monotonic() + self._busy_timeout
        while (mode := connection.execute("PRAGMA journal_mode").fetchone()[0]) != "wal":
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:  # changing the mode ignores the busy timeout
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise StoreUnusable(
                    f"{self.path} stays in journal mode {mode}, rowlock needs WAL: is it on a network drive?"
                )
            time.sleep(0.01)


# -- forks -------------------------------------------------------------------------------------------
# A forked child inherits SQLite's belief that it holds the file's locks, which it does not: its parent then
# deletes the WAL under it, and what the child commits is lost. So at a fork no connection is open: they are
# closed before it, once their users are done, and parent and child open their own at their next call.

_everyone: weakref.WeakSet[Connections] = weakref.WeakSet()
_forking = threading.local()


def _before_fork() -> None:
    _forking.held = [connection for connections in list(_everyone) for connection in connections.lock_all()]
    for connection in _forking.held:
        if not connection.uses:  # the forking thread itself may be in the middle of something
            connection.close()


def _after_fork() -> None:
    for connection in _forking.held:
        connection.lock.release()


def _after_fork_in_child() -> None:
    for connections in list(_everyone):
        connections.renew_locks()  # whoever held one of these is not here
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
