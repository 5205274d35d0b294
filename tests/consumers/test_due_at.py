"""Rows that are not due before a time of their own."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rowlock import ConfigurationError, Rowlock, insights
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest
from tests.consumers.lab import Lab, store_of
from tests.consumers.test_plans import plan
from tests.eventually import eventually
from tests.stores.steps import worker as register

START = 1_900_000_000.0  # 2030-03-17 17:46:40 UTC
FORMS = {
    "sqlite": {
        "text": ("TEXT", "strftime('%Y-%m-%d %H:%M:%S', {0}, 'unixepoch')"),
        "iso": ("DATETIME", "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, 'unixepoch')"),
        "zone": ("TEXT", "strftime('%Y-%m-%dT%H:%M:%S', {0} + 7200, 'unixepoch') || '+02:00'"),
        "seconds": ("REAL", "{0}"),
        "number": ("DATETIME", "CAST({0} AS INTEGER)"),
        "number in a text": ("TEXT", "CAST(CAST({0} AS INTEGER) AS TEXT)"),
    },
    "postgres": {
        "text": ("timestamp", "to_timestamp({0}) AT TIME ZONE 'UTC'"),
        "iso": ("timestamptz", "to_timestamp({0})"),
        "zone": ("timestamptz(3)", "to_timestamp({0})"),
        "seconds": ("double precision", "{0}"),
        "number": ("bigint", "{0}"),
        "number in a text": ("numeric", "{0}"),
    },
}


def work(recording: Row) -> None:
    """A consumer's function that does nothing."""


def with_times(lab: Lab, form: str = "text", rows: int = 4, start: float = START) -> Rowlock:
    """Rows that are due at once (1), a minute ago (2), in a minute (3), and in an hour (4)."""
    lab.create(rows)
    kind, written = FORMS["sqlite" if lab.is_sqlite else "postgres"][form]
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN run_after {kind}")
    for key, delay in ((2, -60), (3, 60), (4, 3600)):
        moment = written.format(start + delay).replace("%", "%" if lab.is_sqlite else "%%")
        lab.execute(f"UPDATE {lab.table} SET run_after = {moment} WHERE id = {key}")
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", due_at="run_after")(work)
    return app


def due(app: Rowlock, now: float) -> list[str | None]:
    worker = register(app.store, now=now)
    request = ClaimRequest(count=9)
    return [one.row for one in store_of(app, "birdnet").exchange(worker, request=request, now=now).claims]


@pytest.mark.parametrize("form", FORMS["sqlite"])
def test_a_row_is_not_due_before_its_time_in_whatever_form_that_is(lab: Lab, form: str) -> None:
    app = with_times(lab, form)
    store = store_of(app, "birdnet")
    worker = register(app.store, "w", now=START)
    assert due(app, START) == ["1", "2"]
    assert store.next_needed(worker, now=START) == pytest.approx(60.0, abs=1.5)
    assert due(app, START + 58) == []
    assert due(app, START + 62) == ["3"]
    assert due(app, START + 3602) == ["4"]


def test_an_idle_wait_ends_when_the_next_row_is_due(lab: Lab) -> None:
    app = with_times(lab, "seconds", start=time.time())
    lab.execute(f"UPDATE {lab.table} SET run_after = ? WHERE id = 3", (time.time() + 1.0,))
    with app.consuming("birdnet", poll_interval=300.0).background():
        eventually(lambda: lab.marks("birdnet")[3] is True)
    assert [lab.marks("birdnet")[key] for key in (1, 2, 3, 4)] == [True, True, True, None]


def test_what_lies_ahead_is_neither_due_nor_done(lab: Lab) -> None:
    app = with_times(lab, start=time.time())
    for exact in (False, True):
        (found,) = insights.consumers(app, exact=exact)
        assert (found.due, found.done) == (2, 0) if lab.is_sqlite or exact else found.due == 2
    assert app.consume("birdnet", until_empty=True).completed == 2
    (found,) = insights.consumers(app, exact=True)
    assert (found.due, found.done) == (0, 2)


def test_rows_that_lie_ahead_are_stepped_over_inside_the_index(lab: Lab) -> None:
    app = with_times(lab, rows=3000)
    store = store_of(app, "birdnet")
    store.source.table.indexes.create()
    assert store.source.table.has_index
    for name in ("take_free", "take_free_beyond", "look_free", "next_due_row"):
        found = plan(lab, store, name)
        assert "rowlock_birdnet_due" in found, found
        assert "Seq Scan on recordings" not in found and "TEMP B-TREE" not in found and "Sort" not in found
        if not lab.is_sqlite and name != "next_due_row":
            assert "Filter: (COALESCE" not in found, found
    assert due(app, START) == [str(key) for key in (1, 2, *range(5, 12))]


def test_a_due_at_that_is_no_time_is_refused(lab: Lab) -> None:
    lab.create(2)
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN ready BOOLEAN")

    def check(column: str) -> Any:
        app = lab.app()
        app.consumer("birdnet", table=lab.table, state="analysis_state", due_at=column)(work)
        return store_of(app, "birdnet").source.table

    with pytest.raises(ConfigurationError, match=r"due_at='ready' is of type .* no time"):
        check("ready")
    with pytest.raises(ConfigurationError, match=r"due_at='path'.* no time"):
        check("path")  # on SQLite: text, but 'rec-1'
    with pytest.raises(ConfigurationError, match=r"due_at='nothing', but"):
        check("nothing")
