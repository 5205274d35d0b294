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


class _Handle:
    """A connection together with the process that may use it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.process = os.getpid()

    def close(self) -> None:
        if self.process == os.getpid():
            self.connection.close()
        else:
            _inherited.append(self.connection)

    __del__ = close


class Connections:
    """The connections of one database file."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._local = threading.local()
        self._all: weakref.WeakSet[_Handle] = weakref.WeakSet()

    def get(self, create: bool = True) -> sqlite3.Connection:
        """This thread's connection in this process."""
        handle: _Handle | None = getattr(self._local, "handle", None)
        if handle is None or handle.process != os.getpid():
            handle = _Handle(self._open(create))
            self._local.handle = handle
            self._all.add(handle)
        return handle.connection

    def close(self) -> None:
        """Close the connections of all threads of this process; the next `get` opens anew."""
        for handle in list(self._all):
            handle.close()
        self._all.clear()
        self._local = threading.local()

    def _open(self, create: bool) -> sqlite3.Connection:
        if not create and not os.path.exists(self.path):
            raise StoreMissing(f"no queue at {self.path}")
        mode = "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"{Path(self.path).absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout,
            isolation_level=None,  # transactions are begun by name: BEGIN IMMEDIATE
            check_same_thread=False,  # used by one thread, but closed by `close` from any
        )
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
