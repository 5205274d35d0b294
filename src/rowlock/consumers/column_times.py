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
    due_time: DueTime | None = None  # None: `due_at=` cannot name such a column
    compared: str = "{0}"  # the column, so that it can be compared with `limit`
    limit: str = ""  # the moment :age seconds ago; empty: as `now` writes it

    def older(self, column: str) -> str:
        """Whether the time in this column is older than :age."""
        limit = self.limit or self.now.replace("{now}", "{now-age}")
        return f"{self.compared.replace('{0}', column)} < {limit}"


def typed(pattern: str) -> Fits:
    """Whether the name of a type begins like this pattern, in any case."""
    match = re.compile(pattern, re.IGNORECASE | re.DOTALL).match
    return lambda declared: match(declared) is not None


def _postgresql(types: str, now: str, seconds: str, least: str = "", due_now: str = "") -> ColumnTime:
    """`least` stands for a null in the column of `due_at=`."""
    column = f"coalesce(«due_at», {least})"  # one comparison, which an index can answer; with OR it cannot
    due = DueTime(f"{column} <= {due_now or now}", seconds.replace("{0}", f"min({column})"), f"({column})")
    return ColumnTime(typed(types), now, seconds, due if least else None)


def _duckdb(types: str, now: str, seconds: str, due_now: str = "") -> ColumnTime:
    due = DueTime(f"(«due_at» IS NULL OR «due_at» <= {due_now})", seconds.replace("{0}", "min(«due_at»)"), "")
    return ColumnTime(typed(types), now, seconds, due if due_now else None)


# How SQLite writes the current time as a number.
NUMBERS = {"integer": "CAST({now} AS INTEGER)", "real": "{now}"}
# SQLite, value by value: a number, also one in a text, is Unix seconds; all else is as SQLite reads a time.
_SECONDS = """CASE WHEN typeof({0}) IN ('integer', 'real') THEN {0}
    ELSE coalesce((julianday({0}) - 2440587.5) * 86400.0,
                  CASE WHEN {0} NOT GLOB '*[^0-9.]*' THEN CAST({0} AS REAL) END) END"""
_DUE_SECONDS = _SECONDS.replace("{0}", "«due_at»")
_SQLITE_DUE = DueTime(f"(«due_at» IS NULL OR {_DUE_SECONDS} <= {{now}})", f"min({_DUE_SECONDS})", "«due_at»")
_SQLITE_TEXT = ColumnTime(
    typed("$|.*(DATE|TIME|TEXT|CHAR|NUM|DEC)"),
    "strftime('«iso»', {now}, 'unixepoch')",
    "(julianday({0}) - 2440587.5) * 86400.0",
    _SQLITE_DUE,
    _SECONDS,
    "{now-age}",
)
NOT_A_TIME = f"«due_at» IS NOT NULL AND ({_DUE_SECONDS}) IS NULL"

_EPOCH = "CAST(extract(epoch FROM {0}) AS double precision)"
_UTC_EPOCH = _EPOCH.format("timezone('UTC', {0})")
_DATE_EPOCH = _EPOCH.format("timezone('UTC', CAST({0} AS timestamp))")
_NUMBER = ("extract(epoch FROM {now})", "CAST({0} AS double precision)")
_WHOLE = "CAST(floor(extract(epoch FROM {now})) AS bigint)"
_UTC_NOW = "timezone('UTC', {now})"
_INFINITY = "CAST('-infinity' AS {0})"
_UTC = "make_timestamp(CAST({now} * 1000000 AS BIGINT))"  # DuckDB's TIMESTAMP has no zone

SQLITE = (
    ColumnTime(typed(".*INT"), NUMBERS["integer"], "{0}", _SQLITE_DUE, limit="{now-age}"),
    ColumnTime(typed(".*(REAL|FLOA|DOUB)"), NUMBERS["real"], "{0}", _SQLITE_DUE),
    _SQLITE_TEXT,
    msgspec.structs.replace(_SQLITE_TEXT, fits=typed(""), due_time=None),
)
POSTGRESQL = (
    _postgresql("timestamp.*with time zone", "{now}", _EPOCH, _INFINITY.format("timestamptz")),
    _postgresql(".*with time zone", "{now}", _EPOCH),
    _postgresql(".*timestamp", _UTC_NOW, _UTC_EPOCH, _INFINITY.format("timestamp")),
    _postgresql("date$", f"CAST({_UTC_NOW} AS date)", _DATE_EPOCH, _INFINITY.format("date")),
    _postgresql("(bigint|integer)$", *_NUMBER, "0", _WHOLE),
    _postgresql("(double precision|real)$|numeric", *_NUMBER, "0", _EPOCH.format("{now}")),
    _postgresql(".*(int|double|real|numeric)", *_NUMBER),
    ColumnTime(
        typed(""),
        "CAST({now} AS text)",
        "CAST(NULL AS double precision)",
        compared="CAST({0} AS timestamptz)",
        limit="{now-age}",
    ),
)
DUCKDB = (
    _duckdb("TIMESTAMP WITH TIME ZONE$", "to_timestamp({now})", "epoch({0})", "to_timestamp({now})"),
    _duckdb(".*WITH TIME ZONE", "to_timestamp({now})", "epoch({0})"),
    _duckdb("TIMESTAMP", _UTC, "epoch({0})", _UTC),
    _duckdb("DATE$", f"CAST({_UTC} AS DATE)", "epoch({0})", _UTC),
    _duckdb(".*(INT|DOUBLE|FLOAT|DECIMAL)", "{now}", "CAST({0} AS DOUBLE)", "{now}"),
    ColumnTime(
        typed(""),
        f"CAST({_UTC} AS VARCHAR)",
        "CAST(NULL AS DOUBLE)",
        compared="TRY_CAST({0} AS TIMESTAMP)",
        limit=_UTC.replace("{now}", "{now-age}"),
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
