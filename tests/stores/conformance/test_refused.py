"""Jobs of which the database refuses something: each ends by itself, and holds up no other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rowlock import JobContext, Rowlock
from rowlock.insights import doctor
from rowlock.job import Claim, ClaimRequest, Ending, Outcome, Progress, Report, State
from rowlock.stores.sql.store import Store
from rowlock.worker.poller import Poller
from tests.stores.steps import add, events, job, outcome, refuse_updates, run_sql, state, table, take, worker

NEVER = (
    "this job stays as it is: no room, the box is full and locked"  # words that SQLite uses for other things
)
START = time.time()
LATER = START + 1000.0


class Refusals:
    """Triggers of the user's on rowlock's tables."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefix = table(store, "rowlock_jobs").removesuffix("rowlock_jobs")
        self._tables: list[str] = []

    def __call__(self, condition: str, on: str = "rowlock_jobs") -> None:
        """Refuse updates where the condition on OLD and NEW is true."""
        refuse_updates(lambda statement: run_sql(self._store, statement), self._prefix, on, condition, NEVER)
        self._tables.append(on)

    def lift(self) -> None:
        while self._tables:
            on = self._tables.pop()
            run_sql(
                self._store, f"DROP TRIGGER refuse_{on}{f' ON {self._prefix}{on}' if self._prefix else ''}"
            )


@pytest.fixture
def refuse(store: Store) -> Iterator[Refusals]:
    made = Refusals(store)
    yield made
    made.lift()


def completed(claims: list[Claim]) -> list[Outcome]:
    return [outcome(claim, Ending.COMPLETED, result=str(claim.id)) for claim in claims]


def refused_in(store: Store) -> list[str]:
    return [title for title, *_ in store.facts()["refused"]]


@pytest.mark.parametrize("strategy", ["PRIORITY", "WEIGHTED_RANDOM"])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_result_that_is_refused_fails_its_job_and_no_other(
    store: Store, refuse: Refusals, number: int, strategy: str
) -> None:
    ids, who = add(store, number + 1), worker(store)
    claims = take(store, who, number)
    refuse(f"OLD.id = {ids[0]} AND NEW.state = 'completed'")
    got = store.exchange(who, completed(claims), ClaimRequest(count=9, strategy=strategy))
    assert got.lost == [] and got.unwritable == []
    assert [(one.id, one.ending, one.error_kind) for one in got.refused] == [(ids[0], "failed", "refused")]
    assert [claim.id for claim in got.claims] == [ids[-1]]
    failed = job(store, ids[0])
    assert (failed.state, failed.failures, failed.error_kind) == ("failed", 1, "refused")
    assert failed.error == f"refused by the database: {NEVER}"
    assert events(store, ids[0]) == ["failed"]
    assert [job(store, id).result for id in ids[1:-1]] == ids[1:-1]


