"""Every write that ends, extends or reports on a claim, against what would break it, in every order.

A story has two callers. What the second does happens before each single step of what the first does, and
after all of it; whichever way it falls, nothing may be lost, overwritten, charged twice or told wrongly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from rowlock.errors import JobNotFound, RowlockError, WorkerGone, WrongState
from rowlock.job import Claim, ClaimRequest, Ending, LogLine, Outcome, Progress, Report, State
from rowlock.stores.address import store_for
from rowlock.stores.base import Retention
from rowlock.stores.sql.store import Store
from rowlock.strategies import names
from tests.servers.postgres import fresh_schema
from tests.stores.interleaving import meanwhile, rival_of
from tests.stores.steps import (
    add,
    emptied,
    end,
    events,
    job,
    new,
    outcome,
    run_sql,
    state,
    table,
    take,
    worker,
)

NOW = 1_800_000_000.0
SOON = NOW + 10.0
LATER = NOW + 100.0  # the lease of whoever was last heard of at NOW has run out
SHORT = Retention(completed=50.0, failed=50.0)
# What the stories run is measured elsewhere, and here it would take three times as long.
pytestmark = pytest.mark.no_cover


class Stage:
    """One job, the worker that had it first and fell silent, two that live, and what they can do."""

    def __init__(self, store: Store, **fields: Any) -> None:
        self.store = store
        self.old = worker(store, "old", now=NOW)
        self.live, self.third = worker(store, "live", now=LATER), worker(store, "third", now=LATER)
        (self.id,) = add(store, now=NOW, **fields)
        self.first: Claim | None = None
        self.second: Claim | None = None

    # What the old one can do, always as it was told at its claim.

    def begin(self) -> Stage:
        (self.first,) = take(self.store, self.old, now=NOW)
        return self

    def finish(self, store: Store, ending: Ending = Ending.COMPLETED) -> bool:
        assert self.first is not None
        charge = ending in (Ending.RETRY, Ending.FAILED)
        return end(store, self.first, ending, now=LATER, charge=charge, result='"old"', error="old")

    def finish_and_claim(self, store: Store, count: int = 1) -> bool:
        """The way of a busy worker, which PostgreSQL goes in one statement."""
        assert self.first is not None
        outcomes = [outcome(self.first, Ending.COMPLETED, result='"old"')]
        if count > 1:
            nobodys = Outcome(id=self.id + 10**6, claim=1, ending=Ending.COMPLETED)
            outcomes.append(nobodys)
        got = store.exchange(self.old, outcomes, ClaimRequest(count=count, queues=("empty",)), now=LATER)
        return outcomes[0] not in got.lost

    def report(self, store: Store) -> None:
        assert self.first is not None
        said = Report(id=self.id, claim=self.first.claim, progress=Progress(1), lines=[LogLine(NOW, "old")])
        store.report([said], now=LATER)

    def beat(self, store: Store) -> bool:
        return store.beat(self.old, "FIFO", now=LATER)

    def retire(self, store: Store) -> None:
        store.retire(self.old, now=LATER)

    # What everybody else can do.

    def rescue(self, store: Store, who: str = "live") -> int:
        """How many claims it took back."""
        did = store.rescue(getattr(self, who), careful_age=20, now=LATER)
        assert not did.waited
        return did.requeued + did.failed + did.cancelled

    def claim(self, store: Store, now: float = LATER) -> bool:
        claims = take(store, self.live, now=now)
        self.second = claims[0] if claims else None
        return bool(claims)

    def complete_second(self, store: Store) -> bool:
        return self.second is not None and end(store, self.second, now=LATER, result='"new"')

    def report_second(self, store: Store) -> None:
        if self.second is not None:
            said = Report(id=self.id, claim=self.second.claim, progress=Progress(2))
            store.report([said], now=LATER)

    def cancel(self, store: Store) -> None:
        store.cancel(self.id, now=LATER)

    def retry(self, store: Store) -> bool:
        return self.allowed(lambda: store.retry(self.id, now=LATER))

    def expire(self, store: Store) -> int:
        return store.expire(10, now=LATER)

    def fail_overdue(self, store: Store) -> int:
        return store.fail_overdue(50.0, 20, now=LATER)

    def prune(self, store: Store) -> int:
        return store.prune(SHORT, after=0, most=10, now=LATER)[0]

    @staticmethod
    def allowed(act: Callable[[], object]) -> bool:
        try:
            act()
        except (WrongState, JobNotFound):
            return False
        return True

    # What became of it.

    @property
    def state(self) -> str:
        return state(self.store, self.id)

    @property
    def events(self) -> list[str]:
        return events(self.store, self.id)

    @property
    def failures(self) -> int:
        return job(self.store, self.id).failures


Step = Callable[[Stage, Store], object]
Ended = tuple[Stage, object, list[object]]


class Director:
    """Plays a story in every order there is, on an empty stage each time."""

    def __init__(self, store: Store, rival: Store) -> None:
        self.store = store
        self.rival = rival

    def every_order(self, stage: Callable[[Store], Stage], call: Step, *acts: Step) -> Iterator[Ended]:
        """For each order: the stage at the end, what the first caller was told, and what the second was."""
        for moment in itertools.count():
            emptied(self.store)
            scene = stage(self.store)
            told: list[object] = []

            def meddle(scene: Stage = scene, told: list[object] = told) -> None:
                while len(told) < len(acts):  # goes on where it was held up
                    told.append(acts[len(told)](scene, self.rival))

            with meanwhile(self.store, moment, meddle) as thing:
                answer = call(scene, self.store)
            if not thing.happened:
                meddle()
            yield scene, answer, told
            if not thing.happened:
                assert moment > 1  # else nothing was watched
                return


@pytest.fixture(
    scope="module", params=["sqlite", "postgres", pytest.param("old_postgres", marks=pytest.mark.chaos)]
)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One database for all stories: each begins by emptying it, which is quicker than a new one."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('fences') / 'queue.db'}"
    else:
        with fresh_schema(request.getfixturevalue(request.param)) as schema:
            yield schema


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(store_for(url)) as made:
        made.open()
        emptied(made)
        yield made


@pytest.fixture
def director(url: str, store: Store) -> Iterator[Director]:
    with rival_of(url) as rival:
        yield Director(store, rival)


def running(store: Store, **fields: Any) -> Stage:
    return Stage(store, **fields).begin()


def ownerless(store: Store, **fields: Any) -> Stage:
    """Running, for a worker whose row is gone, so that nobody will rescue it."""
    stage = running(store, **fields)
    run_sql(store, f"DELETE FROM {table(store, 'rowlock_workers')} WHERE id = 'old'")
    return stage


def failed(store: Store, **fields: Any) -> Stage:
    stage = running(store, **fields)
    assert stage.first is not None
    end(store, stage.first, Ending.FAILED, now=NOW, error="first")
    return stage


# -- outcomes against a rescue and the next run --------------------------------------------------


@pytest.mark.parametrize("ending", list(Ending))
def test_an_outcome_and_a_rescue_exclude_each_other(director: Director, ending: Ending) -> None:
    def finish(stage: Stage, store: Store) -> bool:
        return stage.finish(store, ending)

    for stage, accepted, (rescued,) in director.every_order(running, finish, Stage.rescue):
        assert rescued == (not accepted)
        assert stage.events == (["rescued"] if rescued else [] if ending is Ending.COMPLETED else [ending])
        assert stage.failures == (1 if accepted and ending in (Ending.RETRY, Ending.FAILED) else 0)


@pytest.mark.parametrize("ending", list(Ending))
def test_a_rescue_and_an_outcome_exclude_each_other(director: Director, ending: Ending) -> None:
    """The same with the rescuer in the middle of its work."""

    def finish(stage: Stage, store: Store) -> bool:
        return stage.finish(store, ending)

    for stage, rescued, (accepted,) in director.every_order(running, Stage.rescue, finish):
        assert rescued == (not accepted)
        assert stage.events.count("rescued") == rescued
        assert stage.failures == (1 if accepted and ending in (Ending.RETRY, Ending.FAILED) else 0)


@pytest.mark.parametrize("way", ["by itself", "with a want", "among others"])
@pytest.mark.parametrize("ended", [False, True], ids=["newer run", "newer result"])
def test_a_late_outcome_never_touches_what_came_after(director: Director, way: str, ended: bool) -> None:
    finishes: dict[str, Step] = {
        "by itself": Stage.finish,
        "with a want": Stage.finish_and_claim,
        "among others": lambda stage, store: stage.finish_and_claim(store, count=3),
    }
    acts: list[Step] = [Stage.rescue, Stage.claim, Stage.complete_second]
    for stage, accepted, (rescued, claimed, *_) in director.every_order(
        running, finishes[way], *(acts if ended else acts[:2])
    ):
        assert rescued == claimed == (not accepted)
        if claimed and not ended:
            assert (stage.state, job(stage.store, stage.id).claimed_by) == ("running", stage.live)
            assert stage.complete_second(stage.store)
        assert job(stage.store, stage.id).result == ("new" if claimed else "old")


@pytest.mark.parametrize("ending", list(Ending))
def test_no_late_outcome_whatever_it_is_ends_the_next_claim(director: Director, ending: Ending) -> None:
    def finish(stage: Stage, store: Store) -> bool:
        return stage.finish(store, ending)

    released_and_claimed = (lambda stage, store: stage.finish(store, Ending.RELEASED), Stage.claim)
    for stage, accepted, (released, claimed) in director.every_order(running, finish, *released_and_claimed):
        assert accepted != released
        if released:
            assert claimed and (stage.state, job(stage.store, stage.id).claim) == ("running", 2)
            assert stage.complete_second(stage.store)


def test_a_tasks_own_transaction_is_refused_after_a_rescue(store: Store, url: str) -> None:
    stage = running(store)
    assert stage.first is not None
    done = outcome(stage.first, Ending.COMPLETED, result='"old"')
    last = Report(id=stage.id, claim=1, progress=Progress(9), lines=[LogLine(NOW, "late")])
    with closing(store.transaction(None)) as tx, rival_of(url) as rival:
        assert stage.rescue(rival) and stage.claim(rival)
        assert not store.finish_on(tx, stage.old, done, last)
        assert stage.state == "running"
        tx.commit()  # the caller would not: even so nothing of it is there
    assert stage.complete_second(store) and job(store, stage.id).result == "new"
    assert store.logs(stage.id) == []


def test_a_tasks_own_transaction_wins_against_a_rescuer_that_comes_later(store: Store, url: str) -> None:
    stage = running(store)
    assert stage.first is not None
    done = outcome(stage.first, Ending.COMPLETED, result='"old"')
    with closing(store.transaction(None)) as tx, rival_of(url) as rival:
        assert store.finish_on(tx, stage.old, done, None)
        with pytest.raises(RowlockError):  # held up by the row that is about to be completed
            stage.rescue(rival)
        tx.commit()
    assert stage.rescue(store) == 0
    assert (stage.state, stage.failures, stage.events) == ("completed", 0, [])


# -- reports -------------------------------------------------------------------------------------


def test_a_late_report_does_not_hide_the_newer_runs(director: Director) -> None:
    acts = (Stage.rescue, Stage.claim, Stage.report_second)
    for stage, _, _ in director.every_order(running, Stage.report, *acts):
        assert job(stage.store, stage.id).progress == Progress(2)
        assert {line.claim for line in stage.store.logs(stage.id)} <= {1}


@pytest.mark.parametrize("ending", list(Ending))
def test_a_report_after_the_end_is_refused(director: Director, ending: Ending) -> None:
    def finish(stage: Stage, store: Store) -> bool:
        return stage.finish(store, ending)

    for stage, _, _ in director.every_order(running, Stage.report, finish):
        before = job(stage.store, stage.id), stage.store.logs(stage.id)
        late = Report(id=stage.id, claim=1, progress=Progress(9), lines=[LogLine(NOW, "late")])
        stage.store.report([late], now=LATER)
        assert (job(stage.store, stage.id), stage.store.logs(stage.id)) == before


# -- life and death ------------------------------------------------------------------------------


def test_a_beat_and_a_burial_exclude_each_other(director: Director) -> None:
    """Also if the rescuer looked before the beat, and writes after it."""
    for stage, rescued, (alive,) in director.every_order(running, Stage.rescue, Stage.beat):
        (record,) = [one for one in stage.store.workers(now=LATER) if one.id == stage.old]
        assert rescued == (not alive) == (record.ended == "silent")
        assert stage.finish(stage.store) is alive


def test_a_burial_in_the_middle_of_a_beat(director: Director) -> None:
    for stage, alive, (rescued,) in director.every_order(running, Stage.beat, Stage.rescue):
        assert rescued == (not alive)
        assert stage.beat(stage.store) is alive


@pytest.mark.parametrize("budget", [1, 3])
def test_two_rescuers_at_once_take_it_back_once(director: Director, budget: int) -> None:
    def third(stage: Stage, store: Store) -> int:
        return stage.rescue(store, "third")

    for stage, one, (other,) in director.every_order(
        lambda store: running(store, max_attempts=budget), Stage.rescue, third
    ):
        assert one != other
        assert (stage.failures, stage.events) == (int(budget == 1), ["rescued"])
        assert stage.state == ("failed" if budget == 1 else "queued")


def test_a_rescuer_does_not_take_the_claim_of_the_next_worker(director: Director) -> None:
    for stage, _, (released, claimed) in director.every_order(
        running, Stage.rescue, lambda stage, store: stage.finish(store, Ending.RELEASED), Stage.claim
    ):
        if released:
            assert stage.failures == 0
        assert not claimed or stage.complete_second(stage.store)


def test_a_worker_that_retires_late_takes_nothing_from_anybody(director: Director) -> None:
    for stage, _, (rescued, claimed) in director.every_order(
        running, Stage.retire, Stage.rescue, Stage.claim
    ):
        (record,) = [one for one in stage.store.workers(now=LATER) if one.id == stage.old]
        assert record.ended == ("silent" if rescued else "stopped")
        assert stage.events == (["rescued"] if rescued else ["released"])
        assert stage.failures == 0
        # In the middle of it the job may be locked, and is passed over.
        assert claimed or stage.claim(stage.store)
        assert stage.complete_second(stage.store)


def test_a_burial_of_a_worker_that_just_retires_charges_nothing(director: Director) -> None:
    for stage, rescued, _ in director.every_order(running, Stage.rescue, Stage.retire):
        assert stage.events == (["rescued"] if rescued else ["released"])
        assert (stage.state, stage.failures) == ("queued", 0)


def test_a_rescuer_that_is_dead_itself_rescues_nobody(store: Store) -> None:
    stage = running(store)
    store.retire(stage.live, now=LATER)
    did = store.rescue(stage.live, careful_age=20, now=LATER)
    assert did.waited and did.workers == []
    assert stage.state == "running"


def test_a_rescuer_whose_own_beat_is_old_rescues_nobody_until_it_has_beaten(store: Store) -> None:
    """It looked while it was well, was frozen itself, and writes now: those it saw may be well, too."""
    stage = running(store)
    with meanwhile(store, "write", lambda: None):
        assert store.rescue(stage.third, careful_age=20, now=LATER + 21).waited
    assert stage.state == "running" and stage.beat(store)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("strategy", names())
def test_a_worker_that_was_declared_dead_claims_nothing(store: Store, strategy: str, count: int) -> None:
    stage = running(store)
    add(store, 3)
    stage.rescue(store)
    before = [found.claim for found in store.find()]
    for isolate in (True, False):
        with pytest.raises(WorkerGone):
            take(store, stage.old, count, strategy=strategy, may_isolate=isolate)
    want = ClaimRequest(count=count, strategy=strategy)
    assert stage.first is not None
    for number in (1, 2):  # one, and several, are handed back in different statements
        got = store.exchange(stage.old, [outcome(stage.first, Ending.COMPLETED)] * number, want)
        assert got.claims == [] and len(got.lost) == number
    assert [found.claim for found in store.find()] == before


@pytest.mark.parametrize("strategy", ["PRIORITY", "WEIGHTED_RANDOM"])
def test_a_claim_in_the_middle_of_a_burial_is_refused_or_taken_back(
    director: Director, strategy: str
) -> None:
    def claim(stage: Stage, store: Store) -> bool:
        try:
            claims = take(store, stage.old, 2, now=LATER, strategy=strategy)
        except WorkerGone:
            return False
        stage.first = claims[0]
        return True

    for stage, claimed, _ in director.every_order(Stage, claim, Stage.rescue):
        stage.rescue(stage.store)
        assert stage.state == "queued"
        assert not claimed or not stage.finish(stage.store)
        assert stage.claim(stage.store) and stage.complete_second(stage.store)


# -- maintenance --------------------------------------------------------------------------------------


def test_a_job_is_claimed_in_time_or_expires(director: Director) -> None:
    def claim_in_time(stage: Stage, store: Store) -> bool:
        return stage.claim(store, now=SOON)

    for stage, expired, (claimed,) in director.every_order(
        lambda store: Stage(store, expires=20.0), Stage.expire, claim_in_time
    ):
        assert expired == (not claimed)
        assert stage.state == ("running" if claimed else "failed")
        assert stage.events == ([] if claimed else ["expired"])
        assert not claimed or stage.complete_second(stage.store)


def test_a_claim_past_the_deadline_tells_it_once(director: Director) -> None:
    """On PostgreSQL the claim is made first, and its deadline looked at in a second transaction."""
    for stage, claimed, (overdue,) in director.every_order(
        lambda store: Stage(store, expires=20.0), Stage.claim, Stage.fail_overdue
    ):
        assert not claimed and stage.state == "failed"
        assert stage.events == (["failed"] if overdue else ["expired"])


@pytest.mark.parametrize("act", [Stage.cancel, Stage.retry], ids=["cancel", "retry"])
def test_an_operator_and_a_deadline_at_the_same_moment(director: Director, act: Step) -> None:
    for stage, expired, _ in director.every_order(
        lambda store: Stage(store, expires=20.0, delay=50.0), Stage.expire, act
    ):
        found = job(stage.store, stage.id)
        if act is Stage.retry:
            assert stage.state == "queued" and stage.events[-1] == "retried"
        else:
            assert stage.state == ("failed" if expired else "cancelled")
            assert stage.events == (["expired"] if expired else ["cancelled"])
            assert (found.error_kind == "expired") == bool(expired)


def test_what_is_promoted_is_still_waiting(director: Director) -> None:
    def promote(stage: Stage, store: Store) -> int:
        return store.promote(10, now=LATER)

    def delayed(store: Store) -> Stage:
        return Stage(store, delay=50.0)

    for stage, _, _ in director.every_order(delayed, promote, Stage.cancel):
        assert (stage.state, stage.events) == ("cancelled", ["cancelled"])
    for stage, one, (other, claimed, completed) in director.every_order(
        delayed, promote, promote, Stage.claim, Stage.complete_second
    ):
        assert one != other
        assert not claimed or (completed and stage.state == "completed")


def test_a_run_that_nobody_has_declared_dead_is_never_overdue(director: Director) -> None:
    for stage, overdue, (accepted,) in director.every_order(running, Stage.fail_overdue, Stage.finish):
        assert (overdue, accepted, stage.state, stage.events) == (0, True, "completed", [])


def test_a_job_without_an_owner_is_done_or_overdue(director: Director) -> None:
    for stage, overdue, (accepted,) in director.every_order(ownerless, Stage.fail_overdue, Stage.finish):
        assert overdue == (not accepted)
        assert stage.state == ("failed" if overdue else "completed")
        assert stage.events == (["failed"] if overdue else [])


def test_a_job_that_waits_is_claimed_or_overdue(director: Director) -> None:
    for stage, overdue, (claimed,) in director.every_order(Stage, Stage.fail_overdue, Stage.claim):
        assert overdue == (not claimed)
        assert stage.state == ("failed" if overdue else "running")
        assert not claimed or stage.complete_second(stage.store)


def test_a_claim_that_was_not_seen_is_not_called_overdue(director: Director) -> None:
    for stage, overdue, (_, claimed) in director.every_order(
        ownerless,
        Stage.fail_overdue,
        lambda stage, store: stage.finish(store, Ending.RELEASED),
        Stage.claim,
    ):
        told = [entry.claim for entry in stage.store.history(stage.id) if entry.event == "failed"]
        assert told == ([job(stage.store, stage.id).claim] if overdue else [])
        assert not claimed or stage.complete_second(stage.store) == (not overdue)


def test_a_job_that_an_operator_has_just_retried_is_not_overdue(director: Director) -> None:
    for stage, _, (_, retried) in director.every_order(
        ownerless, Stage.fail_overdue, lambda stage, store: stage.finish(store, Ending.FAILED), Stage.retry
    ):
        assert retried and stage.state == "queued"


# -- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", list(Ending))
def test_a_cancel_is_never_missed_by_a_run_that_ends(director: Director, ending: Ending) -> None:
    def finish(stage: Stage, store: Store) -> bool:
        return stage.finish(store, ending)

    for stage, _, (accepted,) in director.every_order(running, Stage.cancel, finish):
        comes_back = ending in (Ending.RETRY, Ending.RELEASED)
        assert accepted and stage.state == ("cancelled" if comes_back else ending)
        assert not comes_back or "cancelled" in stage.events


@pytest.mark.parametrize("act", [Stage.rescue, Stage.retire], ids=["rescue", "retire"])
def test_a_cancel_is_never_missed_by_a_worker_that_ends(director: Director, act: Step) -> None:
    for stage, _, _ in director.every_order(running, Stage.cancel, act):
        assert stage.state == "cancelled"
    for stage, _, _ in director.every_order(running, act, Stage.cancel):
        assert stage.state == "cancelled"


def test_a_cancel_and_a_claim_at_the_same_moment(director: Director) -> None:
    for stage, _, (claimed,) in director.every_order(Stage, Stage.cancel, Stage.claim):
        assert stage.state == ("running" if claimed else "cancelled")
        assert job(stage.store, stage.id).cancelling is claimed
        assert stage.events == (["cancel asked for"] if claimed else ["cancelled"])


def test_two_cancels_are_one(director: Director) -> None:
    for stage, _, _ in director.every_order(running, Stage.cancel, Stage.cancel):
        assert stage.events == ["cancel asked for"]


def test_a_cancel_leaves_alone_what_has_ended(director: Director) -> None:
    for stage, _, (accepted,) in director.every_order(running, Stage.cancel, Stage.finish):
        assert accepted and job(stage.store, stage.id).result == "old"
        stage.cancel(stage.store)
        assert stage.state == "completed"


def test_two_operators_retry_a_job_once(director: Director) -> None:
    for stage, one, (other, claimed) in director.every_order(failed, Stage.retry, Stage.retry, Stage.claim):
        assert (one, other).count(True) == 1
        assert stage.events == ["failed", "retried"]
        assert not claimed or stage.complete_second(stage.store)


def test_an_operators_retry_of_a_running_job_waits_for_its_end(director: Director) -> None:
    for stage, retried, (accepted,) in director.every_order(
        running, Stage.retry, lambda stage, store: stage.finish(store, Ending.FAILED)
    ):
        assert accepted and stage.state == ("queued" if retried else "failed")
        assert stage.events == (["failed", "retried"] if retried else ["failed"])


def test_a_retry_and_a_new_holder_of_the_unique_key(director: Director) -> None:
    def enqueue(stage: Stage, store: Store) -> bool:
        key = new(unique_key="k", unique_until="finished")
        return store.insert([key], now=LATER)[0].is_new

    for stage, retried, (is_new,) in director.every_order(
        lambda store: failed(store, unique_key="k", unique_until="finished"), Stage.retry, enqueue
    ):
        assert is_new == (not retried)
        assert stage.events[1:] == (["retried"] if retried else [])
        assert sum(not found.state.final for found in stage.store.find()) == 1


@pytest.mark.parametrize("again", [0, 2], ids=["waiting", "ended again"])
def test_a_job_that_an_operator_has_just_retried_is_not_pruned(director: Director, again: int) -> None:
    run = (Stage.claim, Stage.complete_second)[:again]
    for stage, pruned, (retried, *_) in director.every_order(failed, Stage.prune, Stage.retry, *run):
        assert pruned == (not retried)
        found = stage.store.get(stage.id)
        assert (found is not None) is retried
        assert bool(stage.events) is retried
        assert found is None or found.state == (State.COMPLETED if again else State.QUEUED)


def test_a_job_that_is_just_pruned_is_not_retried(director: Director) -> None:
    for stage, retried, (pruned,) in director.every_order(failed, Stage.retry, Stage.prune):
        assert pruned == (not retried)
        assert stage.events == (["failed", "retried"] if retried else [])
