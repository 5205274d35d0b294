"""How consumers stand: what is counted, what is estimated, what an operator can do about failures."""

from __future__ import annotations

import time

import pytest

from rowlock import Fail, Rowlock, Status, insights
from rowlock.consumers import overview
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register


def fails_on_two(row: Row) -> None:
    if row.id == 2:
        raise Fail("two")


def make(lab: Lab, form: str) -> tuple[Rowlock, str]:
    """An app with one consumer of a table of five rows, and that table."""
    app = lab.app()
    if form == "state":
        lab.create(5)
        app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time")(fails_on_two)
        return app, lab.table
    table = f"{lab.prefix}jobs"
    seconds = lab.types["time"]
    lab.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, status TEXT, error TEXT, time {seconds})")
    for number in range(1, 6):
        lab.execute(f"INSERT INTO {table} (id, status, time) VALUES (?, 'pending', ?)", (number, number))
    status = Status("status", error="error")
    app.consumer("birdnet", table=table, status=status, order_by="time")(fails_on_two)
    return app, table


@pytest.mark.parametrize("form", ["state", "status"])
@pytest.mark.parametrize("indexed", [True, False])
def test_due_in_flight_done_and_failed_are_told(lab: Lab, form: str, indexed: bool) -> None:
    app, table = make(lab, form)
    if indexed:
        app.consumer_source("birdnet").table.indexes.create()
    store = store_of(app, "birdnet")
    worker = register(app.store, "w")
    store.exchange(worker, request=ClaimRequest(count=2))
    (found,) = insights.consumers(app, exact=True)
    assert (found.due, found.in_flight, found.waiting, found.done, found.failed) == (3, 2, 0, 0, 0)
    assert (float(found.oldest_due), found.lag, found.has_index) == (3.0, None, indexed)
    store.retire(worker)
    now = time.time()
    lab.execute(f"UPDATE {table} SET time = ?", (now - 100.0,))
    (found,) = insights.consumers(app)
    assert found.due == 5
    assert found.lag is not None and 90 < found.lag < 200

    app.consume("birdnet", until_empty=True)
    (found,) = insights.consumers(app, exact=True)
    assert (found.due, found.in_flight, found.done, found.failed) == (0, 0, 4, 1)
    assert found.oldest_due is None
    assert overview.retry_failed(app.consumer_source("birdnet")) == 1
    (found,) = insights.consumers(app, exact=True)
    assert (found.due, found.done, found.failed) == (1, 4, 0)


def test_the_rate_comes_from_what_workers_wrote(lab: Lab) -> None:
    app, _ = make(lab, "state")
    app.consume("birdnet", until_empty=True)
    ended = [one for one in app.store.minutes(0) if one.queue == "consumer:birdnet"]
    assert sum(one.completed for one in ended) == 4
    assert sum(one.failed for one in ended) == 1
