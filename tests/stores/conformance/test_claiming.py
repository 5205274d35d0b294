from __future__ import annotations

from collections import Counter

import pytest

from rowlock.errors import WorkerGone
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from rowlock.strategies import names
from tests.stores.steps import add, end, events, job, new, outcome, state, take, worker

NOW = 1_800_000_000.0


def priorities(store: Store, *levels: int) -> list[int]:
    return [one.id for one in store.insert([new(priority=level) for level in levels])]


@pytest.mark.file_mode
def test_a_claim_takes_the_job_and_raises_its_claim_number(store: Store) -> None:
    who = worker(store)
    (id,) = add(store, task="resize", args='{"a":1}', unique_key="k", unique_until="finished")
    (claim,) = take(store, who, now=NOW)
    assert (claim.id, claim.claim, claim.task, claim.args) == (id, 1, "resize", {"a": 1})
    found = job(store, id)
    assert (found.state, found.claim, found.claimed_by, found.failures) == ("running", 1, who, 0)
    assert found.claimed_at is not None and found.claimed_at.timestamp() == NOW
    assert found.started_at == found.claimed_at


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("strategy", names())
def test_a_claim_has_all_that_a_job_can_be_given(store: Store, strategy: str, count: int) -> None:
    who = worker(store)
    given = {"args": '{"a":["é",{"b":null}]}', "meta": '{"tenant":"x","deep":{"a":[1]}}', "priority": 4}
    add(store, count, queue="q", max_attempts=5, expires=60.0, **given)
    claims = take(store, who, count, strategy=strategy)
    assert len(claims) == count
    for claim in claims:
        found = job(store, claim.id)
        assert (claim.args, claim.meta) == (found.args, found.meta)
        assert (claim.args, claim.meta) == ({"a": ["é", {"b": None}]}, {"tenant": "x", "deep": {"a": [1]}})
        assert (claim.queue, claim.priority, claim.max_attempts) == ("q", 4, 5)
        assert claim.expires_at == found.expires_at is not None


@pytest.mark.parametrize("strategy", names())
def test_an_empty_queue_gives_nothing(store: Store, strategy: str) -> None:
    assert take(store, worker(store), 5, strategy=strategy) == []


@pytest.mark.parametrize("strategy", names())
def test_every_job_is_claimed_once_whatever_the_batch(store: Store, strategy: str) -> None:
    who = worker(store)
    ids = priorities(store, *[level % 5 - 2 for level in range(40)])
    claimed: list[int] = []
    while batch := take(store, who, 7, strategy=strategy):
        assert len(batch) <= 7
        claimed += [claim.id for claim in batch]
    assert sorted(claimed) == ids


def test_several_queues_are_taken_in_turn(store: Store) -> None:
    who = worker(store)
    store.insert([new(queue=name) for name in ("a", "b", "c") for _ in range(4)])
    order, after = [], ""
    for _ in range(6):
        got = store.exchange(who, request=ClaimRequest(count=1, after=after))
        order.append(got.claims[0].queue)
        after = got.last_queue
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_a_batch_is_shared_among_the_queues(store: Store) -> None:
    who = worker(store)
    store.insert([new(queue="big") for _ in range(50)] + [new(queue="small") for _ in range(2)])
    counts = Counter(claim.queue for claim in take(store, who, 10))
    assert counts == {"big": 8, "small": 2}


def test_only_the_named_queues_are_served_also_in_turn(store: Store) -> None:
    who = worker(store)
    store.insert([new(queue=name) for name in ("a", "b", "c") for _ in range(2)])
    order, after = [], ""
    while (got := store.exchange(who, request=ClaimRequest(count=1, queues=("c", "a"), after=after))).claims:
        order.append(got.claims[0].queue)
        after = got.last_queue
    assert order == ["c", "a", "c", "a"]
    assert take(store, who, queues=("nowhere",)) == []


def test_a_paused_queue_is_left_alone_until_it_is_resumed(store: Store) -> None:
    who = worker(store)
    add(store, queue="gpu")
    store.set_queue("gpu", paused=True)
    store.set_queue("gpu", paused=True)
    assert take(store, who) == [] and take(store, who, queues=("gpu",)) == []
    assert store.idle([]) and store.idle(["gpu"])
    store.set_queue("gpu", paused=False)
    assert not store.idle([])
    assert len(take(store, who)) == 1


def test_a_queues_own_strategy_overrides_the_workers(store: Store) -> None:
    who = worker(store)
    first, last = add(store, 2, queue="gpu")
    store.set_queue("gpu", strategy="LIFO")
    assert take(store, who, strategy="FIFO")[0].id == last
    store.set_queue("gpu", strategy="")
    add(store, queue="gpu")
    assert take(store, who, strategy="FIFO")[0].id == first


@pytest.mark.file_mode
def test_a_released_job_keeps_its_position_and_a_retried_one_gets_a_new_one(store: Store) -> None:
    who = worker(store)
    first, second, third = add(store, 3)
    end(store, take(store, who, strategy="FIFO")[0], Ending.RELEASED)
    claim = take(store, who, strategy="FIFO")[0]
    assert claim.id == first and claim.claim == 2
    end(store, claim, Ending.RETRY, error="again", charge=1)
    assert store.promote(10) == 1
    assert [claim.id for claim in take(store, who, 3, strategy="FIFO")] == [second, third, first]


def test_promoted_jobs_line_up_in_the_order_in_which_they_fell_due(store: Store) -> None:
    who = worker(store)
    (late,) = add(store, delay=20.0, now=NOW)
    (early,) = add(store, delay=10.0, now=NOW)
    (waiting,) = add(store, now=NOW)
    assert store.promote(10, now=NOW + 30) == 2
    assert [claim.id for claim in take(store, who, 3, strategy="FIFO")] == [waiting, early, late]


def test_a_job_past_its_deadline_is_failed_and_not_handed_out(store: Store) -> None:
    who = worker(store)
    (stale,) = add(store, expires=5.0, now=NOW)
    (fresh,) = add(store, now=NOW)
    claims = take(store, who, 2, now=NOW + 6)
    assert [claim.id for claim in claims] == [fresh]
    found = job(store, stale)
    assert (found.state, found.error_kind, found.failures) == ("failed", "expired", 0)
    assert events(store, stale) == ["expired"]


@pytest.mark.file_mode
def test_a_worker_that_was_declared_dead_cannot_claim(store: Store) -> None:
    who = worker(store)
    add(store)
    store.retire(who)
    with pytest.raises(WorkerGone):
        take(store, who)
    with pytest.raises(WorkerGone):
        take(store, "never registered")
    assert state(store, 1) == "queued"


@pytest.mark.file_mode
def test_an_exchange_writes_outcomes_and_claims_together(store: Store) -> None:
    who = worker(store)
    add(store, 2)
    first = take(store, who, strategy="FIFO")[0]
    got = store.exchange(who, [outcome(first, Ending.COMPLETED, result="7")], ClaimRequest(count=5))
    assert job(store, first.id).result == 7
    assert [claim.id for claim in got.claims] == [first.id + 1]
