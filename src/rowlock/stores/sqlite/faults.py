"""What SQLite's errors mean for the person who sees them.

Only words: nothing here opens or retries anything.
"""

from __future__ import annotations

import sqlite3

from rowlock.errors import StoreBusy, StoreError, StoreUnusable

# Python 3.10 has no sqlite_errorcode, so the text that SQLite gives is what all versions share.
_SENTENCES: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "locked",
        StoreBusy,
        "another connection holds the write lock of {path}; the call can simply be made again",
    ),
    (
        "busy",
        StoreBusy,
        "another connection holds the write lock of {path}; the call can simply be made again",
    ),
    ("full", StoreUnusable, "the disk that holds {path} is full; nothing was written, free some space"),
    ("readonly", StoreUnusable, "{path} cannot be written: check the rights of the file and of its folder"),
    (
        "malformed",
        StoreUnusable,
        "{path} is damaged; restore a backup, or try `.recover` in the sqlite3 shell",
    ),
    ("not a database", StoreUnusable, "{path} is not a SQLite database; name another file"),
    (
        "unable to open",
        StoreUnusable,
        "{path} cannot be opened: check that its folder exists and can be written",
    ),
    ("disk i/o", StoreUnusable, "reading or writing {path} failed; look at the disk and the system's log"),
)


def explain(error: sqlite3.Error, path: str) -> StoreError:
    """The store's own error for what SQLite raised."""
    text = str(error)
    for word, kind, sentence in _SENTENCES:
        if word in text.lower():
            return kind(f"{sentence.format(path=path)} (SQLite: {text})")
    return StoreError(f"SQLite refused on {path}: {text}")
