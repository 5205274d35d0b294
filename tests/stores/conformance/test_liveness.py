from __future__ import annotations

import time

import pytest

from rowlock.job import ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from rowlock.strategies import names
from tests.stores.steps import add, end, events, job, run_sql, state, table, take, worker


def late(seconds: float = 61.0) -> float:
    return time.time() + seconds


def rescue(store: Store, now: float | None = None) -> list[str]:
    """A rescue by a worker that is alive at that moment."""
    moment = late() if now is None else now
    rescuer = worker(store, "rescuer", now=moment)
    return store.rescue(rescuer, careful_age=20, now=moment).workers


@pytest.mark.file_mode
def test_a_living_workers_claims_are_left_alone(store: Store) -> None:
    who = worker(store)
    (id,) = add(store)
    take(store, who)
    assert rescue(store, now=late(59)) == []
    assert store.beat(who, "FIFO", now=late(59))
    assert rescue(store, now=late(118)) == []
    assert state(store, id) == "running"


@pytest.mark.file_mode
def test_a_silent_workers_job_goes_back_into_its_old_position_free_of_charge(store: Store) -> None:
    who = worker(store)
    first, second = add(store, 2)
    take(store, who, strategy="FIFO")
    assert rescue(store) == [who]
    found = job(store, first)
    assert (found.state, found.failures, found.claimed_by, found.claim) == ("queued", 0, None, 1)
    assert events(store, first) == ["rescued"]
    assert store.history(first)[0].worker == who
    assert take(store, worker(store, "other"), strategy="FIFO")[0].id == first
    assert second


@pytest.mark.parametrize("strategy", ["PRIORITY", "FIFO", "LIFO", "WEIGHTED_RANDOM"])
def test_a_death_is_charged_from_the_second_on_and_then_for_both(store: Store, strategy: str) -> None:
    ids = add(store, 3)
    (once,) = add(store, max_attempts=1)
    take(store, worker(store, "first"), 4, strategy=strategy)
    assert all(job(store, id).started_at is not None for id in (*ids, once))
    assert rescue(store) == ["first"]
    assert [(job(store, id).state, job(store, id).failures) for id in (*ids, once)] == [
        *([("queued", 0)] * 3),
        ("failed", 1),
    ]
    late = worker(store, "second")
    got = [take(store, late, 2, strategy=strategy) for _ in range(3)]  # each is claimed alone now
    assert [len(claims) for claims in got] == [1, 1, 1]
    rescue(store)
    assert [job(store, id).failures for id in ids] == [2, 2, 2]


@pytest.mark.parametrize("how", ["retry later", "release", "stop"])
def test_an_ending_that_costs_nothing_leaves_the_count_of_deaths(store: Store, how: str) -> None:
    (id,) = add(store)
    take(store, worker(store, "first"))
    rescue(store)
    claim = take(store, worker(store, "second"))[0]
    if how == "stop":
        store.retire("second")
    else:
        end(store, claim, Ending.RETRY if how == "retry later" else Ending.RELEASED)
    store.promote(10, now=late())
    take(store, worker(store, "third"))
    rescue(store)
    assert (state(store, id), job(store, id).failures) == ("queued", 2)


def test_a_job_that_was_spared_a_death_has_its_budget_used_up_by_as_many_deaths_as_any(store: Store) -> None:
    poison, neighbour = add(store, 2, task="quick")
    found = []
    for number in range(3):
        # At first they wait in one worker, then each runs alone.
        taken = take(store, worker(store, f"w{number}"), 2, strategy="FIFO")
        found.append(([claim.id for claim in taken], job(store, poison).failures))
        rescue(store)
    assert found == [([poison, neighbour], 0), ([poison], 0), ([poison], 2)]
    assert (state(store, poison), job(store, poison).failures) == ("failed", 3)
    assert "died 3 times" in str(job(store, poison).error)
    assert (state(store, neighbour), job(store, neighbour).failures) == ("queued", 0)


