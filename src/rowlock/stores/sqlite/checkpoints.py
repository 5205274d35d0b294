"""Keeps the write-ahead log small where SQLite's own checkpoints are not safe to use.

Before 3.51.3 a checkpoint is safe only while its maker holds the write lock (see connections.py), so writers
and upkeep make those. The log's size is asked of the file system: opening it here would break SQLite's locks.
"""

from __future__ import annotations

import os
import sqlite3
import time

from rowlock.stores.sqlite.connections import SAFE_AUTOCHECKPOINT, Connections

_SMALL = 4 * 1024 * 1024  # what SQLite's own default of 1,000 pages comes to
_LARGE = 16 * 1024 * 1024
_WRITES = 512  # of about four pages each: a log of 8 MB
_LOOK_EVERY = 64  # writes
_UPKEEP_EVERY = 5.0  # seconds
_PATIENCE = 100  # milliseconds to wait for the writer; the next checkpoint tries again


class Checkpoints:
    """Decides when a checkpoint is due for one file, and makes it."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._log = f"{connections.path}-wal"
        self._writes = 0
        self._since = 0
        self._looked_at = 0.0

    def after_write(self, connection: sqlite3.Connection) -> None:
        """Count a write of this process; make a checkpoint when there were many, or when the log is large."""
        self._writes += 1
        self._since += 1
        # The first write looks, too: many short-lived producers never come to the 64th.
        if self._since >= _WRITES or (self._writes % _LOOK_EVERY == 1 and size_of(self._log) > _LARGE):
            self.make(connection)

    def in_upkeep(self, connection: sqlite3.Connection) -> None:
        """Make one every few seconds while the log is not small: others may write without ever doing so."""
        moment = time.monotonic()
        if moment - self._looked_at >= _UPKEEP_EVERY and size_of(self._log) > _SMALL:
            self._looked_at = moment
            self.make(connection)

    def make(self, connection: sqlite3.Connection) -> None:
        """Copy the log into the database under the write lock; give up soon if somebody else has it.

        RESTART and TRUNCATE are no help: if they cannot get the lock in time, they go on without it. The next
        writer starts the log over. Its file keeps its size up to a limit, because growing it anew costs each
        commit 160 of 430 us.
        """
        if SAFE_AUTOCHECKPOINT:
            return
        self._since = 0
        (usual,) = connection.execute("PRAGMA busy_timeout").fetchone()
        connection.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return
        finally:
            connection.execute(f"PRAGMA busy_timeout = {usual}")
        try:
            copier = self._connections.open(create=False)
            try:
                copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                copier.close()
        finally:
            connection.execute("ROLLBACK")


def size_of(path: str) -> int:
    """The size of a file in bytes; 0 if it is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
