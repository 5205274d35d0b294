"""Values in users' rows that a driver or Python cannot hold: no such row stops the others."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import pytest

from rowlock import Flag, Rowlock
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab

UTC = timezone.utc
FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - as timestamp is


def nothing(row: Row) -> None:
    """A consumer's function that does nothing."""


def table_of(lab: Lab, kind: str, value: str) -> str:
    """Three rows, the second with this value."""
    table = f"{lab.prefix}odd"
    lab.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, odd {kind}, flag BOOLEAN)")
    lab.execute(f"INSERT INTO {table} (id, odd) VALUES (1, NULL), (2, {value}), (3, NULL)")
    return table


def seen_by(app: Rowlock, table: str, **chosen: Any) -> dict[int, Any]:
    seen = {}

    def note(row: Row) -> None:
        seen[row.id] = row.odd

    app.consumer("odd", table=table, flag=Flag("flag"), **chosen)(note)
    app.consume("odd", until_empty=True, concurrency=1)
    return seen


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("timestamp", "infinity", LAST),
        ("timestamp", "-infinity", FIRST),
        ("timestamp", "20000-01-01", LAST),
        ("timestamptz", "infinity", LAST.replace(tzinfo=UTC)),
        ("timestamptz", "-infinity", FIRST.replace(tzinfo=UTC)),
        ("timestamptz(0)", "2026-05-01 10:00:00Z", datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("date", "infinity", date.max),
        ("date", "0044-03-15 BC", date.min),
        ("time", "24:00", time.max),
        ("interval", "-100000000 years", timedelta(days=-999_999_999)),
        ("json", '{"half a character": "\\ud800"}', '{"half a character": "\\ud800"}'),
        ("json", "1e999", "1e999"),
        ("jsonb", '{"n": 1000000000000000000000000}', {"n": 10**24}),
    ],
)
def test_what_python_cannot_hold_comes_as_the_nearest_that_it_can(
    lab: Lab, kind: str, text: str, value: Any
) -> None:
    if lab.is_sqlite:
        pytest.skip("SQLite has no such types")
    assert seen_by(lab.app(), table_of(lab, kind, f"'{text}'")) == {1: None, 2: value, 3: None}


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "date"])
def test_a_row_that_has_been_due_for_ever_runs_and_one_that_never_is_does_not(lab: Lab, kind: str) -> None:
    if lab.is_sqlite:
        pytest.skip("SQLite has no infinite times")
    table = table_of(lab, kind, "'-infinity'")
    lab.execute(f"UPDATE {table} SET odd = 'infinity' WHERE id = 3")
    assert list(seen_by(lab.app(), table, due_at="odd")) == [1, 2]


@pytest.mark.parametrize("order_by", ["id", "odd"])
def test_a_text_that_is_no_utf_8_comes_as_bytes(lab: Lab, order_by: str) -> None:
    if not lab.is_sqlite:
        pytest.skip("PostgreSQL refuses such a text")
    app, table = lab.app(), table_of(lab, "TEXT", "CAST(x'ff41' AS TEXT)")
    lab.execute(f"UPDATE {table} SET odd = 'grün' WHERE id = 3")
    app.consumer("first", table=table, flag=Flag("flag"), order_by="odd", where="id = 2")(nothing)
    assert app.consumer_source("first").record().oldest_due == b"\xffA"
    assert seen_by(app, table, order_by=order_by) == {1: None, 2: b"\xffA", 3: "grün"}
