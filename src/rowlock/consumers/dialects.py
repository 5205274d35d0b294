"""What differs between databases for a user's table, beside their statements. Only data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rowlock.consumers import column_times
from rowlock.consumers.column_times import ColumnTime, Fits, typed
from rowlock.job import utc


def _json(text: str) -> Any:
    """The value of a JSON text; the text itself if it cannot be read (1e999, half a surrogate pair)."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One database."""

    cuts: Fits = typed("(?!)")  # whether a column of this type cuts a word that is too long
    times: tuple[ColumnTime, ...]  # by type: the first that fits counts, and the last fits all
    explain: str = "EXPLAIN "  # what shows the plan of a statement
    load: Mapping[str, Callable[[Any], Any]] = {}  # by type: from the store's value to the driver's
    hints: bool = False  # a statement can name its index (INDEXED BY), and should
    create: str = ""  # how an index is created without blocking writers; empty: no partial indexes
    drop: str = ""
    note_inside: str = ""  # how an index's fingerprint is written into the statement that creates it
    note_after: str = ""  # or by a statement after it
    percent: str = "%"  # how % is written: some drivers read it as the start of a parameter
    parameter: str = ":{0}"
    as_text: str = "CAST({0} AS text)"  # how a value is read that is bound again later
    as_type: str = "CAST({0} AS {1})"  # how that value is bound, as the column's type
    as_whole: str = "{0}"  # how a number is written into a column of whole numbers
    nulls_after: str = ">"  # signs of an order in which nulls come last: > is ascending, < descending
    temporary: str = ""  # the schema of temporary tables
    trial_index: str = ""  # an index on an empty copy there: to try out which conditions it may have
    trial_generated: str = ""  # a copy with generated columns, if an index must not have all of these

    def column_time(self, kind: str) -> ColumnTime:
        """How columns of this type hold a time."""
        return next(one for one in self.times if one.fits(kind))


DIALECTS = {
    "sqlite": Dialect(
        times=column_times.SQLITE,
        explain="EXPLAIN QUERY PLAN ",
        hints=True,
        create="CREATE INDEX IF NOT EXISTS",
        drop="DROP INDEX IF EXISTS",
        note_inside=" /* {0} */",
        as_text="{0}",
        as_type="{0}",
        nulls_after="<",
        as_whole="CAST(round({0}) AS INTEGER)",  # it keeps fractions, and a STRICT table refuses
        temporary="temp",
        trial_index="CREATE INDEX temp.rowlock_trial ON {t} ({key}) WHERE (\n{part}\n)",
    ),
    "postgresql": Dialect(
        cuts=typed(".*CHAR"),
        times=column_times.POSTGRESQL,
        load={
            "timestamp with time zone": lambda value: None if value is None else utc(value),
            "json": lambda value: None if value is None else _json(value),
        },
        create="CREATE INDEX CONCURRENTLY IF NOT EXISTS",
        drop="DROP INDEX CONCURRENTLY IF EXISTS",
        note_after="COMMENT ON INDEX {1} IS '{0}'",
        percent="%%",
        parameter="%({0})s",
        temporary="pg_temp",
        trial_index="CREATE INDEX rowlock_trial ON pg_temp.{t} ({key}) WHERE (\n{part}\n)",
        trial_generated="CREATE TEMP TABLE {t} (LIKE {table} INCLUDING GENERATED)",
    ),
    "duckdb": Dialect(times=column_times.DUCKDB, nulls_after="<>"),
}
