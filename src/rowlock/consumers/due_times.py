"""How the column that `due_at=` names is compared with the clock: as a time, never as text.

Only data, by database and by the type of the column.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class DueTime(msgspec.Struct, frozen=True):
    """Columns of one kind; in the pieces of SQL, «due_at» is the column."""

    fits: Callable[[str], bool]
    due: str  # whether a row is due; null means that it is
    next: str  # of rows that are not: when the first of them will be, in Unix seconds
    indexed: str  # what an index needs of the column so that both need nothing else


def _postgresql(fits: Callable[[str], bool], least: str, now: str, seconds: str) -> DueTime:
    column = f"coalesce(«due_at», {least})"  # one comparison, which an index can answer; with OR it cannot
    return DueTime(fits, f"{column} <= {now}", seconds.format(f"min({column})"), f"({column})")


_SQLITE_TYPES = ("DATE", "TIME", "TEXT", "CHAR", "INT", "REAL", "FLOA", "DOUB", "NUM", "DEC")
# Each value by itself: a number, also one in a text, is Unix seconds; all else is as SQLite reads a time.
_SECONDS = """CASE WHEN typeof(«due_at») IN ('integer', 'real') THEN «due_at»
    ELSE coalesce((julianday(«due_at») - 2440587.5) * 86400.0,
                  CASE WHEN «due_at» NOT GLOB '*[^0-9.]*' THEN CAST(«due_at» AS REAL) END) END"""
_EPOCH = "CAST(extract(epoch FROM {0}) AS double precision)"
NOT_A_TIME = f"«due_at» IS NOT NULL AND ({_SECONDS}) IS NULL"
DUE_TIMES = {
    "sqlite": (
        DueTime(
            lambda declared: not declared or any(word in declared.upper() for word in _SQLITE_TYPES),
            f"(«due_at» IS NULL OR {_SECONDS} <= {{now}})",
            f"min({_SECONDS})",
            "«due_at»",
        ),
    ),
    "postgresql": (
        _postgresql(
            lambda declared: declared.startswith("timestamp") and not declared.endswith("without time zone"),
            "CAST('-infinity' AS timestamptz)",
            "{now}",
            _EPOCH,
        ),
        _postgresql(
            lambda declared: declared.startswith("timestamp"),
            "CAST('-infinity' AS timestamp)",
            "timezone('UTC', {now})",
            _EPOCH.format("timezone('UTC', {0})"),
        ),
        _postgresql(
            lambda declared: declared == "date",
            "CAST('-infinity' AS date)",
            "CAST(timezone('UTC', {now}) AS date)",
            _EPOCH.format("timezone('UTC', CAST({0} AS timestamp))"),
        ),
        _postgresql(
            lambda declared: declared in ("bigint", "integer"),
            "0",
            "CAST(floor(extract(epoch FROM {now})) AS bigint)",
            "CAST({0} AS double precision)",
        ),
        _postgresql(
            lambda declared: declared in ("double precision", "real") or declared.startswith("numeric"),
            "0",
            "CAST(extract(epoch FROM {now}) AS double precision)",
            "CAST({0} AS double precision)",
        ),
    ),
}
