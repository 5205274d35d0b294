"""What SQLite's errors mean for the person who sees them.

Looks around where the reason may be found; nothing here opens or retries anything.
"""

from __future__ import annotations

import os
import shutil
import sqlite3

from rowlock.errors import DataRefused, DiskTrouble, StoreBusy, StoreError, StoreUnusable
from rowlock.stores.sqlite.lock_holders import open_transaction

_FULL = "the disk that holds {path} is full; nothing was written, free some space"
_NOWHERE = "{path} cannot be opened: check that its folder exists and can be written"
_BUSY = "another connection holds the write lock of {path}; the call can simply be made again"
_OWN = (
    "another connection holds the write lock of {path}, and {whose}. If that is the caller's own session, "
    "the call waits for itself: enqueue in it with `task.using(session).enqueue(...)`, or commit it before "
    "the call. If not, the call can simply be made again"
)
_LEAST_ROOM = 64 * 1024  # bytes; the index beside the log, which every first connection makes, takes 32 KB

# Python 3.10 has no sqlite_errorcode, so the text that SQLite gives is what all versions share.
_SENTENCES: tuple[tuple[str, type[StoreError], str], ...] = (
    ("locked", StoreBusy, _BUSY),
    ("busy", StoreBusy, _BUSY),
    ("full", DiskTrouble, _FULL),
    ("readonly", DiskTrouble, "{path} cannot be written: check the rights of the file and of its folder"),
    (
        "malformed",
        StoreUnusable,
        "{path} is damaged; restore a backup, or try `.recover` in the sqlite3 shell",
    ),
    (
        "not a database",
        StoreUnusable,
        "{path} is not a SQLite database: name another file, or restore a backup if it was one",
    ),
    (
        "unable to open",
        DiskTrouble,
        "{path} cannot be opened: check the rights of the file, and that its folder can be written",
    ),
    ("disk i/o", DiskTrouble, "reading or writing {path} failed; look at the disk and the system's log"),
)
# What SQLite calls an operational error, though it is about the row or comes from a trigger.
_ABOUT_DATA = ("malformed json", "no such function", "user-defined function", "integer overflow")


def is_moved(error: sqlite3.Error) -> bool:
    """True if it was raised by the triggers that `rowlock copy` leaves behind."""
    return isinstance(error, sqlite3.IntegrityError) and str(error).startswith("this rowlock queue has moved")


def explain(error: sqlite3.Error, path: str, file: str) -> StoreError:
    """The store's own error for what SQLite raised; `path` is the file as its user wrote it."""
    text = str(error)
    if _is_about_data(error):  # first: a trigger's message may have any word in it
        return DataRefused(f"SQLite refused on {path}: {text}", text)
    for word, kind, sentence in _SENTENCES:
        if word in text.lower():
            if kind is StoreBusy:
                return _busy(text, path, file)
            known = _looked_at(word, file) or (kind, sentence)
            return known[0](f"{known[1].format(path=path)} (SQLite: {text})")
    return StoreError(f"SQLite refused on {path}: {text}")


def _busy(text: str, path: str, file: str) -> StoreBusy:
    """Who waits for the write lock while a session in the same program is open may wait for that."""
    own = open_transaction(file)
    if own is None:
        return StoreBusy(f"{_BUSY.format(path=path)} (SQLite: {text})")
    whose = (
        "this program itself has a transaction open on it"
        if own.on_file
        else "this program itself has a transaction open, perhaps on it"
    )
    error = StoreBusy(f"{_OWN.format(path=path, whose=whose)} (SQLite: {text})")
    error.own_transaction = own if own.on_file else None
    return error


def _is_about_data(error: sqlite3.Error) -> bool:
    """True if it is about what was to be written, and not about the file or its lock."""
    if isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
        return True
    text = str(error).lower()
    return isinstance(error, sqlite3.OperationalError) and any(word in text for word in _ABOUT_DATA)


def _looked_at(word: str, file: str) -> tuple[type[StoreError], str] | None:
    """What only a look at the disk can tell."""
    if word == "unable to open" and not _has_place(file):
        return StoreUnusable, _NOWHERE
    # There is no room for -shm, or for another file in the folder.
    return (DiskTrouble, _FULL) if word in {"unable to open", "disk i/o"} and _is_full(file) else None


def _has_place(file: str) -> bool:
    """False if there cannot be such a file: its folder is missing, or it is a folder itself."""
    real = os.path.realpath(file)
    return os.path.isdir(os.path.dirname(real)) and not os.path.isdir(real)


def _is_full(file: str) -> bool:
    try:
        return shutil.disk_usage(os.path.dirname(file)).free < _LEAST_ROOM
    except OSError:
        return False
