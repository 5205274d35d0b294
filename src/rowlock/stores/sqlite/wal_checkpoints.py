"""Keeps the write-ahead log small, where SQLite's own checkpoints are not safe to use or come to nothing.

Before 3.51.3 a checkpoint is safe only while its maker holds the write lock (see connections.py). And a log
starts over only when nobody reads from it, a moment that many readers never leave: so it is waited for. The
log's size is asked of the file system: opening it here would break SQLite's locks.
"""

from __future__ import annotations

import math
import sqlite3
import time

from rowlock.stores.sql.database import size_of
from rowlock.stores.sqlite.connections import SAFE_AUTOCHECKPOINT, Connections

_SMALL = 4 * 1024 * 1024  # what SQLite's own default of 1,000 pages comes to
_LARGE, _TOO_LARGE = 16 * 1024 * 1024, 48 * 1024 * 1024
_WRITES = 512  # of about four pages each: a log of 8 MB
# Seconds of writing until the size is looked at, however much was written in them. Not at every write: ext4
# gives a file that was looked at a new time at its next write, which then took 80 us longer, of 400.
_LOOK_EVERY = 0.02
_MAINTENANCE_EVERY = 5.0  # seconds
_LOCK_TIMEOUT_MILLISECONDS = 100  # milliseconds to wait for the writer; the next checkpoint tries again
_FIRST_HOLD, _LONGEST_HOLD = 0.01, 1.0  # seconds that writers may have to wait for the readers of a large log
_YIELD = 0.1  # seconds; as often as SQLite looks at a lock that others hold
_LONGEST_PAUSE = 60.0  # seconds until the next attempt, while a reader stays


class Checkpoints:
    """Decides when a checkpoint is due for one file, and makes it."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._log = f"{connections.path}-wal"
        self._since = 0
        self._unseen = _LOOK_EVERY  # the first write looks: many short-lived producers make only one
        self._looked_at = -math.inf
        self._hold = 0.0  # seconds that readers of a large log will be waited for
        self._held = False  # they were, and the log has not been seen to be started over since
        self._failed = 0  # attempts that waited for the longest time, in a row
        self._again_at = 0.0

    def after_write(self, connection: sqlite3.Connection, seconds: float) -> None:
        """Count a write that took so long; make a checkpoint when there were many, or if the log is large."""
        self._since += 1
        self._unseen += seconds
        if self._since < _WRITES and self._unseen < _LOOK_EVERY:
            return
        self._unseen = 0.0
        size = self._size()
        if size > _LARGE:
            if time.monotonic() >= self._again_at:
                self.make(connection, size)
        elif self._since >= _WRITES:
            self.make(connection, size)

    def in_maintenance(self, connection: sqlite3.Connection) -> None:
        """Make one every few seconds while the log is not small: others may write without ever doing so."""
        moment = time.monotonic()
        if moment - self._looked_at >= _MAINTENANCE_EVERY and (size := self._size()) > _SMALL:
            self._looked_at = moment
            self.make(connection, size)

    def make(self, connection: sqlite3.Connection, size: int = 0) -> None:
        """Copy the log into the database under the write lock; give up soon if somebody else has it.

        RESTART and TRUNCATE are no help: if they cannot get the lock in time, they go on without it. The next
        writer starts the log over. Its file keeps its size up to a limit, because growing it anew costs each
        commit 160 of 430 us.
        """
        self._since = 0
        if SAFE_AUTOCHECKPOINT and size <= _LARGE:
            return
        (usual,) = connection.execute("PRAGMA busy_timeout").fetchone()
        connection.execute(f"PRAGMA busy_timeout = {_LOCK_TIMEOUT_MILLISECONDS}")
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            self._again_at = time.monotonic() + self._hold  # maybe somebody else waits for the readers
            return
        finally:
            connection.execute(f"PRAGMA busy_timeout = {usual}")
        began = time.monotonic()
        self._again_at = began + _MAINTENANCE_EVERY  # unless it comes to its end
        try:
            copier = self._connections.open(create=False)
            try:
                self._copy(copier, began + min(self._wait_for_readers_seconds(size), usual / 2000))
            finally:
                copier.close()
        finally:
            connection.execute("ROLLBACK")
        self._again_at = 0.0
        if size > _LARGE:
            self._leave_alone(size, time.monotonic() - began)

    def _copy(self, copier: sqlite3.Connection, until: float) -> None:
        """Copy what readers allow, and give those who still read from the log until then to end.

        Nothing is added to the log meanwhile, and who begins to read once all is copied reads past it. So
        when the others are gone the next writer can start it over.
        """
        while True:
            _, frames, copied = copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            left = until - time.monotonic()
            if frames == copied or left <= 0:
                break
            time.sleep(min(left, 0.001))
        if left > 0:
            time.sleep(left)

    def _wait_for_readers_seconds(self, size: int) -> float:
        """As long as they seem to take, and longer when the log is far too large."""
        if size <= _LARGE or not self._hold:
            return 0.0
        return max(self._hold, _LONGEST_HOLD * _excess(size) ** 2)

    def _leave_alone(self, size: int, held: float) -> None:
        """Let the writers go on for about as long as they had to wait, and wait for longer the next time.

        So the longest wait is not much longer than the readers are, and one that stays does not stop anybody.
        """
        self._held = True
        if self._hold:
            time.sleep(min(held, _YIELD))  # those who waited go first
            if self._size() <= _LARGE:  # and have started it over
                return
        pause = held * max(0.25, 1.0 - _excess(size)) * 4.0**self._failed
        self._again_at = time.monotonic() + min(_LONGEST_PAUSE, pause)
        if self._hold >= _LONGEST_HOLD:
            self._failed = min(self._failed + 1, 4)
        self._hold = min(_LONGEST_HOLD, max(_FIRST_HOLD, self._hold * 2))

    def _size(self) -> int:
        size = size_of(self._log)
        if size <= _LARGE and self._held:  # it was started over
            self._hold, self._held, self._failed = self._hold / 4, False, 0
            self._again_at = 0.0
        return size


def _excess(size: int) -> float:
    """How far the log is on its way from large (0) to too large (1)."""
    return min(1.0, max(0.0, (size - _LARGE) / (_TOO_LARGE - _LARGE)))
