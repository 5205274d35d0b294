"""Rows that nobody living has begun for too long fail, if they say since when they have been due."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rowlock import Flag, Retry, Rowlock, Status
from rowlock.job import Claim, ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register

NOW = time.time()
STATUS = Status("status", created_at="made", error="error", started_at="begun", attempts="tries")


class Orders:
    """A user's table; the rows were made at the times given, in seconds before now."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.table = lab, f"{lab.prefix}orders"
        number = lab.types["time"]
        flag = "INTEGER" if lab.is_sqlite else "boolean"
        lab.execute(
            f"CREATE TABLE {self.table} (id {lab.types['id']}, status TEXT DEFAULT 'pending', made {number}, "
            f"due {number}, begun {number}, error TEXT, tries INTEGER DEFAULT 0, uploaded {flag}, "
            f"state {lab.types['json']})"
        )

    def add(self, id: int, age: float, due: float | None = None) -> None:
        self.lab.execute(
            f"INSERT INTO {self.table} (id, made, due) VALUES (?, ?, ?)",
            (id, NOW - age, None if due is None else NOW - due),
        )

    def get(self, columns: str = "status") -> list[Any]:
        rows = self.lab.execute(f"SELECT {columns} FROM {self.table} ORDER BY id")
        return [row[0] if len(row) == 1 else tuple(row) for row in rows]


@pytest.fixture
def orders(lab: Lab) -> Orders:
    return Orders(lab)


def consumer(lab: Lab, orders: Orders, **chosen: Any) -> Store:
    app: Rowlock = lab.app()
    app.consumer("orders", table=orders.table, retry=Retry(max_attempts=3), **chosen)(nothing)
    for name in ("relay", "rq"):
        register(app.store, name, now=NOW)
    return store_of(app, "orders")


def take(rows: Store, worker: str) -> list[Claim]:
    return rows.exchange(worker, request=ClaimRequest(count=1), now=NOW).claims


def handed_over(rows: Store) -> list[Claim]:
    return rows.hand_over("relay", ClaimRequest(count=1), now=NOW).claims


def test_rows_that_waited_too_long_fail_and_say_why(lab: Lab, orders: Orders) -> None:
    orders.add(1, age=1000)
    orders.add(2, age=10)
    rows = consumer(lab, orders, status=STATUS)
    assert rows.fail_overdue(500.0, 20, now=NOW) == 1
    assert orders.get("status, tries, begun") == [("failed", 0, None), ("pending", 0, None)]
    assert "FAILED_JOB_TIMEOUT_SECONDS" in orders.get("error")[0]
    assert lab.claims() == [] and rows.fail_overdue(500.0, 20, now=NOW) == 0


def test_rows_that_wait_to_be_tried_again_are_overdue_too(lab: Lab, orders: Orders) -> None:
    orders.add(1, age=1000)
    rows = consumer(lab, orders, status=STATUS)
    (claim,) = take(rows, "rq")
    rows.exchange("rq", [claim.ended(Ending.RETRY, delay=0.0, charge=1, error="no")], now=NOW)
    assert rows.fail_overdue(500.0, 20, now=NOW) == 1
    assert orders.get("status, tries") == [("failed", 1)] and lab.claims() == []


def test_a_row_that_was_handed_over_is_overdue_until_it_has_begun(lab: Lab, orders: Orders) -> None:
    orders.add(1, age=1000)
    orders.add(2, age=1000)
    rows = consumer(lab, orders, status=STATUS)
    begun, _ = handed_over(rows) + handed_over(rows)
    rows.start("rq", (begun.id, begun.claim), now=NOW)
    assert rows.fail_overdue(500.0, 20, now=NOW) == 1
    assert orders.get() == ["running", "failed"]


def test_a_deadline_holds_for_a_row_that_was_handed_over_until_it_has_begun(lab: Lab, orders: Orders) -> None:
    for id in (1, 2, 3):
        orders.add(id, age=100)
    rows = consumer(lab, orders, status=Status("status", created_at="made", error="error", deadline=500.0))
    begun, failed, late = [handed_over(rows)[0] for _ in range(3)]
    rows.start("rq", (begun.id, begun.claim), now=NOW)
    rows.start("rq", (failed.id, failed.claim), now=NOW)
    rows.exchange("rq", [failed.ended(Ending.RETRY, delay=0.0, charge=1, error="no")], now=NOW)
    (again,) = handed_over(rows)
    assert again.row == failed.row and rows.expire(20, now=NOW) == 0
    assert rows.expire(20, now=NOW + 450.0) == 1
    assert orders.get("status, error") == [
        ("running", None),
        ("running", None),
        ("failed", "it was not begun within 500 s"),
    ]
    assert rows.start("rq", (late.id, late.claim), now=NOW + 450.0).claims == []


def test_a_row_of_a_dead_worker_is_overdue_and_one_of_a_living_is_not(lab: Lab, orders: Orders) -> None:
    orders.add(1, age=1000)
    orders.add(2, age=1000)
    rows = consumer(lab, orders, status=STATUS)
    take(rows, "rq")
    take(rows, "relay")
    Store(rows.database).retire("relay", now=NOW)  # and not its rows
    assert rows.fail_overdue(500.0, 20, now=NOW) == 1
    assert orders.get() == ["running", "failed"]


def test_a_due_time_counts_before_the_time_of_making(lab: Lab, orders: Orders) -> None:
    orders.add(1, age=1000, due=10)
    orders.add(2, age=1000)
    orders.add(3, age=1000, due=-1000)  # not due yet
    rows = consumer(lab, orders, status=STATUS, due_at="due")
    assert rows.fail_overdue(500.0, 20, now=NOW) == 1
    assert orders.get() == ["pending", "failed", "pending"]


@pytest.mark.parametrize("form", [{"state": "state"}, {"flag": Flag("uploaded")}], ids=["state", "flag"])
def test_other_forms_count_from_their_due_time(lab: Lab, orders: Orders, form: dict[str, Any]) -> None:
    orders.add(1, age=0, due=1000)
    orders.add(2, age=0, due=10)
    rows = consumer(lab, orders, due_at="due", **form)
    assert rows.fail_overdue(500.0, 20, now=NOW) == 1
    assert [claim.unique_key for claim in take(rows, "rq") + take(rows, "rq")] == ["2"]


def test_rows_that_do_not_say_since_when_are_never_overdue(lab: Lab, orders: Orders) -> None:
    orders.add(1, age=1000)
    rows = consumer(lab, orders, status=Status("status"))
    assert rows.fail_overdue(500.0, 20, now=NOW) == 0
    assert orders.get() == ["pending"]
