"""A relay by itself: what it hands over and when, and what comes back. The target here is a list."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.job import Claim, ClaimKey, ClaimRequest
from rowlock.relays.base import Relay
from rowlock.relays.messages import TargetError
from tests.stores.steps import worker as register


class ListTarget:
    """Keeps what it is sent, in order; a test may lose some of it, or switch it off."""

    name = "a list"

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.off = self.refuses = False
        self.looks = 0

    def check(self) -> None:
        if self.off:
            raise TargetError("the list is switched off")

    def waiting(self, name: str) -> int:
        self.check()
        self.looks += 1
        return sum(claim.queue == name for claim in self.claims)

    def send(self, claims: Sequence[Claim]) -> None:
        if self.refuses:
            raise TargetError("the list is full")
        self.claims += claims

    def kept(self, names: Collection[str]) -> set[ClaimKey]:
        self.check()
        return {(claim.id, claim.claim) for claim in self.claims if claim.queue in names}

    def remove(self, claims: Sequence[Claim]) -> None:
        keys = {(claim.id, claim.claim) for claim in claims}
        self.claims = [claim for claim in self.claims if (claim.id, claim.claim) not in keys]

    def close(self) -> None:
        """Nothing is open."""

    def ids(self) -> list[int]:
        return [claim.id for claim in self.claims]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Rowlock]:
    """With a lease that no machine is too busy for: who is late to beat hands nothing over in that cycle."""
    with closing(Rowlock(f"sqlite:///{tmp_path / 'jobs.db'}", poll_interval=0.05, lease=60.0)) as made:
        yield made


@pytest.fixture
def target() -> ListTarget:
    return ListTarget()


@pytest.fixture
def add(app: Rowlock) -> Any:
    @app.task
    def add(a: int) -> int:
        return a

    return add


@pytest.fixture
def relay(app: Rowlock, target: ListTarget, add: Any) -> Iterator[Relay]:
    made = Relay(app, app.workload(), target, ahead=4)
    yield made
    made.close()


def begin(app: Rowlock, claim: Claim) -> list[Claim]:
    register(app.store, "rq")
    return app.store.start("rq", (claim.id, claim.claim)).claims


def test_jobs_are_handed_over_in_order_and_not_more_than_may_wait(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    low = [add.configure(priority=0).enqueue(n).id for n in range(3)]
    high = [add.configure(priority=9).enqueue(n).id for n in range(3)]
    relay.run_once()
    assert target.ids() == [*high, low[0]]
    assert [app.job(id).state for id in low[1:]] == ["queued", "queued"]
    relay.run_once()
    assert len(target.claims) == 4  # still full
    del target.claims[:2]
    relay.run_once()
    assert target.ids()[-2:] == low[1:]


def test_a_queue_that_nobody_works_on_does_not_keep_others_from_being_handed_over(
    relay: Relay, target: ListTarget, add: Any
) -> None:
    add.configure(queue="a").enqueue_many([{"a": n} for n in range(6)])
    relay.run_once()
    job = add.configure(queue="b").enqueue(1)
    relay.run_once()
    assert job.id in target.ids()


def test_a_job_that_finds_everybody_idle_is_sent_without_a_look_at_the_target(
    app: Rowlock, target: ListTarget, add: Any
) -> None:
    """Each look would be a round trip between a job and its start."""
    relay = Relay(app, app.workload(), target)
    add.configure(queue="a").enqueue(1)
    relay.run_once()
    first, target.looks = target.claims.pop(), 0
    begin(app, first)
    job = add.configure(queue="a").enqueue(2)
    relay.run_once()
    assert (target.ids(), target.looks) == ([job.id], 0)
    relay.close()


def test_jobs_that_come_one_by_one_do_not_fill_the_target_either(
    app: Rowlock, target: ListTarget, add: Any
) -> None:
    relay = Relay(app, app.workload(), target, ahead=16)
    for n in range(24):
        add.enqueue(n)
        relay.run_once()
    assert 8 < len(target.claims) <= 16
    relay.close()


def test_what_is_overdue_fails_and_is_not_handed_over(app: Rowlock, target: ListTarget, add: Any) -> None:
    long_ago = time.time() - 1000
    (old,) = app.store.insert([_new("add")], now=long_ago)
    new = add.enqueue(1)
    made = Rowlock(app.settings.database_url, lease=60.0, failed_after=500.0)
    made.task(name="add")(lambda a: a)
    relay = Relay(made, made.workload(), target)
    relay.run_once()
    assert target.ids() == [new.id]
    assert (app.job(old.id).state, app.job(old.id).error_kind) == ("failed", "overdue")
    relay.close()
    made.close()


def test_what_was_handed_over_and_never_begun_is_overdue_in_time(
    app: Rowlock, target: ListTarget, add: Any
) -> None:
    made = Rowlock(app.settings.database_url, lease=60.0, failed_after=0.1)
    made.task(name="add")(lambda a: a)
    job, relay = add.enqueue(1), Relay(made, made.workload(), target)
    relay.run_once()
    _until(lambda: relay.run_once() is not None and app.job(job.id).state == "failed")
    assert app.job(job.id).error_kind == "overdue"
    relay.close()
    made.close()


@pytest.mark.parametrize("at_its_end", [False, True], ids=["at a look", "at its end"])
def test_what_was_overdue_in_the_target_does_not_stay_there(
    app: Rowlock, target: ListTarget, add: Any, at_its_end: bool
) -> None:
    """Else what waits there would grow past its bound, for nobody counts what has ended."""
    made = Rowlock(app.settings.database_url, lease=60.0, failed_after=0.1)
    made.task(name="add")(lambda a: a)
    relay = Relay(made, made.workload(), target)
    job = add.enqueue(1)
    relay.run_once()
    assert target.ids() == [job.id]
    _until(lambda: relay.run_once() is not None and not relay.sent)
    assert app.job(job.id).error_kind == "overdue"
    relay.close() if at_its_end else relay.look()
    assert target.ids() == []
    relay.close()
    made.close()


def test_the_claims_of_a_dead_worker_are_rescued_and_handed_over_in_one_cycle(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    job = add.enqueue(1)
    long_ago = time.time() - 1000
    register(app.store, "dead", now=long_ago)
    app.store.exchange("dead", request=ClaimRequest(count=1), now=long_ago)
    relay.run_once()
    assert [(claim.id, claim.claim) for claim in target.claims] == [(job.id, 2)]


def test_without_its_target_jobs_stay_queued_and_that_is_said_once(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    target.off = True
    job = add.enqueue(1)
    with caplog.at_level(logging.INFO, "rowlock.relay"):
        _until(lambda: relay.run_once() > 0.3)  # tried less and less often
        assert app.job(job.id).state == "queued"
        target.off = False
        _until(lambda: relay.run_once() is not None and target.ids() == [job.id])
    assert [record.message for record in caplog.records] == [
        "the list is switched off; jobs stay queued until it can be used again",
        "a list can be used again",
    ]


def test_what_could_not_be_sent_is_queued_again_free_of_charge(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    target.refuses = True
    job = add.enqueue(1)
    relay.run_once()
    found = app.job(job.id)
    assert (found.state, found.failures, found.claim) == ("queued", 0, 1)


def test_of_several_queues_all_comes_back_that_could_not_be_sent(
    app: Rowlock, target: ListTarget, add: Any
) -> None:
    relay = Relay(app, app.workload(["a", "b"]), target)
    target.refuses = True
    jobs = [add.configure(queue=name).enqueue(1) for name in ("a", "b")]
    relay.run_once()
    assert [app.job(job.id).state for job in jobs] == ["queued", "queued"]
    relay.close()


def test_what_the_target_lost_comes_back_after_two_looks(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    kept, lost = add.enqueue(1), add.enqueue(2)
    relay.run_once()
    del target.claims[1]
    relay.look()
    assert app.job(lost.id).state == "running"
    relay.look()
    assert [app.job(job.id).state for job in (kept, lost)] == ["running", "queued"]
    assert app.job(lost.id).failures == 0
    relay.run_once()
    assert [(claim.id, claim.claim) for claim in target.claims] == [(kept.id, 1), (lost.id, 2)]


def test_what_has_begun_is_not_taken_back(app: Rowlock, relay: Relay, target: ListTarget, add: Any) -> None:
    job = add.enqueue(1)
    relay.run_once()
    relay.look()
    (claim,) = target.claims
    target.claims.clear()
    relay.look()
    assert begin(app, claim)
    relay.look()
    assert (app.job(job.id).state, app.job(job.id).claimed_by) == ("running", "rq")


def test_a_cancel_reaches_what_waits_in_the_target(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    job = add.enqueue(1)
    relay.run_once()
    app.cancel(job.id)
    _until(lambda: relay.run_once() is not None and app.job(job.id).state == "cancelled")
    assert target.ids() == []


def test_a_deadline_that_passes_in_the_target_ends_the_job_also_if_no_worker_comes(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    late, other = add.configure(expires=0.1).enqueue(1), add.enqueue(2)
    relay.run_once()
    assert target.ids() == [late.id, other.id]
    _until(lambda: relay.run_once() is not None and app.job(late.id).state == "failed")
    assert app.job(late.id).error_kind == "expired" and app.job(late.id).claim == 1
    assert target.ids() == [other.id]


def test_what_waits_in_the_target_is_looked_after_between_polls(
    app: Rowlock, target: ListTarget, add: Any
) -> None:
    """Nobody tells a relay on PostgreSQL of a cancel, and its polls may be half a minute apart."""
    made = Rowlock(app.settings.database_url, lease=60.0, poll_interval=600.0)
    made.task(name="add")(lambda a: a)
    relay = Relay(made, made.workload(), target)
    add.enqueue(1)
    relay.run_once()
    assert relay.run_once() <= 1.0
    relay.close()
    made.close()


def test_a_relay_that_ends_takes_back_what_nobody_began(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    begun, waiting = add.enqueue(1), add.enqueue(2)
    relay.run_once()
    begin(app, target.claims[0])
    target.claims.pop(0)
    relay.close()
    assert [app.job(job.id).state for job in (begun, waiting)] == ["running", "queued"]
    assert target.ids() == [] and relay.sent.taken_back == 1


def test_jobs_of_tasks_that_it_does_not_know_are_left_to_others(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    (other,) = app.store.insert([_new("of another app")])
    job = add.enqueue(1)
    relay.run_once()
    relay.run_once()
    assert target.ids() == [job.id]
    assert app.job(other.id).failures == 0 and app.job(other.id).state in ("scheduled", "queued")


def test_a_paused_queue_is_not_handed_over(app: Rowlock, relay: Relay, target: ListTarget, add: Any) -> None:
    app.pause("default")
    add.enqueue(1)
    relay.run_once()
    assert target.ids() == []


def test_a_relay_that_was_declared_dead_goes_on_under_another_id(
    app: Rowlock, relay: Relay, target: ListTarget, add: Any
) -> None:
    add.enqueue(1)
    relay.run_once()
    first, later = relay.id, time.time() + 1000
    rescuer = register(app.store, "rescuer", now=later)
    assert app.store.rescue(rescuer, careful_age=10.0, now=later).requeued == 1
    _until(lambda: relay.run_once() is not None and len(target.claims) == 2)
    assert relay.id != first and [claim.claim for claim in target.claims] == [1, 2]


def _new(task: str) -> Any:
    from tests.stores.steps import new

    return new(task, args='{"a": 1}')


def _until(predicate: Callable[[], Any]) -> None:
    from tests.eventually import eventually

    eventually(predicate)