def test_a_job_that_was_charged_for_something_else_is_spared_again(store: Store) -> None:
    ids = add(store, 2, task="quick", max_attempts=2)
    take(store, worker(store, "first"), 2)
    rescue(store)
    for _ in ids:
        end(store, take(store, worker(store, "second"), 2)[0], Ending.RETRY, charge=1)
    store.promote(10, now=late())
    assert len(take(store, worker(store, "third"), 2)) == 2
    rescue(store)
    assert [(state(store, id), job(store, id).failures) for id in ids] == [("queued", 1)] * 2


def test_a_death_before_an_operators_retry_is_not_charged_after_it(store: Store) -> None:
    (id,) = add(store, task="quick")
    take(store, worker(store, "first"))
    rescue(store)
    end(store, take(store, worker(store, "second"))[0], Ending.FAILED, error="oh")
    store.retry(id)
    take(store, worker(store, "third"))
    rescue(store)
    assert job(store, id).failures == 0


@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_a_job_that_kills_its_workers_dies_as_often_as_its_budget(store: Store, budget: int) -> None:
    (poison,) = add(store, task="quick", max_attempts=budget)
    deaths = 0
    while state(store, poison) == "queued":
        take(store, worker(store, f"w{deaths}"))
        rescue(store)
        deaths += 1
    assert (deaths, state(store, poison)) == (budget, "failed")


@pytest.mark.file_mode
def test_a_rescued_job_ignores_its_old_worker(store: Store) -> None:
    who = worker(store)
    add(store)
    old = take(store, who)[0]
    rescue(store)
    assert not end(store, old, result='"late"')
    newer = take(store, worker(store, "other"))[0]
    assert newer.claim == old.claim + 1
    assert not end(store, old, Ending.FAILED)
    assert end(store, newer, result='"new"')
    assert job(store, old.id).result == "new"


def test_a_job_that_keeps_killing_its_workers_fails_and_says_so(store: Store) -> None:
    (id,) = add(store, max_attempts=3)
    for number in range(3):
        take(store, worker(store, f"w{number}"))
        rescue(store)
    found = job(store, id)
    assert (found.state, found.failures, found.error_kind) == ("failed", 3, "worker_died")
    assert found.error is not None and "its worker died 3 times" in found.error
    assert events(store, id) == ["rescued"] * 3


def test_at_most_once_by_its_tasks_policy_means_that_a_stopped_worker_ends_it(store: Store) -> None:
    (once,) = add(store, task="once", max_attempts=None)
    (other,) = add(store, task="other", max_attempts=None)
    who = worker(store, once=1, other=2)
    take(store, who, 2)
    store.retire(who)
    assert (state(store, once), job(store, once).error_kind) == ("failed", "worker_stopped")
    assert state(store, other) == "queued"


def test_at_most_once_means_that_a_dead_worker_ends_it(store: Store) -> None:
    (id,) = add(store, max_attempts=1)
    take(store, worker(store))
    rescue(store)
    assert (state(store, id), job(store, id).error_kind) == ("failed", "worker_died")


def test_a_job_enqueued_without_the_code_has_the_budget_that_its_worker_knew(store: Store) -> None:
    (once,) = add(store, task="once", max_attempts=None)
    (unknown,) = add(store, task="unknown", max_attempts=None)
    take(store, worker(store, once=1), 2, may_isolate=False)
    rescue(store)
    assert (state(store, once), state(store, unknown)) == ("failed", "queued")


def test_a_cancelled_job_of_a_dead_worker_is_cancelled(store: Store) -> None:
    (id,) = add(store)
    take(store, worker(store))
    store.cancel(id)
    rescue(store)
    assert state(store, id) == "cancelled"


