"""Claims that a relay hands over: not begun, begun once by another worker, or taken back free of charge."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from rowlock.claim_outcomes import ended
from rowlock.endings import Event
from rowlock.errors import WorkerGone
from rowlock.job import Claim, ClaimRequest, Ending, Outcome
from rowlock.retry import DEFAULT
from rowlock.stores.sql.store import Store
from tests.stores.steps import add, end, events, job, state, take, worker

START = time.time()
LATER = START + 1000.0


def handed_over(
    store: Store, relay: str, count: int = 1, now: float | None = None, **want: Any
) -> list[Claim]:
    return store.hand_over(relay, ClaimRequest(count=count, **want), now=now).claims


def begun(
    store: Store, who: str, claim: Claim, now: float | None = None, queues: tuple[str, ...] = ()
) -> list[Claim]:
    return store.start(who, (claim.id, claim.claim), queues, now=now).claims


def taken_back(store: Store, claim: Claim) -> bool:
    plain: Outcome = ended(claim, Event.RELEASED, DEFAULT, began=False)
    outcome = msgspec.structs.replace(plain, not_begun=True)
    return not store.exchange(claim.claimed_by, [outcome]).lost


def test_what_is_handed_over_is_claimed_and_has_not_begun(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay"))
    found = job(store, id)
    assert (found.state, found.claimed_by, found.claim) == ("running", "relay", 1)
    assert found.claimed_at is not None and found.started_at is None
    assert not handed_over(store, "relay") and claim.id == id


def test_what_nobody_has_begun_waits_in_the_pulse_and_a_relay_is_no_worker_there(store: Store) -> None:
    add(store, queue="a", now=START - 90)
    add(store, queue="a", now=START - 30)
    add(store, queue="b", now=START - 20)
    relay = worker(store, "relay", now=START)
    store.tell(relay, {"relay": "RQ"})
    first, *_ = handed_over(store, relay, 3, now=START)
    pulse = store.pulse(now=START)
    assert (pulse.workers, pulse.waiting) == ([], {})
    assert pulse.handed_over == {"a": pytest.approx(90, abs=1), "b": pytest.approx(20, abs=1)}
    begun(store, worker(store, "rq", now=START), first, now=START)
    pulse = store.pulse(now=START)
    assert (pulse.workers, pulse.handed_over["a"]) == ([()], pytest.approx(30, abs=1))


def test_an_ordinary_claim_has_begun(store: Store) -> None:
    (id,) = add(store)
    take(store, worker(store))
    assert job(store, id).started_at is not None


def test_a_start_moves_the_claim_to_the_worker_that_begins_it(store: Store) -> None:
    (id,) = add(store, args='{"a": 1}')
    (claim,) = handed_over(store, worker(store, "relay"))
    (own,) = begun(store, worker(store, "rq"), claim)
    assert (own.id, own.claim, own.claimed_by, own.args) == (id, claim.claim, "rq", {"a": 1})
    found = job(store, id)
    assert (found.claimed_by, found.started_at is not None) == ("rq", True)
    assert store.held("relay") == [] and store.held("rq") == [(id, 1, False)]
    assert end(store, own) and state(store, id) == "completed"


def test_a_claim_is_begun_once(store: Store) -> None:
    add(store)
    (claim,) = handed_over(store, worker(store, "relay"))
    assert begun(store, worker(store, "rq"), claim)
    assert not begun(store, "rq", claim)
    assert not begun(store, worker(store, "other"), claim)


def test_a_start_with_an_old_claim_number_is_refused(store: Store) -> None:
    add(store)
    (old,) = handed_over(store, worker(store, "relay"))
    assert taken_back(store, old)
    (new,) = handed_over(store, "relay")
    worker(store, "rq")
    assert not begun(store, "rq", old)
    assert begun(store, "rq", new)


def test_a_claim_of_another_queue_than_those_named_is_not_begun(store: Store) -> None:
    (id,) = add(store, queue="gpu")
    (claim,) = handed_over(store, worker(store, "relay"))
    worker(store, "rq")
    assert not begun(store, "rq", claim, queues=("default", "mail"))
    assert (job(store, id).claimed_by, job(store, id).started_at) == ("relay", None)
    assert begun(store, "rq", claim, queues=("default", "gpu"))


def test_an_ordinary_claim_cannot_be_begun_by_another(store: Store) -> None:
    add(store)
    (claim,) = take(store, worker(store))
    assert not begun(store, worker(store, "rq"), claim)


def test_what_nobody_began_is_taken_back_free_of_charge(store: Store) -> None:
    (id, _) = add(store, 2)
    (claim,) = handed_over(store, worker(store, "relay"))
    assert taken_back(store, claim)
    found = job(store, id)
    assert (found.state, found.failures, found.claimed_by) == ("queued", 0, None)
    assert handed_over(store, "relay")[0].id == id  # at its old position


def test_what_has_begun_is_not_taken_back(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay"))
    begun(store, worker(store, "rq"), claim)
    assert not taken_back(store, claim)
    assert job(store, id).claimed_by == "rq"


def test_the_claims_of_a_dead_relay_come_back_without_charge_and_without_isolation(store: Store) -> None:
    (id,) = add(store, max_attempts=1)
    handed_over(store, worker(store, "relay", now=START), now=START)
    rescuer = worker(store, "rescuer", now=LATER)
    assert store.rescue(rescuer, careful_age=10.0, now=LATER).requeued == 1
    found = job(store, id)
    assert (found.state, found.failures) == ("queued", 0)
    (claim,) = take(store, rescuer, now=LATER)
    assert claim.isolate == 0


def test_a_claim_that_was_begun_is_not_a_dead_relays_any_more(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay", now=START), now=START)
    begun(store, worker(store, "rq", now=LATER), claim, now=LATER)
    assert store.rescue("rq", careful_age=10.0, now=LATER).workers == ["relay"]
    assert job(store, id).claimed_by == "rq" and state(store, id) == "running"


def test_a_worker_that_dies_after_the_start_is_rescued_like_any_other(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay", now=LATER), now=LATER)
    begun(store, worker(store, "rq", now=START), claim, now=START)
    assert store.rescue("relay", careful_age=10.0, now=LATER).requeued == 1
    (again,) = take(store, "relay", now=LATER)
    assert again.id == id and again.isolate > 0


def test_a_relay_that_ends_in_good_order_gives_back_what_nobody_began(store: Store) -> None:
    ids = add(store, 2, max_attempts=1)
    claims = handed_over(store, worker(store, "relay"), 2)
    begun(store, worker(store, "rq"), claims[0])
    store.retire("relay")
    assert [state(store, id) for id in ids] == ["running", "queued"]


def test_a_start_that_finds_a_cancel_ends_the_job(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay"))
    store.cancel(id)
    assert state(store, id) == "running"
    assert not begun(store, worker(store, "rq"), claim)
    assert state(store, id) == "cancelled"


def test_a_start_in_a_paused_queue_gives_the_job_back(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay"))
    store.set_queue("default", paused=True)
    assert not begun(store, worker(store, "rq"), claim)
    assert (state(store, id), job(store, id).failures) == ("queued", 0)


def test_a_start_after_a_pause_that_nobody_ended_begins_the_job(store: Store) -> None:
    add(store, 2, now=START)
    first, second = handed_over(store, worker(store, "relay", now=START), 2, now=START)
    who = worker(store, "rq", now=START)
    (running,) = begun(store, who, first, now=START)
    end(store, running, Ending.RETRY, now=START, delay=10.0, pause=True)
    assert begun(store, who, second, now=START + 11)


def test_a_start_after_the_deadline_fails_the_job(store: Store) -> None:
    (id,) = add(store, now=START, expires=60.0)
    (claim,) = handed_over(store, worker(store, "relay", now=START), now=START)
    assert not begun(store, worker(store, "rq", now=LATER), claim, now=LATER)
    found = job(store, id)
    assert (found.state, found.error_kind) == ("failed", "expired")


def test_what_was_handed_over_and_never_begun_is_overdue_though_its_relay_lives(store: Store) -> None:
    ids = add(store, 2, now=START)
    claims = handed_over(store, worker(store, "relay", now=LATER), 2, now=START)
    begun(store, worker(store, "rq", now=LATER), claims[0], now=START)
    assert store.fail_overdue(500.0, 20, now=LATER) == 1
    assert [state(store, id) for id in ids] == ["running", "failed"]
    assert job(store, ids[1]).error_kind == "overdue"


def test_a_dead_worker_begins_nothing(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay", now=LATER), now=LATER)
    worker(store, "rq", now=START)
    store.rescue("relay", careful_age=10.0, now=LATER)
    with pytest.raises(WorkerGone):
        begun(store, "rq", claim, now=LATER)
    assert job(store, id).started_at is None


def test_a_start_and_the_outcome_of_the_last_run_are_one_exchange(store: Store) -> None:
    ids = add(store, 2)
    first, second = handed_over(store, worker(store, "relay"), 2)
    (running,) = begun(store, worker(store, "rq"), first)
    done = Outcome(id=running.id, claim=running.claim, ending=Ending.COMPLETED, result="1")
    got = store.start("rq", (second.id, second.claim), outcomes=[done])
    assert [claim.id for claim in got.claims] == ids[1:] and not got.lost
    assert [state(store, id) for id in ids] == ["completed", "running"]


def test_the_timeline_of_a_job_says_that_it_was_given_back(store: Store) -> None:
    (id,) = add(store)
    (claim,) = handed_over(store, worker(store, "relay"))
    taken_back(store, claim)
    assert events(store, id) == ["released"]