def test_a_job_that_nothing_can_be_written_for_stays_claimed_and_is_known(
    store: Store, refuse: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    ids, who = add(store, 5), worker(store)
    claims = take(store, who, 5)
    refuse(f"OLD.id = {ids[2]} AND OLD.state = 'running'")
    outcomes = completed(claims[:3]) + [outcome(one, Ending.RETRY, delay=9.0) for one in claims[3:]]
    assert store.idle([]) is False
    got = store.exchange(who, outcomes)
    assert got.unwritable == [(ids[2], 1)] and [one.id for one in got.refused] == [ids[2]]
    states = [State.COMPLETED] * 2 + [State.RUNNING] + [State.SCHEDULED] * 2
    assert [state(store, id) for id in ids] == states
    assert store.idle([]) is True
    assert refused_in(store) == [f"job {ids[2]} (work)"]
    (finding,) = [one for one in doctor(store) if one.check == "refused writes"]
    assert finding.level == "warning" and NEVER in finding.message and who in finding.message
    assert store.exchange(who, outcomes[2:3]).unwritable == [(ids[2], 1)]
    assert len([line for line in caplog.messages if "stays claimed" in line]) == 1


def test_a_worker_that_ends_gives_back_what_can_be_given_back(store: Store, refuse: Refusals) -> None:
    ids, who = add(store, 3), worker(store)
    claims = take(store, who, 3)
    refuse(f"OLD.id = {ids[1]} AND OLD.state = 'running'")
    store.exchange(who, completed(claims[1:2]))
    store.retire(who)
    assert [state(store, id) for id in ids] == ["queued", "running", "queued"]
    assert [one.ended for one in store.workers()] == ["stopped"]
    assert refused_in(store) == [f"job {ids[1]} (work)"]


def test_a_job_that_can_be_given_back_only_is_charged_for_its_run(store: Store, refuse: Refusals) -> None:
    (id,), who = add(store, max_attempts=2), worker(store)
    (claim,) = take(store, who)
    refuse("NEW.state IN ('completed', 'failed')")
    assert store.exchange(who, completed([claim])).unwritable == [(id, 1)]
    store.retire(who)
    assert (state(store, id), job(store, id).failures) == ("scheduled", 1)
    assert refused_in(store) == []


def test_a_rescue_takes_back_what_it_can_and_the_rest_when_it_is_let(
    store: Store, refuse: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    ids, who = add(store, 3, now=START), worker(store, "first", now=START)
    take(store, who, 3, now=START)
    second = worker(store, "second", now=LATER)
    refuse(f"OLD.id = {ids[1]} AND OLD.state = 'running'")
    done = store.rescue(second, careful_age=10.0, now=LATER)
    assert (done.workers, done.requeued, done.failed) == (["first"], 2, 0)
    assert [state(store, id) for id in ids] == ["queued", "running", "queued"]
    for _ in range(2):  # it is tried again, and nobody hears of it
        assert store.rescue(second, careful_age=10.0, now=LATER).workers == []
    assert len([line for line in caplog.messages if "stays claimed" in line]) == 1
    assert store.next_needed(second, now=LATER) is None
    refuse.lift()
    done = store.rescue(second, careful_age=10.0, now=LATER)
    assert (done.workers, done.requeued) == (["first"], 1)
    assert (state(store, ids[1]), job(store, ids[1]).failures) == ("scheduled", 1)
    assert refused_in(store) == []


def test_progress_that_is_refused_is_dropped_and_no_other(
    store: Store, refuse: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    ids, who = add(store, 3), worker(store)
    claims = take(store, who, 3)

    def reports(done: float) -> list[Report]:
        return [Report(id=one.id, claim=one.claim, progress=Progress(done, 9.0, "")) for one in claims]

    store.report(reports(1.0))
    refuse(f"NEW.job_id = {ids[1]}", on="rowlock_progress")
    store.report(reports(2.0))
    store.report(reports(3.0))
    assert [found.done for id in ids if (found := job(store, id).progress)] == [3.0, 1.0, 3.0]
    assert store.exchange(who, completed(claims), reports=reports(4.0)).refused == []
    assert [found.done for id in ids if (found := job(store, id).progress)] == [4.0, 1.0, 4.0]
    assert [job(store, id).result for id in ids] == ids
    (told,) = [line for line in caplog.messages if "refused its progress" in line]
    assert told.startswith(f"job {ids[1]}: ")


def test_a_poller_is_told_that_its_result_was_refused(url: str, store: Store, refuse: Refusals) -> None:
    ids = add(store, 2)
    refuse(f"OLD.id = {ids[0]} AND NEW.state = 'completed'")
    app = Rowlock(url)
    poller = Poller(app)
    first, second = poller.claim(), poller.claim()
    assert first is not None and second is not None
    assert (first.complete(1), second.complete(2)) == (False, True)
    assert [state(store, id) for id in ids] == ["failed", "completed"]
    poller.close()
    app.close()


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_worker_goes_on_after_a_refusal_and_ends(
    url: str, store: Store, refuse: Refusals, *, in_transaction: bool
) -> None:
    app = Rowlock(url)

    @app.task(retry=False)
    def double(ctx: JobContext, n: int) -> int:
        if in_transaction:
            with ctx.transaction() as tx:
                tx.execute("SELECT 1")
        return 2 * n

    ids = double.enqueue_many([{"n": n} for n in range(1, 21)])
    refuse(f"OLD.id = {ids[4]} AND NEW.state = 'completed' OR OLD.id = {ids[9]} AND OLD.state = 'running'")
    tally = app.worker(concurrency=2).run(until_empty=True)
    assert (tally.completed, tally.failed) == (18, 2)
    jobs = [job(store, id) for id in ids]
    assert [one.state for one in jobs].count(State.COMPLETED) == 18
    assert jobs[4].state == "failed" and NEVER in (jobs[4].error or "")
    assert jobs[9].state == "running"
    assert refused_in(store) == [f"job {ids[9]} (double)"]
    app.close()
