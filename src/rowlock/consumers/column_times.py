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
    older: str  # whether the column is older than :age
    seconds: str  # the column as Unix seconds
    due_time: DueTime | None = None  # None: `due_at=` cannot name such a column


def contains(*words: str) -> Fits:
    """Whether a declared type contains one of the words."""
    return lambda declared: any(word in declared.upper() for word in words)


def _any(declared: str) -> bool:
    return True


def _older(now: str) -> str:
    return "{0} < " + now.replace("{now}", "{now-age}")


def _postgresql(fits: Fits, now: str, seconds: str, least: str = "", due_now: str = "") -> ColumnTime:
    """`least` stands for a null in the column of `due_at=`."""
    column = f"coalesce(«due_at», {least})"  # one comparison, which an index can answer; with OR it cannot
    due = DueTime(f"{column} <= {due_now or now}", seconds.replace("{0}", f"min({column})"), f"({column})")
    return ColumnTime(fits, now, _older(now), seconds, due if least else None)


def _duckdb(fits: Fits, now: str, seconds: str, due_now: str = "") -> ColumnTime:
    due = DueTime(f"(«due_at» IS NULL OR «due_at» <= {due_now})", seconds.replace("{0}", "min(«due_at»)"), "")
    return ColumnTime(fits, now, _older(now), seconds, due if due_now else None)


# How SQLite writes the current time as a number.
NUMBERS = {"integer": "CAST({now} AS INTEGER)", "real": "{now}"}
# SQLite, value by value: a number, also one in a text, is Unix seconds; all else is as SQLite reads a time.
_SECONDS = """CASE WHEN typeof(«due_at») IN ('integer', 'real') THEN «due_at»
    ELSE coalesce((julianday(«due_at») - 2440587.5) * 86400.0,
                  CASE WHEN «due_at» NOT GLOB '*[^0-9.]*' THEN CAST(«due_at» AS REAL) END) END"""
_SQLITE_DUE = DueTime(f"(«due_at» IS NULL OR {_SECONDS} <= {{now}})", f"min({_SECONDS})", "«due_at»")
_SQLITE_TEXT = ColumnTime(
    lambda declared: not declared or contains("DATE", "TIME", "TEXT", "CHAR", "NUM", "DEC")(declared),
    "strftime('«iso»', {now}, 'unixepoch')",
    _SECONDS.replace("«due_at»", "{0}") + " < {now-age}",
    "(julianday({0}) - 2440587.5) * 86400.0",
    _SQLITE_DUE,
)
NOT_A_TIME = f"«due_at» IS NOT NULL AND ({_SECONDS}) IS NULL"

_EPOCH = "CAST(extract(epoch FROM {0}) AS double precision)"
_NUMBER = ("extract(epoch FROM {now})", "CAST({0} AS double precision)")
_UTC = "make_timestamp(CAST({now} * 1000000 AS BIGINT))"  # DuckDB's TIMESTAMP has no zone

COLUMN_TIMES: dict[str, tuple[ColumnTime, ...]] = {
    "sqlite": (
        ColumnTime(contains("INT"), NUMBERS["integer"], "{0} < {now-age}", "{0}", _SQLITE_DUE),
        ColumnTime(contains("REAL", "FLOA", "DOUB"), NUMBERS["real"], "{0} < {now-age}", "{0}", _SQLITE_DUE),
        _SQLITE_TEXT,
        msgspec.structs.replace(_SQLITE_TEXT, fits=_any, due_time=None),
    ),
    "postgresql": (
        _postgresql(
            lambda declared: declared.startswith("timestamp") and "with time zone" in declared,
            "{now}",
            _EPOCH,
            least="CAST('-infinity' AS timestamptz)",
        ),
        _postgresql(contains("WITH TIME ZONE"), "{now}", _EPOCH),
        _postgresql(
            contains("TIMESTAMP"),
            "timezone('UTC', {now})",
            _EPOCH.format("timezone('UTC', {0})"),
            least="CAST('-infinity' AS timestamp)",
        ),
        _postgresql(
            lambda declared: declared == "date",
            "CAST(timezone('UTC', {now}) AS date)",
            _EPOCH.format("timezone('UTC', CAST({0} AS timestamp))"),
            least="CAST('-infinity' AS date)",
        ),
        _postgresql(
            lambda declared: declared in ("bigint", "integer"),
            *_NUMBER,
            least="0",
            due_now="CAST(floor(extract(epoch FROM {now})) AS bigint)",
        ),
        _postgresql(
            lambda declared: declared in ("double precision", "real") or declared.startswith("numeric"),
            *_NUMBER,
            least="0",
            due_now="CAST(extract(epoch FROM {now}) AS double precision)",
        ),
        _postgresql(contains("INT", "DOUBLE", "REAL", "NUMERIC"), *_NUMBER),
        ColumnTime(
            _any,
            "CAST({now} AS text)",
            "CAST({0} AS timestamptz) < {now-age}",
            "CAST(NULL AS double precision)",
        ),
    ),
    "duckdb": (
        _duckdb(
            lambda declared: declared == "TIMESTAMP WITH TIME ZONE",
            "to_timestamp({now})",
            "epoch({0})",
            due_now="to_timestamp({now})",
        ),
        _duckdb(contains("WITH TIME ZONE"), "to_timestamp({now})", "epoch({0})"),
        _duckdb(lambda declared: declared.startswith("TIMESTAMP"), _UTC, "epoch({0})", due_now=_UTC),
        _duckdb(lambda declared: declared == "DATE", f"CAST({_UTC} AS DATE)", "epoch({0})", due_now=_UTC),
        _duckdb(
            contains("INT", "DOUBLE", "FLOAT", "DECIMAL"), "{now}", "CAST({0} AS DOUBLE)", due_now="{now}"
        ),
        ColumnTime(
            _any,
            f"CAST({_UTC} AS VARCHAR)",
            "TRY_CAST({0} AS TIMESTAMP) < " + _UTC.replace("{now}", "{now-age}"),
            "CAST(NULL AS DOUBLE)",
        ),
    ),
}

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
