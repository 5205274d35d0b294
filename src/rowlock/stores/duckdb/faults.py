"""What DuckDB's errors mean for the person who sees them.

Nothing here opens or retries anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rowlock.errors import DataRefused, DiskTrouble, StoreBusy, StoreError, StoreUnusable

if TYPE_CHECKING:
    import duckdb

_HELD = re.compile(r"Conflicting lock is held in (.+?) \(PID (\d+)\)")
_OF_OUR_KEYS = "THEN (unique_key)"  # of the index on unique keys: somebody was faster with the same one
_ABOUT_DATA = ("ConstraintException", "ConversionException", "OutOfRangeException", "InvalidInputException")
_NEWER = "{path} was written by a newer DuckDB than this one ({version}): update the duckdb package"
_FULL = "the disk that holds {path} is full; nothing was written, free some space"


class Clash(StoreBusy):
    """Another transaction changed the same rows at the same time: this one was undone, and is made again."""


class FileHeld(StoreBusy):
    """Another process has the file open: who, for people, and what to do about it."""

    def __init__(self, said: str, cure: str, who: str) -> None:
        super().__init__(f"{said}: {cure}")
        self.said = said
        self.cure = cure
        self.who = who


def explain(error: duckdb.Error, path: str) -> StoreError:
    """The store's own error for what DuckDB raised; `path` is the file as its user wrote it."""
    kind, text = type(error).__name__, str(error)
    lowered = text.lower()
    if kind == "TransactionException" or (kind == "ConstraintException" and _OF_OUR_KEYS in text):
        return Clash(
            f"another transaction changed the same rows of {path} at the same time; the call can simply be "
            f"made again (DuckDB: {text})"
        )
    if "could not set lock" in lowered or "being used by another process" in lowered:
        return _held(text, path)
    if kind in _ABOUT_DATA:
        return DataRefused(f"DuckDB refused on {path}: {text}", text)
    if "no space left" in lowered or "out of disk" in lowered:
        return DiskTrouble(f"{_FULL.format(path=path)} (DuckDB: {text})")
    if "version number" in lowered or ("serialization" in lowered and "newer" in lowered):
        return StoreUnusable(f"{_NEWER.format(path=path, version=_version())} (DuckDB: {text})")
    if "not a valid duckdb database" in lowered:
        return StoreUnusable(f"{path} is not a DuckDB database: name another file (DuckDB: {text})")
    if "different configuration" in lowered:
        return StoreUnusable(
            f"this process has {path} open already, with other settings: give the app what has it open, "
            "Rowlock(engine=...) or Rowlock(connection=...); or let that take turns, as an engine of "
            f"rowlock.duckdb.create_engine(path) does (DuckDB: {text})"
        )
    if "already closed" in lowered:
        return StoreUnusable(f"the connection to {path} is closed (DuckDB: {text})")
    if kind == "FatalException" or "invalidated" in lowered:
        return StoreUnusable(
            f"{path} cannot be used by this process any more: start it anew (DuckDB: {text})"
        )
    if (kind == "IOException" and "permission" in lowered) or "read-only" in lowered:
        return DiskTrouble(
            f"{path} cannot be written: check the rights of the file and its folder (DuckDB: {text})"
        )
    if kind == "IOException" and ("cannot open file" in lowered or "no such file" in lowered):
        return StoreUnusable(f"{path} cannot be opened: check that its folder exists (DuckDB: {text})")
    return StoreError(f"DuckDB refused on {path}: {text}")


def _held(text: str, path: str) -> FileHeld:
    found = _HELD.search(text)
    who = f"process {found[2]} ({found[1]})" if found else "another process"
    return FileHeld(
        f"{path} is open in {who}, and DuckDB lets one process open a file at a time",
        "end that program, or run this inside it with Rowlock(engine=...)",
        who,
    )


def _version() -> str:
    import duckdb

    return str(duckdb.__version__)
