"""One SQLite connection per process and thread, opened on first use with the settings that keep the promises.

Knows nothing of the queue's tables.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from pathlib import Path

from rowlock.errors import StoreMissing

# Before 3.51.3 a writer may reset the WAL while a passive checkpoint runs, which corrupts the file. There the
# automatic (passive) checkpoints are off, and the store makes ones that hold the write lock instead.
SAFE_AUTOCHECKPOINT = sqlite3.sqlite_version_info >= (3, 51, 3)

_inherited: list[sqlite3.Connection] = []  # a forked child keeps its parent's connections unused and unclosed


class Connection(sqlite3.Connection):
    """A connection that knows the process that may use it, and closes itself when nobody holds it."""

    process = 0

    def leave(self) -> None:
        """Close it, or, in a forked child, only put it away: closing would act on the parent's locks."""
        if self.process == os.getpid():
            self.close()
        else:
            _inherited.append(self)

    __del__ = leave


class Connections:
    """The connections of one database file."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._local = threading.local()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()

    def get(self, create: bool = True) -> Connection:
        """This thread's connection in this process."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.process != os.getpid():
            connection = self._open(create)
            self._local.connection = connection
            self._all.add(connection)
        return connection

    def close(self) -> None:
        """Close the connections of all threads of this process; the next `get` opens anew."""
        for connection in list(self._all):
            connection.leave()
        self._all.clear()
        self._local = threading.local()

    def _open(self, create: bool) -> Connection:
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
        connection.process = os.getpid()
        try:
            self._configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _configure(self, connection: sqlite3.Connection) -> None:
        # FULL: NORMAL lost 500 of 500 acknowledged rows in a simulated power cut, FULL lost none.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA mmap_size = 0")
        if not SAFE_AUTOCHECKPOINT:
            connection.execute("PRAGMA wal_autocheckpoint = 0")

    def use_wal(self, connection: sqlite3.Connection) -> None:
        """Turn the file to write-ahead logging; it stays so."""
        deadline = time.monotonic() + self._busy_timeout
        while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:  # changing the mode ignores the busy timeout
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