def test_a_job_whose_worker_died_is_next_claimed_alone(store: Store) -> None:
    poison, *_ = add(store, 4)
    take(store, worker(store), 1, strategy="FIFO")
    rescue(store)
    who = worker(store, "next")
    assert store.isolated_waiting([])
    busy = take(store, who, 2, strategy="FIFO", may_isolate=False)
    assert poison not in [claim.id for claim in busy]
    (claim,) = take(store, who, 4, strategy="FIFO", may_isolate=True)
    assert claim.id == poison and claim.isolate >= 1
    end(store, claim)
    assert not store.isolated_waiting([])
    assert len(take(store, who, 4)) == 1


def test_such_a_job_waits_only_where_it_can_be_claimed(store: Store) -> None:
    add(store, queue="b")
    take(store, worker(store))
    rescue(store)
    assert store.isolated_waiting(["a", "b"])
    assert not store.isolated_waiting(["a"])
    store.set_queue("b", paused=True)
    assert not store.isolated_waiting([])


@pytest.mark.parametrize("strategy", ["PRIORITY", "FIFO", "LIFO", "WEIGHTED_RANDOM"])
def test_such_a_job_has_its_turn_also_in_the_last_of_several_queues(store: Store, strategy: str) -> None:
    (suspect,) = add(store, queue="b")
    take(store, worker(store))
    rescue(store)
    add(store, 40, queue="a", priority=1 if strategy == "LIFO" else 0)
    add(store, 10, queue="c")
    who, after, claimed = worker(store, "next"), "", []
    for _ in range(4):
        got = store.exchange(who, request=ClaimRequest(count=6, strategy=strategy, after=after))
        after = got.last_queue
        claimed.append([claim.id for claim in got.claims])
    assert [suspect] in claimed


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("strategy", names())
def test_a_job_that_has_to_run_alone_is_claimed_ahead_of_the_line(
    store: Store, strategy: str, count: int
) -> None:
    who = worker(store)
    add(store, 10, queue="a", priority=9)
    add(store, 2, queue="b", priority=-3)
    (isolated,) = add(store, queue="b", priority=-5)
    add(store, 3, queue="b", priority=9)
    run_sql(store, f"UPDATE {table(store, 'rowlock_jobs')} SET isolate = 5 WHERE id = {isolated}")
    others = take(store, who, count, strategy=strategy, may_isolate=False)
    assert len(others) == count and isolated not in [claim.id for claim in others]
    assert {claim.queue for claim in take(store, who, count, strategy=strategy, queues=("a",))} == {"a"}
    store.set_queue("b", paused=True)
    assert {claim.queue for claim in take(store, who, count, strategy=strategy)} == {"a"}
    store.set_queue("b", paused=False)
    (alone,) = take(store, who, count, strategy=strategy)
    assert alone.id == isolated


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("strategy", names())
@pytest.mark.parametrize("queues", [(), ("a", "b", "c")], ids=["all", "named"])
def test_a_queue_with_nothing_but_jobs_that_have_to_run_alone_is_passed_over(
    store: Store, strategy: str, count: int, queues: tuple[str, ...]
) -> None:
    """By a worker that may not take them: it would ask that queue again and again."""
    who = worker(store)
    add(store, queue="a")
    add(store, queue="b")
    run_sql(store, f"UPDATE {table(store, 'rowlock_jobs')} SET isolate = 5")
    mine = add(store, 2, queue="c")
    want = ClaimRequest(count=count, strategy=strategy, queues=queues, may_isolate=False)
    claimed = [claim.id for _ in range(3 - count) for claim in store.exchange(who, request=want).claims]
    assert sorted(claimed) == mine
    assert take(store, who, may_isolate=False) == []  # which it remembers
    assert not store.source.has_work(who, want) and store.source.has_work(who, ClaimRequest(count=1))


