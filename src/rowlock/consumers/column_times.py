"""How columns hold a time, by database and by type: written, compared with the clock, read as Unix seconds.

Only data. A time is always compared as a time, never as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

Fits = Callable[[str], bool]


class DueTime(msgspec.Struct, frozen=True):
    """How the column that `due_at=` names is compared with the clock; in the SQL, «due_at» is that column."""

    due: str  # whether a row is due; null means that it is
    next: str  # of rows that are not due: when the first of them will be, in Unix seconds
    indexed: str  # the expression that an index needs so that it answers both


class ColumnTime(msgspec.Struct, frozen=True):
    """How columns of some types hold a time; in the SQL, {0} is the column."""

    fits: Fits
    now: str  # the current time as the column holds it
    seconds: str  # the column as Unix seconds
    is_older: str  # whether the time is older than :age
    due_time: DueTime | None = None  # None: `due_at=` cannot name such a column

    def older(self, column: str) -> str:
        """Whether the time in this column is older than :age."""
        return self.is_older.replace("{0}", column)


def typed(pattern: str) -> Fits:
    """Whether the name of a type begins like this pattern, in any case."""
    match = re.compile(pattern, re.IGNORECASE | re.DOTALL).match
    return lambda declared: match(declared) is not None


def _compared(types: str, now: str, seconds: str, least: str = "", due_now: str = "") -> ColumnTime:
    """Compared as the column holds it; `least` stands for a null in the column of `due_at=`."""
    column = f"coalesce(«due_at», {least})"  # one comparison, which an index can answer; with OR it cannot
    due = DueTime(f"{column} <= {due_now or now}", seconds.replace("{0}", f"min({column})"), f"({column})")
    is_older = f"{{0}} < {now.replace('{now}', '{now-age}')}"
    return ColumnTime(typed(types), now, seconds, is_older, due if least else None)


# How SQLite writes the current time as a number.
NUMBERS = {"integer": "CAST({now} AS INTEGER)", "real": "{now}"}
# SQLite, value by value: a number, also one in a text, is Unix seconds; all else is as SQLite reads a time.
_SECONDS = """CASE WHEN typeof({0}) IN ('integer', 'real') THEN {0}
    ELSE coalesce((julianday({0}) - 2440587.5) * 86400.0,
                  CASE WHEN {0} NOT GLOB '*[^0-9.]*' THEN CAST({0} AS REAL) END) END"""
_SQLITE_TEXT = ("strftime('«iso»', {now}, 'unixepoch')", _SECONDS, f"{_SECONDS} < {{now-age}}")
_DUE_SECONDS = _SECONDS.replace("{0}", "«due_at»")
_SQLITE_DUE = DueTime(f"(«due_at» IS NULL OR {_DUE_SECONDS} <= {{now}})", f"min({_DUE_SECONDS})", "«due_at»")
NOT_A_TIME = f"«due_at» IS NOT NULL AND ({_DUE_SECONDS}) IS NULL"
SQLITE = (
    ColumnTime(typed(".*INT"), NUMBERS["integer"], "{0}", "{0} < {now-age}", _SQLITE_DUE),
    ColumnTime(typed(".*(REAL|FLOA|DOUB)"), NUMBERS["real"], "{0}", "{0} < {now-age}", _SQLITE_DUE),
    ColumnTime(typed("$|.*(DATE|TIME|TEXT|CHAR|NUM|DEC)"), *_SQLITE_TEXT, _SQLITE_DUE),
    ColumnTime(typed(""), *_SQLITE_TEXT),
)

_EPOCH = "CAST(extract(epoch FROM {0}) AS double precision)"
_UTC_EPOCH = _EPOCH.format("timezone('UTC', {0})")
_DATE_EPOCH = _EPOCH.format("timezone('UTC', CAST({0} AS timestamp))")
_NUMBER = ("extract(epoch FROM {now})", "CAST({0} AS double precision)")
_WHOLE = "CAST(floor(extract(epoch FROM {now})) AS bigint)"
_UTC_NOW = "timezone('UTC', {now})"
_INFINITY = "CAST('-infinity' AS {0})"
POSTGRESQL = (
    _compared("timestamp.*with time zone", "{now}", _EPOCH, _INFINITY.format("timestamptz")),
    _compared(".*with time zone", "{now}", _EPOCH),
    _compared(".*timestamp", _UTC_NOW, _UTC_EPOCH, _INFINITY.format("timestamp")),
    _compared("date$", f"CAST({_UTC_NOW} AS date)", _DATE_EPOCH, _INFINITY.format("date")),
    _compared("(bigint|integer)$", *_NUMBER, "0", _WHOLE),
    _compared("(double precision|real)$|numeric", *_NUMBER, "0", _EPOCH.format("{now}")),
    _compared(".*(int|double|real|numeric)", *_NUMBER),
    ColumnTime(
        typed(""),
        "CAST({now} AS text)",
        "CAST(NULL AS double precision)",
        "CAST({0} AS timestamptz) < {now-age}",
    ),
)

_UTC = "make_timestamp(CAST({now} * 1000000 AS BIGINT))"  # DuckDB's TIMESTAMP has no zone
DUCKDB = (
    _compared(
        "TIMESTAMP WITH TIME ZONE$", "to_timestamp({now})", "epoch({0})", _INFINITY.format("timestamptz")
    ),
    _compared(".*WITH TIME ZONE", "to_timestamp({now})", "epoch({0})"),
    _compared("TIMESTAMP", _UTC, "epoch({0})", _INFINITY.format("timestamp")),
    _compared("DATE$", f"CAST({_UTC} AS DATE)", "epoch({0})", _INFINITY.format("date"), _UTC),
    _compared(".*(INT|DOUBLE|FLOAT|DECIMAL)", "{now}", "CAST({0} AS DOUBLE)", "0"),
    ColumnTime(
        typed(""),
        f"CAST({_UTC} AS VARCHAR)",
        "CAST(NULL AS DOUBLE)",
        f"TRY_CAST({{0}} AS TIMESTAMP) < {_UTC.replace('{now}', '{now-age}')}",
    ),
)

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
