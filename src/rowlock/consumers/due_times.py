"""How the column that `due_at=` names is compared with the clock: as a time, never as text.

Only data, by database and by the type of the column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
SECONDS = """CASE WHEN typeof(«due_at») IN ('integer', 'real') THEN «due_at»
    ELSE coalesce((julianday(«due_at») - 2440587.5) * 86400.0,
                  CASE WHEN «due_at» NOT GLOB '*[^0-9.]*' THEN CAST(«due_at» AS REAL) END) END"""
_EPOCH = "CAST(extract(epoch FROM {0}) AS double precision)"
NOT_A_TIME = f"«due_at» IS NOT NULL AND ({SECONDS}) IS NULL"
DUE_TIMES = {
    "sqlite": (
        DueTime(
            lambda declared: not declared or any(word in declared.upper() for word in _SQLITE_TYPES),
            f"(«due_at» IS NULL OR {SECONDS} <= {{now}})",
            f"min({SECONDS})",
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

# How SQLite writes the current time into a column that takes anything.
NUMBERS = {"integer": "CAST({now} AS INTEGER)", "real": "{now}"}
_WRITTEN = re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?")


def time_form(value: Any) -> str:
    """The form of one time, for `strftime` (or "integer" or "real"); without one, CURRENT_TIMESTAMP's."""
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) else "real"
    match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return "%Y-%m-%d %H:%M:%S"
    between, seconds, fraction, zone = match.groups()
    digits = "" if fraction is None else "0" * max(0, len(fraction) - 4)  # of which it writes three
    written = ":%S" if fraction is None else f":%f{digits}"
    return f"%Y-%m-%d{between}%H:%M{written if seconds else ''}{zone or ''}"
