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
from typing import Any, TypeVar

from rowlock.errors import StoreMissing, StoreUnusable
from rowlock.stores.base import on_behalf_of

# Before 3.51.3 a writer may reset the WAL while a passive checkpoint runs, which corrupts the file. There the
# automatic (passive) checkpoints are off, and the store makes ones under the write lock: wal_checkpoints.py.
SAFE_AUTOCHECKPOINT = sqlite3.sqlite_version_info >= (3, 51, 3)
_LARGEST_LOG = 16 * 1024 * 1024  # what the WAL is cut to when it starts over


class Connection(sqlite3.Connection):
    """A connection with a lock for its users; closes itself when nobody holds it any more."""

    # Of the class: `lock_holders.py` finds connections, also those that another thread is just opening.
    lent_to: int | None = None
    file = ""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lock: Any = threading.RLock()
        self.process = os.getpid()
        self.is_open = True
        self.uses = 0

    def close(self) -> None:
        self.is_open = False
        super().close()

    def __del__(self) -> None:
        with suppress(sqlite3.Error, AttributeError):
            super().close()


C = TypeVar("C", bound=Connection)


class _Holder:
    """Closes a thread's connection when the thread ends; alone it would wait for the garbage collector."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        if self.connection.process == os.getpid():
            with suppress(sqlite3.Error):
                self.connection.close()


class Connections:
    """The connections of one database file."""

    def __init__(self, path: str, busy_timeout: float, shown: str) -> None:
        self.path = path
        self._shown = shown  # the path as its user wrote it, for messages
        self.exists = False  # once it does, it is never created again under somebody's feet
        self._busy_timeout = busy_timeout
        self._local = threading.local()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.gate = threading.Lock()  # who holds it lets nobody open or take up a connection
        _everyone.add(self)

    def borrow(self, create: bool = True) -> Connection:
        """This thread's connection in this process, locked; `give_back` it soon."""
        process = os.getpid()
        while True:
            holder: _Holder | None = getattr(self._local, "holder", None)
            connection = None if holder is None else holder.connection
            if connection is None or not connection.uses:  # not inside a use of its own
                with self.gate:
                    if connection is None or not connection.is_open or connection.process != process:
                        connection = self.open(create)
                        self._local.holder = _Holder(connection)
                        self._all.add(connection)
            connection.lock.acquire()
            if connection.is_open and connection.process == process:
                connection.uses += 1
                if connection.uses == 1 and connection.in_transaction:
                    connection.execute("ROLLBACK")  # an interrupt between two lines had left it
                return connection
            connection.lock.release()

    def give_back(self, connection: Connection) -> None:
        """End the use of a borrowed connection."""
        connection.uses -= 1
        connection.lock.release()

    def forget(self) -> None:
        """Close this thread's connection, unless it is in use: the next use opens another."""
        holder: _Holder | None = getattr(self._local, "holder", None)
        connection = None if holder is None else holder.connection
        if connection is not None and connection.process == os.getpid() and not connection.uses:
            with connection.lock, suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def borrowed(self, create: bool = True) -> Iterator[Connection]:
        """Borrow for the length of a block."""
        connection = self.borrow(create)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def lend(self, kind: type[C]) -> C:
        """A new connection for one task, in use until `take_back`: a fork elsewhere waits for that."""
        with self.gate:
            connection = self._open(False, kind)
            # Not of one thread: a task may give it back from another than it took it in.
            connection.lock = threading.Lock()
            connection.lent_to = on_behalf_of.get() or threading.get_ident()
            self._all.add(connection)
            connection.lock.acquire()
            connection.uses += 1
        return connection

    def take_back(self, connection: Connection) -> None:
        """Close a connection that was lent."""
        self.give_back(connection)
        connection.close()

    def close(self) -> None:
        """Close those of all threads of this process, once their users are done; later calls open anew."""
        with self.gate:
            for connection in self.lock_all():
                connection.close()
                connection.lock.release()
            self.exists = False

    def lock_all(self) -> list[Connection]:
        """Wait until nobody uses any of them, and keep it so; for those who hold the gate."""
        me = threading.get_ident()
        known = [one for one in self._all if one.is_open and one.process == os.getpid() and one.lent_to != me]
        for connection in known:
            connection.lock.acquire()
        return known

    def open(self, create: bool = True) -> Connection:
        """A new connection, ready to be used."""
        return self._open(create, Connection)

    def _open(self, create: bool, kind: type[C]) -> C:
        create = create and not self.exists
        if not create and not os.path.exists(self.path):
            raise StoreMissing(f"no queue at {self._shown}")
        mode = "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout,
            isolation_level=None,  # transactions are begun by name: BEGIN IMMEDIATE
            check_same_thread=False,  # used by one thread, but closed by `close` from any
            factory=kind,
        )
        connection.file = self.path
        try:
            # Not the kind's own cursor, which `execute` of Python 3.10 would ask for: it may begin something.
            run = sqlite3.Cursor(connection).execute
            # FULL: NORMAL lost 500 of 500 acknowledged rows in a simulated power cut, FULL lost none.
            run("PRAGMA synchronous = FULL")
            run("PRAGMA mmap_size = 0")
            run(f"PRAGMA journal_size_limit = {_LARGEST_LOG}")
            if not SAFE_AUTOCHECKPOINT:
                run("PRAGMA wal_autocheckpoint = 0")
        except BaseException:
            connection.close()
            raise
        return connection

    def use_wal(self, connection: sqlite3.Connection) -> None:
        """Turn the file to write-ahead logging; it stays so."""
        deadline = time.monotonic() + self._busy_timeout
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        while mode != "wal":
            last_try = time.monotonic() > deadline
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:  # changing the mode ignores the busy timeout
                if "locked" not in str(error) or last_try:
                    raise
            if mode != "wal":
                if last_try:
                    raise StoreUnusable(
                        f"{self._shown} stays in journal mode {mode}, but WAL is needed: a network drive?"
                    )
                time.sleep(0.01)


# -- forks -------------------------------------------------------------------------------------------
# A forked child inherits SQLite's belief that it holds the file's locks, which it does not: its parent then
# deletes the WAL under it, and what the child commits is lost. So at a fork no connection is open and none is
# being opened. They are closed before it, once their users are done; parent and child open their own again.

_everyone: weakref.WeakSet[Connections] = weakref.WeakSet()
_forking = threading.local()


def _before_fork() -> None:
    _forking.everyone = list(_everyone)
    _forking.held = []
    for connections in _forking.everyone:
        connections.gate.acquire()
        for connection in connections.lock_all():
            _forking.held.append(connection)
            if not connection.uses:  # the forking thread itself may be in the middle of something
                connection.close()


def _after_fork() -> None:
    for connection in _forking.held:
        connection.lock.release()
    for connections in _forking.everyone:
        connections.gate.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
