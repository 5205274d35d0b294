from __future__ import annotations

import time

import pytest

from rowlock.errors import WrongState
from rowlock.job import Ending
from rowlock.stores.base import Retention
from rowlock.stores.sql.store import Store
from tests.stores.steps import add, end, job, new, state, take, worker

NOW = 1_800_000_000.0


def test_ids_grow_in_the_order_of_the_batch(store: Store) -> None:
    first, second = add(store, 3), add(store, 2)
    assert first == sorted(first) and second == sorted(second)
    assert max(first) < min(second)


@pytest.mark.file_mode
def test_a_job_is_read_back_as_it_was_written(store: Store) -> None:
    (id,) = add(
        store,
        task="resize",
        queue="images",
        args='{"a":[1,"é"]}',
        priority=-7,
        max_attempts=5,
        meta='{"tenant":"x"}',
        now=NOW,
    )
    found = job(store, id)
    assert (found.task, found.queue, found.args, found.priority) == ("resize", "images", {"a": [1, "é"]}, -7)
    assert (found.state, found.claim, found.failures, found.max_attempts) == ("queued", 0, 0, 5)
    assert found.created_at.timestamp() == found.run_at.timestamp() == NOW
    assert found.meta == {"tenant": "x"} and found.result is None and found.progress is None


def test_an_id_is_never_used_again_after_deletion(store: Store) -> None:
    """Plain rowids are, and a late worker would then finish somebody else's job."""
    who = worker(store)
    (old,) = add(store)
    end(store, take(store, who)[0])
    assert store.prune(Retention(1, 1), after=0, most=10, now=time.time() + 10) == (1, 0)
    assert store.get(old) is None
    assert add(store)[0] > old


def test_a_delayed_job_is_scheduled_and_not_claimed(store: Store) -> None:
    who = worker(store)
    (later,) = add(store, delay=60.0, now=NOW)
    assert state(store, later) == "scheduled"
    assert job(store, later).run_at.timestamp() == NOW + 60
    assert take(store, who, now=NOW + 59) == []


def test_a_run_at_in_the_past_is_queued_at_once(store: Store) -> None:
    (id,) = add(store, run_at=NOW - 5, now=NOW)
    assert state(store, id) == "queued"


def test_expiry_counts_from_when_the_job_is_due(store: Store) -> None:
    (id,) = add(store, delay=100.0, expires=10.0, now=NOW)
    expires_at = job(store, id).expires_at
    assert expires_at is not None and expires_at.timestamp() == NOW + 110


@pytest.mark.file_mode
@pytest.mark.parametrize("until", ["finished", "claimed"])
def test_a_second_job_with_the_key_of_a_waiting_one_is_that_one(store: Store, until: str) -> None:
    keyed = new(unique_key="k", unique_until=until)
    (first,) = store.insert([keyed])
    (second,) = store.insert([keyed])
    assert first.is_new and not second.is_new and second.id == first.id


@pytest.mark.file_mode
def test_a_key_counts_per_task_and_within_one_batch(store: Store) -> None:
    keyed, other = (new(task=task, unique_key="k", unique_until="finished") for task in ("a", "b"))
    inserted = store.insert([keyed, other, keyed])
    assert [one.is_new for one in inserted] == [True, True, False]
    assert inserted[2].id == inserted[0].id != inserted[1].id


@pytest.mark.file_mode
def test_an_unfinished_key_holds_while_running_and_a_queued_one_does_not(store: Store) -> None:
    who = worker(store)
    for until, is_new in (("finished", False), ("claimed", True)):
        keyed = new(task=until, unique_key="k", unique_until=until)
        store.insert([keyed])
        assert len(take(store, who)) == 1
        assert store.insert([keyed])[0].is_new is is_new


@pytest.mark.file_mode
@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED])
def test_a_finished_job_frees_its_key(store: Store, ending: Ending) -> None:
    who = worker(store)
    keyed = new(unique_key="k", unique_until="finished")
    (first,) = store.insert([keyed])
    end(store, take(store, who)[0], ending)
    (second,) = store.insert([keyed])
    assert second.is_new and second.id != first.id


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.RELEASED])
def test_a_job_that_comes_back_never_clashes_with_the_next_of_its_key(store: Store, ending: Ending) -> None:
    """With a key that holds until claimed, a second may be queued by the time the first comes back."""
    who = worker(store)
    keyed = new(unique_key="k", unique_until="claimed")
    store.insert([keyed])
    claim = take(store, who)[0]
    (second,) = store.insert([keyed])
    assert second.is_new
    assert end(store, claim, ending)
    assert state(store, claim.id) in ("scheduled", "queued")


@pytest.mark.file_mode
def test_an_operators_retry_respects_the_key(store: Store) -> None:
    who = worker(store)
    keyed = new(unique_key="k", unique_until="finished")
    (first,) = store.insert([keyed])
    end(store, take(store, who)[0], Ending.FAILED)
    (second,) = store.insert([keyed])
    with pytest.raises(WrongState, match=f"job {second.id} holds its unique key 'k'"):
        store.retry(first.id)
    assert state(store, first.id) == "failed"


@pytest.mark.file_mode
def test_a_batch_is_written_whole_or_not_at_all(store: Store) -> None:
    bad = new(task=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"NOT NULL|null"):
        store.insert([new(), new(), bad])
    assert store.find() == []
