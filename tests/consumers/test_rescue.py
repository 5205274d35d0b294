"""What becomes of rows whose worker died: whether they are charged, and how soon they are seen to."""

from __future__ import annotations

import time

import pytest

from rowlock import Retry, Rowlock
from rowlock.consumers.store import ConsumerStore
from rowlock.job import Claim, Want
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register

START = time.time()
LATER = START + 1000.0


@pytest.fixture
def app(lab: Lab) -> Rowlock:
    lab.create(3)
    made = lab.app()
    made.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(max_attempts=2))(nothing)
    return made


def taken(store: ConsumerStore, worker: str, now: float, *quick: str) -> list[Claim]:
    return store.exchange(worker, want=Want(count=2, quick=quick), now=now).claims


def test_rows_of_a_worker_that_somebody_else_declared_dead_are_seen_to_at_once(app: Rowlock) -> None:
    store = store_of(app, "birdnet")
    taken(store, register(app.store, "first", now=START), START)
    other = register(app.store, "a worker of jobs", now=LATER)
    assert app.store.rescue(other, careful_age=10.0, now=LATER).workers == ["first"]
    assert store.next_needed(other, now=LATER) == 0.0
    store.rescue(other, careful_age=10.0, now=LATER)
    assert store.next_needed(other, now=LATER) is None


def test_a_rescuer_that_was_frozen_itself_says_so(app: Rowlock) -> None:
    """Its upkeep looks again after its next beat, and not all the time until then."""
    store = store_of(app, "birdnet")
    taken(store, register(app.store, "first", now=START), START)
    store.underlying.retire("first", now=START)  # and the rows that it held are found by the next look
    register(app.store, "second", now=START)
    frozen = register(app.store, "third", now=START)
    assert store.rescue(frozen, careful_age=10.0, now=LATER).waited
