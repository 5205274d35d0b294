"""Finds a transaction that this process itself has open on a file: a call may be waiting for its own caller.

Looks only at connections that are there. Never opens the file: to close it would drop SQLite's locks.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from contextlib import closing, suppress
from functools import cache
from typing import NamedTuple

from rowlock.stores.sqlite.connections import Connection

_ANSWER_SECONDS = 1.0


class OpenTransaction(NamedTuple):
    """An open transaction of this process; equal to an earlier look at it if it has written nothing since."""

    connection: int
    changes: int
    on_file: bool  # False: it belongs to another thread, and its file could not be asked for


def open_transaction(file: str) -> OpenTransaction | None:
    """A transaction that is open on this file, else one whose file is unknown, else None."""
    found: list[OpenTransaction] = []
    for connection in _connections():
        with suppress(sqlite3.Error):  # closed meanwhile
            if connection.in_transaction:
                files = _files(connection)
                if files is None or _normal(file) in files:
                    found.append(OpenTransaction(id(connection), connection.total_changes, files is not None))
    return max(found, key=lambda one: one.on_file, default=None)


def _connections() -> list[sqlite3.Connection]:
    """The user's own, and those lent to a task in this thread; all others of rowlock's commit soon."""
    # Not isinstance: it asks other libraries' lazy objects for their class, which may do anything.
    every = [one for one in gc.get_objects() if issubclass(type(one), sqlite3.Connection)]
    me = threading.get_ident()
    return [one for one in every if not isinstance(one, Connection) or one.lent_to == me]


def _files(connection: sqlite3.Connection) -> set[str] | None:
    """The files that a connection has open; None if it cannot be asked.

    A connection that runs a statement does not answer before that ends, so it is asked in a thread that need
    not be waited for. Such a connection is not our caller's, who is in here: it counts as having no files.
    """
    if not _may_be_shared():
        return None
    answers: list[set[str] | None] = []

    def ask() -> None:
        try:
            answers.append(_read_files(connection))
        except sqlite3.Error:  # it is bound to the thread that made it
            answers.append(None)

    thread = threading.Thread(target=ask, name="rowlock-holders", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if not answers:
        return set()
    try:
        return answers[0] or _read_files(connection)
    except sqlite3.Error:  # that is not this thread, either
        return None


def _read_files(connection: sqlite3.Connection) -> set[str]:
    # A plain cursor: the connection's own may make rows of another shape, or begin something.
    with closing(sqlite3.Cursor(connection)) as cursor:
        rows = cursor.execute("PRAGMA database_list").fetchall()
    return {_normal(os.fsdecode(file)) for _, _, file in rows if file}


def _normal(file: str) -> str:
    return os.path.normcase(os.path.realpath(file))


@cache
def _may_be_shared() -> bool:
    """Whether two threads may use one connection at the same time; with Apple's own SQLite they may not."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return ("THREADSAFE=1",) in connection.execute("PRAGMA compile_options").fetchall()
