"""`RetryLater(seconds, pause=True)`: a queue that claims nothing until the time is over, on every store."""

from __future__ import annotations

import time

import pytest

from rowlock.job import Claim, ClaimRequest, Ending
from rowlock.monitoring import QueueRecord
from rowlock.stores.sql.store import Store
from tests.stores.steps import add, end, run_sql, table, take, worker

START = time.time()


def pause(store: Store, who: str, claim: Claim, seconds: float, now: float) -> bool:
    return end(store, claim, Ending.RETRY, now=now, delay=seconds, pause=True)


def record(store: Store, name: str) -> QueueRecord:
    return next(one for one in store.queues() if one.name == name)


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("queues", [(), ("other", "upload")])
def test_nobody_claims_from_the_queue_until_the_time_is_over(
    store: Store, count: int, queues: tuple[str, ...]
) -> None:
    add(store, 2, now=START, queue="upload")
    first, second = worker(store, "first", now=START), worker(store, "second", now=START)
    (claim,) = take(store, first, now=START)
    assert pause(store, first, claim, 30.0, START)
    add(store, 1, now=START, queue="other")
    assert [one.queue for one in take(store, second, count, START + 1, queues=queues)] == ["other"]
    assert take(store, second, count, START + 29, queues=queues) == []
    assert store.next_needed(second, now=START + 29) == pytest.approx(1.0, abs=0.1)
    assert store.promote(100, now=START + 30.01) == 1  # the one that asked for it, free of charge
    claims = take(store, second, 10, START + 30.01, queues=queues)
    assert sorted((one.queue, one.failures) for one in claims) == [("upload", 0), ("upload", 0)]


def test_the_claim_that_is_made_in_the_same_exchange_sees_it(store: Store) -> None:
    add(store, 2, now=START)
    who = worker(store, now=START)
    (claim,) = take(store, who, now=START)
    outcome = claim.ended(Ending.RETRY, delay=30.0, pause=True)
    assert store.exchange(who, [outcome], ClaimRequest(count=1), now=START).claims == []


def test_the_later_end_wins(store: Store) -> None:
    add(store, 3, now=START)
    who = worker(store, now=START)
    claims = take(store, who, 3, now=START)
    for claim, seconds in zip(claims, (2000.0, 6000.0, 3000.0), strict=True):
        pause(store, who, claim, seconds, START)
    until = record(store, "default").paused_until
    assert until is not None and until.timestamp() == pytest.approx(START + 6000.0, abs=0.01)


def test_a_pause_of_an_operator_outlasts_it(store: Store) -> None:
    add(store, 2, now=START)
    who = worker(store, now=START)
    first, second = take(store, who, 2, now=START)
    store.set_queue("default", paused=True, now=START)
    pause(store, who, first, 5.0, START)
    store.promote(100, now=START + 6)
    assert (record(store, "default").paused, record(store, "default").paused_until) == (True, None)
    store.set_queue("default", paused=False, now=START)
    pause(store, who, second, 5.0, START)
    store.set_queue("default", paused=True, now=START)  # of a queue that is paused for a while already
    store.promote(100, now=START + 6)
    assert record(store, "default").paused


def test_resume_ends_it_early(store: Store) -> None:
    add(store, 2, now=START)
    who = worker(store, now=START)
    (claim,) = take(store, who, now=START)
    pause(store, who, claim, 300.0, START)
    store.set_queue("default", paused=False, now=START + 1)
    assert (record(store, "default").paused, record(store, "default").paused_until) == (False, None)
    assert len(take(store, who, now=START + 1)) == 1


def test_a_lost_claim_pauses_nothing(store: Store) -> None:
    add(store, 1, now=START)
    who = worker(store, now=START)
    (claim,) = take(store, who, now=START)
    store.rescue(worker(store, "rescuer", now=START + 1000), careful_age=10.0, now=START + 1000)
    assert not pause(store, who, claim, 30.0, START + 1001)
    assert [one.paused for one in store.queues()] == [False]


def test_a_paused_queue_is_idle(store: Store) -> None:
    add(store, 2, now=START)
    who = worker(store, now=START)
    (claim,) = take(store, who, now=START)
    pause(store, who, claim, 30.0, START)
    assert store.idle((), now=START + 1)
    assert not store.idle((), now=START + 31)


def test_a_pause_that_nobody_ended_is_over_for_readers_too(store: Store) -> None:
    add(store, 1, now=time.time() - 100)
    who = worker(store)
    (claim,) = take(store, who)
    pause(store, who, claim, 10.0, time.time() - 20)
    assert (record(store, "default").paused, record(store, "default").paused_until) == (False, None)


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("queues", [(), ("default",)], ids=["all", "named"])
def test_a_pause_that_nobody_ended_is_over_for_claims_too(
    store: Store, count: int, queues: tuple[str, ...]
) -> None:
    """Before any maintenance; also for a job that has to run alone."""
    add(store, 3, now=START)
    who = worker(store, now=START)
    (claim,) = take(store, who, now=START)
    pause(store, who, claim, 10.0, START)
    assert take(store, who, count, START + 9, queues=queues) == []
    first, *_ = take(store, who, count, START + 11, queues=queues)
    end(store, first, Ending.RELEASED, now=START + 11)
    run_sql(store, f"UPDATE {table(store, 'rowlock_jobs')} SET isolate = 5 WHERE id = {first.id}")
    assert [one.id for one in take(store, who, count, START + 11, queues=queues)] == [first.id]
