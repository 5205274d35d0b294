"""An exclusive lock on a file of its own, between processes; the system drops it when its holder dies.

Fair: whoever waits holds the entrance, so that a process that wants its next turn at once comes after it.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from contextlib import suppress
from typing import NamedTuple

_AT = 1 << 30  # the byte that is locked on Windows: what is written at the beginning stays readable
_LONG = 1.0  # seconds; a turn that others may want to know of
_REMEMBERED = 3600.0  # seconds
_FAST, _SLOW = 0.001, 0.005  # seconds between two tries, for the one who is next and for the others


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int) -> bool:
        os.lseek(file, _AT, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int) -> None:
        os.lseek(file, _AT, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


class TurnRecord(NamedTuple):
    """What the locked file says: whose turn it is, and how long turns have been. Times are monotonic."""

    pid: int = 0
    began: float = 0.0
    ended: float = 0.0  # 0: it goes on, or its process died in it
    long_seconds: float = 0.0  # the longest turn of late
    long_ended: float = 0.0

    def after(self, seconds: float, ended: float) -> TurnRecord:
        """The record once a turn of so many seconds has ended."""
        is_past = not 0.0 <= ended - self.long_ended < _REMEMBERED
        if seconds < _LONG or (seconds < self.long_seconds and not is_past):
            return self
        return self._replace(long_seconds=seconds, long_ended=ended)


class FileLock:
    """The right to a turn with one database file."""

    def __init__(self, path: str) -> None:
        self._turn_path = f"{path}.turn"
        self._entrance_path = f"{path}.next"
        self._held: int | None = None
        self._record = TurnRecord()

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock; False if somebody else has it for longer than that."""
        deadline = time.monotonic() + timeout
        entrance, turn = _opened(self._entrance_path), -1
        try:
            if not _wait_for(entrance, deadline, _SLOW):
                return False
            turn = _opened(self._turn_path)
            if not _wait_for(turn, deadline, _FAST):
                return False
            now, last = time.monotonic(), _read(turn)
            was_killed = last.pid and not last.ended  # a new file says nothing: nobody has had a turn yet
            if was_killed and 0.0 < now - last.began < _REMEMBERED:
                last = last.after(now - last.began, now)
            self._record = last._replace(pid=os.getpid(), began=now, ended=0.0)
            _write(turn, self._record)
            self._held, turn = turn, -1
            return True
        finally:
            _close(entrance)  # which unlocks it
            if turn >= 0:
                _close(turn)

    @property
    def is_held(self) -> bool:
        """Whether this process has it; in a forked child: whether its parent had."""
        return self._held is not None

    def release(self) -> None:
        """Let the next one have it."""
        held, self._held = self._held, None
        if held in _open_files:
            now = time.monotonic()
            _write(held, self._record.after(now - self._record.began, now)._replace(ended=now))
            _unlock(held)
            _close(held)

    def record(self) -> TurnRecord:
        """Who has it, or had it last."""
        try:
            file = os.open(self._turn_path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError:
            return TurnRecord()
        try:
            return _read(file)
        finally:
            os.close(file)


def _read(file: int) -> TurnRecord:
    os.lseek(file, 0, os.SEEK_SET)
    try:
        pid, *times = os.read(file, 200).split()
        return TurnRecord(int(pid), *map(float, times))
    except (ValueError, TypeError):
        return TurnRecord()


def _write(file: int, record: TurnRecord) -> None:
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, " ".join(map(str, record)).encode().ljust(200))


_guard = threading.Lock()
_open_files: set[int] = set()


def _opened(path: str) -> int:
    """Open a file that no program inherits which this process starts (Python sees to that)."""
    with _guard:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        _open_files.add(file)
        return file


def _close(file: int) -> None:
    with _guard, suppress(OSError):
        _open_files.discard(file)
        os.close(file)


def _close_copies() -> None:
    """In a forked child: a lock lasts until the last copy of its file is closed, ours among them.

    It is not unlocked: that would end the lock of the parent.
    """
    for file in _open_files:
        with suppress(OSError):
            os.close(file)
    _open_files.clear()
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_copies)


def _wait_for(file: int, deadline: float, pause: float) -> bool:
    while not _try_lock(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - so that those who wait do not march in step
    return True
