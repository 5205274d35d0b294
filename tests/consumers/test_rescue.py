"""What becomes of rows whose worker died: whether they are charged, and how soon they are seen to."""

from __future__ import annotations

import time

import pytest

from rowlock import Retry, Rowlock
from rowlock.job import Claim, ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register

START = time.time()
LATER = START + 1000.0


@pytest.fixture
def app(lab: Lab) -> Rowlock:
    lab.create(3)
    made = lab.app()
    made.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(max_attempts=3))(nothing)
    return made


def taken(store: Store, worker: str, now: float) -> list[Claim]:
    return store.exchange(worker, request=ClaimRequest(count=2), now=now).claims


def test_rows_of_a_worker_that_somebody_else_declared_dead_are_seen_to_at_once(app: Rowlock) -> None:
    store = store_of(app, "birdnet")
    taken(store, register(app.store, "first", now=START), START)
    other = register(app.store, "a worker of jobs", now=LATER)
    assert app.store.rescue(other, careful_age=10.0, now=LATER).workers == ["first"]
    assert store.next_needed(other, now=LATER) == 0.0
    store.rescue(other, careful_age=10.0, now=LATER)
    assert store.next_needed(other, now=LATER) is None


def test_a_worker_that_was_declared_dead_gives_no_row_back(lab: Lab) -> None:
    """A row that may run only once could run again: its first run may still be at work."""
    lab.create(1)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", retry=False)(nothing)
    store = store_of(app, "birdnet")
    (claim,) = taken(store, register(app.store, "first", now=START), START)
    other = register(app.store, "a worker of jobs", now=LATER)
    app.store.rescue(other, careful_age=10.0, now=LATER)
    assert store.exchange("first", [claim.ended(Ending.RELEASED)], now=LATER).lost != []
    assert taken(store, other, LATER) == []
    store.rescue(other, careful_age=10.0, now=LATER)
    assert lab.marks("birdnet")[1]["attempts"] == 1 and taken(store, other, LATER) == []


def test_a_rescuer_that_was_frozen_itself_says_so(app: Rowlock) -> None:
    """Its maintenance looks again after its next beat, and not all the time until then."""
    store = store_of(app, "birdnet")
    taken(store, register(app.store, "first", now=START), START)
    app.store.retire("first", now=START)  # and the rows that it held are found by the next look
    register(app.store, "second", now=START)
    frozen = register(app.store, "third", now=START)
    assert store.rescue(frozen, careful_age=10.0, now=LATER).waited


def test_rows_of_a_dead_worker_are_spared_once(app: Rowlock) -> None:
    """As jobs are: hundreds may be claimed ahead, and at most one of them killed it."""
    store = store_of(app, "birdnet")
    first = taken(store, register(app.store, "first", now=START), START)
    second = register(app.store, "second", now=LATER)
    assert store.rescue(second, careful_age=10.0, now=LATER).requeued == 2
    again = [claim for _ in range(2) for claim in taken(store, second, LATER)]
    assert [(claim.unique_key, claim.failures, claim.isolate) for claim in again] == [
        ("1", 0, 10),
        ("2", 0, 10),
    ]
    assert [claim.claimed_before for claim in (*first, *again)] == [False, False, True, True]
    assert store.exchange("first", [one.ended(Ending.COMPLETED) for one in first], now=LATER).lost != []
    last = LATER + 1000.0
    third = register(app.store, "third", now=last)
    store.rescue(third, careful_age=10.0, now=last)
    (charged,) = taken(store, third, last)
    assert charged.failures == 2 and charged.isolate > 0


def test_a_row_that_was_spared_a_death_has_its_budget_used_up_by_as_many_deaths_as_any(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(max_attempts=3))(nothing)
    store, now = store_of(app, "birdnet"), START
    found = []
    for number in range(4):
        # At first they wait in one worker, then each runs alone and kills it.
        claims = taken(store, register(app.store, f"w{number}", now=now), now)
        found.append([(claim.unique_key, claim.failures) for claim in claims])
        now += 1000.0
        store.rescue(register(app.store, f"rescuer {number}", now=now), careful_age=10.0, now=now)
    assert found == [[("1", 0), ("2", 0)], [("1", 0)], [("2", 0)], [("1", 2)]]
    assert lab.marks("birdnet")[1]["attempts"] == 3
    assert lab.marks("birdnet")[2] is None


def test_a_row_that_may_run_twice_dies_twice(lab: Lab) -> None:
    lab.create(1)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(max_attempts=2))(nothing)
    store, now = store_of(app, "birdnet"), START
    for number in range(2):
        taken(store, register(app.store, f"w{number}", now=now), now)
        now += 1000.0
        store.rescue(register(app.store, f"rescuer {number}", now=now), careful_age=10.0, now=now)
    assert lab.marks("birdnet")[1]["attempts"] == 2


def test_a_row_that_may_run_only_once_is_never_spared(lab: Lab) -> None:
    lab.create(1)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", retry=False)(nothing)
    store = store_of(app, "birdnet")
    taken(store, register(app.store, "first", now=START), START)
    second = register(app.store, "second", now=LATER)
    assert store.rescue(second, careful_age=10.0, now=LATER).failed == 1
    assert lab.marks("birdnet")[1]["attempts"] == 1
