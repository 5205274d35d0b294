"""Rows that a relay hands over: not begun, begun once by another worker, or taken back free of charge."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rowlock import Retry, Rowlock, Status
from rowlock.errors import WorkerGone
from rowlock.job import Claim, ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register

START = time.time()
LATER = START + 1000.0
TIMES = Status("status", started_at="started_at", claimed_by="worker")


@pytest.fixture
def app(lab: Lab) -> Rowlock:
    lab.create(3)
    made = lab.app()
    made.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(max_attempts=3))(nothing)
    return made


@pytest.fixture
def rows(app: Rowlock) -> Store:
    register(app.store, "relay")
    register(app.store, "rq")
    return store_of(app, "birdnet")


def handed_over(rows: Store, count: int = 1, now: float | None = None) -> list[Claim]:
    return rows.hand_over("relay", ClaimRequest(count=count), now=now).claims


def begun(rows: Store, claim: Claim, who: str = "rq", now: float | None = None) -> list[Claim]:
    return rows.start(who, (claim.id, claim.claim), now=now).claims


def taken_back(rows: Store, claim: Claim) -> bool:
    return not rows.exchange("relay", [claim.ended(Ending.RELEASED)]).lost


def started_at(lab: Lab) -> list[Any]:
    name = f"{lab.prefix}rowlock_consumer_claims"
    return [row[0] for row in lab.execute(f"SELECT started_at FROM {name} ORDER BY claim")]


def test_a_row_that_is_handed_over_has_not_begun(lab: Lab, rows: Store) -> None:
    (claim,) = handed_over(rows)
    assert started_at(lab) == [None] and claim.unique_key == "1"
    assert rows.held("relay") == [(claim.claim, claim.claim, False)]


def test_a_start_moves_the_row_to_the_worker_that_begins_it(lab: Lab, rows: Store) -> None:
    (claim,) = handed_over(rows)
    (own,) = begun(rows, claim)
    assert (own.claim, own.claimed_by, own.args_json) == (claim.claim, "rq", claim.args_json)
    assert started_at(lab) != [None] and rows.held("relay") == []
    assert not rows.exchange("rq", [own.ended(Ending.COMPLETED, result="1")]).lost
    assert lab.marks("birdnet")[1] is not None


def test_a_row_is_begun_once(app: Rowlock, rows: Store) -> None:
    (claim,) = handed_over(rows)
    assert begun(rows, claim)
    assert not begun(rows, claim) and not begun(rows, claim, register(app.store, "other"))


def test_a_row_that_nobody_began_is_taken_back_free_of_charge(lab: Lab, rows: Store) -> None:
    (claim,) = handed_over(rows)
    assert taken_back(rows, claim)
    assert lab.claims() == []
    assert not begun(rows, claim)
    assert handed_over(rows)[0].unique_key == "1"


def test_a_row_that_has_begun_is_not_taken_back(rows: Store) -> None:
    (claim,) = handed_over(rows)
    begun(rows, claim)
    assert not taken_back(rows, claim)
    assert rows.held("rq") == [(claim.claim, claim.claim, False)]


def test_the_rows_of_a_dead_relay_come_back_without_charge_and_without_isolation(
    app: Rowlock, rows: Store
) -> None:
    handed_over(rows, now=START)
    rescuer = register(app.store, "rescuer", now=LATER)
    assert rows.rescue(rescuer, careful_age=10.0, now=LATER).requeued == 1
    (claim,) = rows.exchange(rescuer, request=ClaimRequest(count=1), now=LATER).claims
    assert (claim.failures, claim.isolate) == (0, 0)


def test_a_batch_is_handed_over_and_begun_as_one(lab: Lab, app: Rowlock) -> None:
    app.consumer("batdetect", table=lab.table, state="analysis_state", batch=2)(nothing)
    rows = store_of(app, "batdetect")
    register(app.store, "relay")
    register(app.store, "rq")
    first, second = handed_over(rows, 2)
    assert started_at(lab) == [None] * 3
    (own,) = begun(rows, first)
    assert (own.claim, own.args_json) == (first.claim, first.args_json)
    assert [one is None for one in started_at(lab)] == [False, False, True]
    assert rows.held("relay") == [(second.claim, second.claim, False)]


def test_a_start_of_a_paused_consumer_gives_the_row_back(app: Rowlock, rows: Store) -> None:
    (claim,) = handed_over(rows)
    app.pause("consumer:birdnet")
    assert not begun(rows, claim)
    assert rows.held("rq") == rows.held("relay") == []


def test_a_row_that_was_deleted_is_not_begun(lab: Lab, rows: Store) -> None:
    (claim,) = handed_over(rows)
    lab.execute(f"DELETE FROM {lab.table} WHERE id = 1")
    assert not begun(rows, claim)
    assert lab.claims() == []


def test_a_dead_worker_begins_no_row(app: Rowlock, rows: Store) -> None:
    register(app.store, "dead", now=START - 1000.0)
    app.store.rescue("rq", careful_age=10.0)
    (claim,) = handed_over(rows)
    with pytest.raises(WorkerGone):
        begun(rows, claim, "dead")
    assert rows.held("relay") == [(claim.claim, claim.claim, False)]


def test_the_users_row_says_when_it_began_and_who_began_it(lab: Lab, app: Rowlock) -> None:
    stamp = "TEXT" if lab.is_sqlite else "timestamptz"
    table = f"{lab.prefix}orders"
    lab.execute(f"CREATE TABLE {table} (id {lab.types['id']}, status TEXT, started_at {stamp}, worker TEXT)")
    lab.execute(f"INSERT INTO {table} (id, status) VALUES (1, 'pending')")
    app.consumer("orders", table=table, status=TIMES)(nothing)
    rows = store_of(app, "orders")
    register(app.store, "relay")
    register(app.store, "rq")
    look = f"SELECT status, started_at IS NOT NULL, worker FROM {table}"
    (claim,) = handed_over(rows)
    assert [tuple(row) for row in lab.execute(look)] == [("running", False, "relay")]
    begun(rows, claim)
    assert [tuple(row) for row in lab.execute(look)] == [("running", True, "rq")]
