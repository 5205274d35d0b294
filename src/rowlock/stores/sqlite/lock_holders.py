"""Finds a transaction that this process itself has open on a file: a call may be waiting for its own caller.

Looks only at connections that are there. Never opens the file: to close it would drop SQLite's locks.
"""

from __future__ import annotations

import gc
import math
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from rowlock.stores.sqlite.connections import Connection

# The bytes that SQLite locks for writing: in the index beside the log, and without a log in the file itself.
_WAL_WRITE_BYTE, _RESERVED_BYTE = 120, 0x40000001


class OpenTransaction(NamedTuple):
    """An open transaction of this process; equal to an earlier look at it if it has written nothing since."""

    connection: int
    changes: int
    on_file: bool  # False: perhaps; its file could not be asked for


def open_transaction(file: str) -> OpenTransaction | None:
    """A transaction that is open on this file, else one whose file is unknown, else None."""
    found: list[OpenTransaction] = []
    for connection in _connections():
        with suppress(sqlite3.Error):  # closed meanwhile
            if connection.in_transaction:
                on_file = _is_on(connection, _normal(file))
                if on_file is not False:
                    found.append(OpenTransaction(id(connection), connection.total_changes, bool(on_file)))
    return max(found, key=lambda one: one.on_file, default=None)


def _connections() -> list[sqlite3.Connection]:
    """The user's own, and those lent to a task in this thread; all others of rowlock's commit soon."""
    # Not isinstance: it asks other libraries' lazy objects for their class, which may do anything.
    every = [one for one in gc.get_objects() if issubclass(type(one), sqlite3.Connection)]
    me = threading.get_ident()
    return [one for one in every if not isinstance(one, Connection) or one.lent_to == me]


def _is_on(connection: sqlite3.Connection, file: str) -> bool | None:
    """Whether its transaction is on this file; None if that cannot be known.

    Runs a statement only on a connection that no other thread can close: Python crashes if one is closed
    while its statement runs.
    """
    if isinstance(connection, Connection):
        return _normal(connection.file) == file
    if not _is_for_this_thread(connection):
        return None
    if _is_for_another_thread(connection):  # for all, then; most libraries' are
        return _holds_write_lock(file)
    # A plain cursor: the connection's own may make rows of another shape, or begin something.
    with closing(sqlite3.Cursor(connection)) as cursor:
        rows = cursor.execute("PRAGMA database_list").fetchall()
    return file in {_normal(os.fsdecode(name)) for _, _, name in rows if name}


def _is_for_this_thread(connection: sqlite3.Connection) -> bool:
    try:
        sqlite3.Cursor(connection)  # runs nothing, but looks whether the thread is the right one
    except sqlite3.ProgrammingError:
        return False
    return True


def _is_for_another_thread(connection: sqlite3.Connection) -> bool:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(_is_for_this_thread(connection)), daemon=True)
    thread.start()
    thread.join()
    return answers[0]


def _holds_write_lock(file: str) -> bool | None:
    """Whether this process has the write lock of a file; None where that is not shown: only Linux does."""
    locks = [(_WAL_WRITE_BYTE, *lock) for lock in _locks(f"{file}-shm")]
    locks += [(_RESERVED_BYTE, *lock) for lock in _locks(file)]
    if not locks:  # not even a reader's
        return None
    return any(kind == "WRITE" and first <= byte <= last for byte, kind, first, last in locks)


def _locks(file: str) -> Iterator[tuple[str, int, float]]:
    """The locks that this process has on a file it has open: READ or WRITE, first and last byte."""
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{descriptor}") == file:
                for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
                    if line.startswith("lock:"):  # lock: 1: POSIX ADVISORY WRITE 4711 fe:00:2204289 120 120
                        *_, kind, _, _, first, last = line.split()
                        yield kind, int(first), math.inf if last == "EOF" else int(last)


def _normal(file: str) -> str:
    return os.path.normcase(os.path.realpath(file))
