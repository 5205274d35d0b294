"""A stateful model of the queue against the real store: what may happen to a job, in any order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from rowlock.errors import WrongState
from rowlock.job import Claim, Ending
from tests.stores.modelling import (
    FINAL,
    LEASE,
    START,
    EmptyStores,
    Expected,
    check,
    emptied_schemas,
    empty_files,
)
from tests.stores.steps import add, end, jobs, take, worker

LONG = (pytest.mark.chaos, pytest.mark.timeout(1800))


class QueueModel(RuleBasedStateMachine):
    """Jobs, two workers at a time, a clock that only the rules move, and claims that may be stale."""

    claims = Bundle("claims")

    def __init__(self, empty: EmptyStores) -> None:
        super().__init__()
        self.store = empty()
        self.now = START
        self.jobs: dict[int, Expected] = {}
        self.beats: dict[str, float] = {}
        self.names = iter(range(10**6))
        self.workers = [self.hire(), self.hire()]

    def teardown(self) -> None:
        self.store.close()

    def hire(self) -> str:
        name = worker(self.store, f"w{next(self.names)}", LEASE, now=self.now)
        self.beats[name] = self.now
        return name

    # -- what can happen -------------------------------------------------------------------------

    @rule(priority=st.integers(-2, 2), delay=st.sampled_from([None, 5.0, 100.0]), budget=st.integers(1, 3))
    def enqueue(self, priority: int, delay: float | None, budget: int) -> None:
        (id,) = add(self.store, priority=priority, delay=delay, max_attempts=budget, now=self.now)
        state = "scheduled" if delay else "queued"
        self.jobs[id] = Expected(state, self.now + (delay or 0.0), max_attempts=budget)

    @rule(
        target=claims,
        which=st.integers(0, 1),
        count=st.integers(1, 3),
        strategy=st.sampled_from(["FIFO", "LIFO", "PRIORITY", "WEIGHTED_RANDOM"]),
    )
    def claim(self, which: int, count: int, strategy: str):  # type: ignore[no-untyped-def]
        who = self.workers[which]
        taken = take(self.store, who, count, now=self.now, strategy=strategy)
        queued = [id for id, one in self.jobs.items() if one.state == "queued"]
        assert bool(taken) == bool(queued)
        assert len({claim.id for claim in taken}) == len(taken) <= count
        assert len(taken) == 1 or not any(self.jobs[claim.id].is_suspect for claim in taken)
        for claim in taken:
            expected = self.jobs[claim.id]
            assert expected.state == "queued" and claim.failures == expected.failures
            expected.taken(who)
            assert claim.claim == expected.claim
        return multiple(*taken)

    @rule(claim=claims, ending=st.sampled_from(list(Ending)))
    def finish(self, claim: Claim, ending: Ending) -> None:
        """Also with claims that were finished or lost before: the fence has to refuse those."""
        expected = self.jobs[claim.id]
        holds = expected.holds(claim.claim)
        charge = ending in (Ending.RETRY, Ending.FAILED)
        delay = 10.0 if ending is Ending.RETRY else None
        assert end(self.store, claim, ending, now=self.now, charge=charge, delay=delay) is holds
        if holds:
            expected.ended(ending, charge, due=self.now + 10.0)

    @rule(claim=consumes(claims))
    def lose_sight_of(self, claim: Claim) -> None:
        """A worker forgets a claim; it stays running until its worker is rescued."""
        assert claim.id in self.jobs

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        id = data.draw(st.sampled_from(sorted(self.jobs)))
        expected = self.jobs[id]
        self.store.cancel(id, now=self.now)
        if expected.state in ("scheduled", "queued"):
            expected.state = "cancelled"
        elif expected.state == "running":
            expected.cancel = True

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        id = data.draw(st.sampled_from(sorted(self.jobs)))
        expected = self.jobs[id]
        try:
            self.store.retry(id, now=self.now)
        except WrongState:
            assert expected.state in ("queued", "running")
        else:
            assert expected.state in ("scheduled", *FINAL)
            expected.retried()

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 1))
    def beat(self, which: int) -> None:
        name = self.workers[which]
        assert self.store.beat(name, "FIFO", now=self.now)
        self.beats[name] = self.now

    @rule()
    def promote(self) -> None:
        due = [one for one in self.jobs.values() if one.state == "scheduled" and one.run_at <= self.now]
        assert self.store.promote(1000, now=self.now) == len(due)
        for expected in due:
            expected.state = "queued"

    @rule(which=st.integers(0, 1))
    def rescue(self, which: int) -> None:
        """One worker beats and looks after the other; a silent one is replaced by a new incarnation."""
        self.beat(which)
        other = self.workers[1 - which]
        silent = self.now - self.beats[other] > LEASE
        did = self.store.rescue(self.workers[which], careful_age=20, now=self.now)
        assert did.workers == ([other] if silent else [])
        if not silent:
            return
        for expected in self.jobs.values():
            if expected.state == "running" and expected.holder == other:
                expected.orphaned()
        assert not self.store.beat(other, "FIFO", now=self.now)
        self.workers[1 - which] = self.hire()

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def the_store_agrees(self) -> None:
        there = jobs(self.store)
        for id, expected in self.jobs.items():
            found = there[id]
            assert (found.state, found.claim, found.failures) == expected.told, f"job {id}: {found}"
            assert (found.claimed_by == expected.holder) or found.state != "running"
            assert (found.finished_at is not None) == (found.state in FINAL)


@pytest.mark.no_cover  # what they run is measured elsewhere, and here it would take twice as long
@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=LONG)])
def test_sqlite_does_what_the_model_does(tmp_path: Path, examples: int) -> None:
    with empty_files(tmp_path) as empty:
        check(lambda: QueueModel(empty), examples)


@pytest.mark.no_cover
@pytest.mark.parametrize("examples", [15, pytest.param(100, marks=LONG)])
def test_postgresql_does_what_the_model_does(postgres_schema: str, examples: int) -> None:
    with emptied_schemas(postgres_schema) as empty:
        check(lambda: QueueModel(empty), examples)