@pytest.mark.parametrize(("lived", "isolate"), [(0.0, 10), (25.0, 35), (500.0, 60)])
def test_it_runs_alone_for_as_long_as_it_may_have_lived_up_to_a_minute(
    store: Store, lived: float, isolate: int
) -> None:
    start = time.time()
    who = worker(store, now=start)
    add(store, now=start)
    take(store, who, now=start)
    store.beat(who, "FIFO", now=start + lived)
    rescue(store, now=start + lived + 61)
    (claim,) = take(store, worker(store, "next"))
    assert claim.isolate == isolate  # until the last beat, and until the next would have been due


def test_a_worker_declared_dead_hears_it_at_its_next_beat(store: Store) -> None:
    who = worker(store)
    rescue(store)
    assert not store.beat(who, "FIFO")
    assert [one.ended for one in store.workers() if one.id == who] == ["silent"]


def test_a_rescuer_that_was_silent_itself_waits(store: Store) -> None:
    """Everyone froze together: nobody is dead before somebody has shown that time went on."""
    who, rescuer = worker(store), worker(store, "rescuer")
    (id,) = add(store)
    take(store, who)
    did = store.rescue(rescuer, careful_age=20, now=late())
    assert did.waited and did.workers == []
    assert state(store, id) == "running"
    store.beat(rescuer, "FIFO", now=late())
    assert store.rescue(rescuer, careful_age=20, now=late(62)).workers == [who]


def test_a_rescuer_that_has_just_come_back_waits_although_its_beat_is_fresh(store: Store) -> None:
    """Everyone froze together, and its own heartbeat came first: the others are about to beat, too."""
    who, rescuer = worker(store), worker(store, "rescuer", now=late())
    (id,) = add(store)
    take(store, who)
    did = store.rescue(rescuer, careful_age=20, now=late(), may_rescue=lambda: False)
    assert did.waited and did.workers == []
    assert state(store, id) == "running"


def test_each_worker_has_its_own_lease(store: Store) -> None:
    short, long = worker(store, "short", lease=1.0), worker(store, "long", lease=600.0)
    add(store, 2)
    take(store, short)
    take(store, long)
    assert rescue(store, now=late(2)) == [short]


@pytest.mark.file_mode
def test_a_worker_that_retires_gives_its_claims_back_free_of_charge(store: Store) -> None:
    who = worker(store)
    (id,) = add(store)
    take(store, who)
    store.retire(who)
    assert (state(store, id), job(store, id).failures) == ("queued", 0)
    assert events(store, id) == ["released"]
    (record,) = store.workers()
    assert (record.ended, record.alive) == ("stopped", False)


def test_an_id_that_was_used_before_gets_a_suffix(store: Store) -> None:
    assert [worker(store, "me") for _ in range(3)] == ["me", "me.2", "me.3"]


def test_a_worker_is_told_what_it_holds_and_what_is_to_be_cancelled(store: Store) -> None:
    one, other = worker(store, "one"), worker(store, "other")
    add(store, 3)
    mine, theirs = take(store, one)[0], take(store, other)[0]
    store.cancel(mine.id)
    store.cancel(theirs.id)
    assert store.held(one) == [(mine.id, mine.claim, True)]


def test_workers_tell_who_they_are_and_what_they_hold(store: Store) -> None:
    who = worker(store, "me", resize=3)
    add(store, 2)
    take(store, who, 2)
    (record,) = store.workers()
    assert (record.id, record.host, record.running, record.alive) == ("me", "host", 2, True)
    assert record.tasks == {"resize": {"max_attempts": 3}}
    assert 0 <= record.beat_age < 10
    assert not store.workers(now=late())[0].alive


@pytest.mark.parametrize("moment", [59.0, 61.0])
def test_maintenance_is_needed_when_the_first_lease_runs_out(store: Store, moment: float) -> None:
    me = worker(store, "me")
    assert store.next_needed(me) is None
    worker(store, "other")
    needed = store.next_needed(me, now=late(moment))
    assert needed == pytest.approx(max(0.0, 60 - moment), abs=0.5)
