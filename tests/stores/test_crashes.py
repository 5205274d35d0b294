"""A stateful model of workers that crash: between claim, run and finish, and in the middle of a call.

The model says what the store must hold after each step; what holds in any case is checked beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rowlock.errors import WorkerGone, WrongState
from rowlock.job import Claim, ClaimRequest, Ending, ExchangeResult, Job, Outcome
from rowlock.stores.sql.finishing import _AFTER
from tests.stores.interleaving import meanwhile
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
from tests.stores.steps import add, end, job, jobs, outcome, run_sql, table, take, worker

T = TypeVar("T")
Key = tuple[int, int]  # job, claim
WORKERS = 3
CAREFUL = 20.5
DELAY = 10.0


class Cut(Exception):
    """The line went dead, or the process, in the middle of a call."""


class How(NamedTuple):
    """How a call ends: cut before its nth step, or never; answered or not; then the worker may be gone."""

    cut: int | None
    answered: bool
    dies: bool


SMOOTH = How(None, answered=True, dies=False)


def how(what: str, step: int, dies: bool) -> How:
    return SMOOTH if what == "smooth" else How(step if what == "cut" else None, False, dies)


# Most calls go well, else no worker would come far enough to have something to lose.
HOWS = st.builds(how, st.sampled_from(["smooth"] * 5 + ["unheard", "cut"]), st.integers(0, 9), st.booleans())


@dataclass
class Runs:
    """A worker process: what it knows, which is less than what the store does after an answer was lost."""

    name: str
    alive: bool = True
    claims: dict[Key, Claim] = field(default_factory=dict)
    owed: list[Outcome] = field(
        default_factory=list
    )  # outcomes of which it does not know that they are written
    unsure: bool = False  # some of them may be


WHICH = st.integers(0, WORKERS - 1)
STRATEGIES = st.sampled_from(["FIFO", "PRIORITY", "WEIGHTED_RANDOM"])
ENDINGS = st.lists(st.sampled_from(list(Ending)), max_size=3)


class CrashModel(RuleBasedStateMachine):
    """Three workers that crash and come back, a clock that only the rules move, and operators."""

    def __init__(self, empty: EmptyStores) -> None:
        super().__init__()
        self.store = empty()
        self.store.open()
        run_sql(self.store, f"DROP TABLE IF EXISTS {table(self.store, 'rowlock_effects')}")
        run_sql(self.store, f"CREATE TABLE {table(self.store, 'rowlock_effects')} (job BIGINT, claim BIGINT)")
        self.now = START
        self.jobs: dict[int, Expected] = {}
        self.beats: dict[str, float] = {}  # of those that were not declared dead
        self.stale: list[Claim] = []  # of workers that are gone or were given up: nobody waits for them
        self.accepted: Counter[Key] = Counter()
        self.effects: set[Key] = set()
        self.last: dict[int, tuple[str, int]] = {}
        self.operated: set[int] = set()
        self.numbers = iter(range(10**6))
        self.hands = [self.hire() for _ in range(WORKERS)]
        self.enqueue(4, None, 3)

    def hire(self) -> Runs:
        name = worker(self.store, f"w{next(self.numbers)}", LEASE, now=self.now)
        self.beats[name] = self.now
        return Runs(name)

    # -- crashes ---------------------------------------------------------------------------------

    def attempt(self, how: How, call: Callable[[], T]) -> tuple[bool, T | None]:
        """Make a call that may be cut; says whether it came to its end, and its answer if it was heard."""

        def cut_off() -> None:
            raise Cut

        try:
            if how.cut is None:
                answer = call()
            else:
                with meanwhile(self.store, how.cut, cut_off) as thing:
                    answer = call()
                if not thing.happened:  # it had fewer steps than that
                    return True, answer
        except Cut:
            return False, None
        return True, answer if how.answered else None

    def after_silence(self, hand: Runs, how: How) -> None:
        """What a worker is left with that did not hear the answer."""
        if how.dies:
            self.die(hand)
        else:
            hand.unsure = True

    def die(self, hand: Runs) -> None:
        hand.alive = False
        self.stale += hand.claims.values()
        hand.claims, hand.owed, hand.unsure = {}, [], False

    @rule(which=WHICH)
    def crash(self, which: int) -> None:
        self.die(self.hands[which])

    def process(self, which: int) -> Runs:
        """The worker in this place; one that is gone has been started again, under a new name."""
        if not self.hands[which].alive:
            self.hands[which] = self.hire()
        return self.hands[which]

    # -- producing and operating -----------------------------------------------------------------

    @rule(count=st.integers(1, 3), delay=st.sampled_from([None, None, 5.0]), budget=st.integers(1, 3))
    def enqueue(self, count: int, delay: float | None, budget: int) -> None:
        for id in add(self.store, count, delay=delay, max_attempts=budget, now=self.now):
            state = "scheduled" if delay else "queued"
            self.jobs[id] = Expected(state, self.now + (delay or 0.0), max_attempts=budget)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if id := self.some_job(data):
            expected = self.jobs[id]
            self.store.cancel(id, now=self.now)
            if expected.state in ("scheduled", "queued"):
                expected.state = "cancelled"
            elif expected.state == "running":
                expected.cancel = True

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        if id := self.some_job(data):
            try:
                self.store.retry(id, now=self.now)
            except WrongState:
                assert self.jobs[id].state in ("queued", "running")
            else:
                assert self.jobs[id].state in ("scheduled", *FINAL)
                self.jobs[id].retried()
                self.operated.add(id)

    def some_job(self, data: st.DataObject) -> int | None:
        return data.draw(st.sampled_from(sorted(self.jobs))) if self.jobs else None

    @rule(seconds=st.sampled_from([1.0, 15.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def promote(self) -> None:
        due = [one for one in self.jobs.values() if one.state == "scheduled" and one.run_at <= self.now]
        assert self.store.promote(1000, now=self.now) == len(due)
        for expected in due:
            expected.state = "queued"

    # -- claim, run, finish ----------------------------------------------------------------------

    @rule(which=WHICH, count=st.integers(1, 3), strategy=STRATEGIES, how=HOWS)
    def claim(self, which: int, count: int, strategy: str, how: How) -> None:
        self.exchange(which, count, [], strategy, how)

    @rule(which=WHICH, count=st.integers(1, 3), strategy=STRATEGIES)
    def claim_and_run_and_finish(self, which: int, count: int, strategy: str) -> None:
        """A cycle in which nothing happens, so that some jobs get on."""
        self.exchange(which, count, [], strategy, SMOOTH)
        self.exchange(which, 0, [Ending.COMPLETED, Ending.RETRY, Ending.FAILED], strategy, SMOOTH)

    @rule(which=WHICH, endings=ENDINGS, how=HOWS)
    def finish(self, which: int, endings: list[Ending], how: How) -> None:
        self.exchange(which, 0, endings, "FIFO", how)

    @rule(which=WHICH, count=st.integers(1, 3), endings=ENDINGS, strategy=STRATEGIES, how=HOWS)
    def exchange(self, which: int, count: int, endings: list[Ending], strategy: str, how: How) -> None:
        """Hand back some of what it holds, and all that it owes, and take new claims: the way of a worker."""
        hand = self.process(which)
        for key, ending in zip(list(hand.claims), endings, strict=False):
            hand.owed.append(self.ended(hand.claims.pop(key), ending))
        want = ClaimRequest(count=count, strategy=strategy) if count else None
        holding = [one for one in hand.owed if self.jobs[one.id].holds(one.claim)]
        written = [one for one in hand.owed if self.is_written(one)]
        try:
            done, got = self.attempt(
                how,
                lambda: self.store.exchange(hand.name, hand.owed, want, now=self.now, resent=hand.unsure),
            )
        except WorkerGone:
            assert hand.name not in self.beats and not hand.owed
            self.renew(which)
            return
        if got is None:
            self.see_what_was_written(hand, holding, done)
            self.after_silence(hand, how)
            return
        lost = [one for one in hand.owed if one not in holding and not (hand.unsure and one in written)]
        assert got.lost == lost
        for one in holding:
            self.apply(one)
        hand.owed, hand.unsure = [], False
        self.take_in(hand, got, count)

    @staticmethod
    def ended(claim: Claim, ending: Ending) -> Outcome:
        """What a worker makes of a run: the last attempt fails, the others are tried again."""
        if ending is Ending.RETRY and claim.failures + 1 >= (claim.max_attempts or 3):
            ending = Ending.FAILED
        charge = ending in (Ending.RETRY, Ending.FAILED)
        return outcome(claim, ending, charge=charge, delay=DELAY if ending is Ending.RETRY else None)

    def is_written(self, one: Outcome) -> bool:
        expected = self.jobs[one.id]
        return expected.claim == one.claim and expected.state in _AFTER[one.ending]

    def apply(self, one: Outcome) -> None:
        expected = self.jobs[one.id]
        assert expected.holds(one.claim)
        expected.ended(one.ending, one.charge, due=self.now + DELAY)
        self.accepted[one.id, one.claim] += 1

    def take_in(self, hand: Runs, got: ExchangeResult, count: int) -> None:
        queued = [id for id, one in self.jobs.items() if one.state == "queued"]
        assert len(got.claims) <= count
        assert bool(got.claims) == bool(queued and count and hand.name in self.beats)
        for claim in got.claims:
            expected = self.jobs[claim.id]
            assert expected.state == "queued" and claim.failures == expected.failures
            expected.taken(hand.name)
            assert claim.claim == expected.claim
            hand.claims[claim.id, claim.claim] = claim

    def see_what_was_written(self, hand: Runs, holding: list[Outcome], done: bool) -> None:
        """The answer was lost: outcomes are written all or none, and claims may have been made unheard."""
        written = {self.changed(one) for one in holding}
        assert len(written) < 2 and (not done or False not in written)
        if True in written:
            for one in holding:
                self.apply(one)
        for id, claim, _ in self.store.held(hand.name):
            expected = self.jobs[id]
            if not expected.holds(claim):
                assert expected.state == "queued" and hand.name in self.beats
                expected.taken(hand.name)
                assert expected.claim == claim

    def changed(self, one: Outcome) -> bool:
        found = job(self.store, one.id)
        return (found.state, found.claim) != ("running", one.claim)

    @rule(which=WHICH)
    def give_back_strays(self, which: int) -> None:
        """What the store says it holds and it has never heard of goes back, free of charge."""
        hand = self.process(which)
        known = {*hand.claims, *((one.id, one.claim) for one in hand.owed)}
        held = [(id, claim) for id, claim, _ in self.store.held(hand.name)]
        lost_claims = [
            Outcome(id=id, claim=claim, ending=Ending.RELEASED)
            for id, claim in held
            if (id, claim) not in known
        ]
        assert self.store.exchange(hand.name, lost_claims, now=self.now).lost == []
        for one in lost_claims:
            self.apply(one)

    @rule(
        which=WHICH,
        until=st.sampled_from(["the row", "the completion", "the commit", "the end"]),
        dies=st.booleans(),
    )
    def run_in_a_transaction(self, which: int, until: str, dies: bool) -> None:
        """A task writes a row of its own with its completion, or gets no further than `until`."""
        hand = self.process(which)
        if not hand.claims:
            return
        key = next(iter(hand.claims))
        claim, holds = hand.claims[key], self.jobs[key[0]].holds(key[1])
        with closing(self.store.transaction(None)) as tx:
            effect = f"INSERT INTO {table(self.store, 'rowlock_effects')} VALUES ({key[0]}, {key[1]})"
            tx.connection.execute(effect)
            accepted = False
            if until != "the row":
                done = outcome(claim, Ending.COMPLETED)
                accepted = self.store.finish_on(tx, hand.name, done, None)
                assert accepted is holds
            if accepted and until in ("the commit", "the end"):
                tx.commit()
                self.apply(outcome(claim, Ending.COMPLETED))
                self.effects.add(key)
        if until == "the end":
            del hand.claims[key]
        elif dies:
            self.die(hand)

    @rule(data=st.data(), ending=st.sampled_from(list(Ending)))
    def hear_from_the_dead(self, data: st.DataObject, ending: Ending) -> None:
        """A claim that its worker forgot or was told to drop is finished all the same, some time later."""
        if self.stale:
            claim = data.draw(st.sampled_from(self.stale))
            one = self.ended(claim, ending)
            holds = self.jobs[claim.id].holds(claim.claim)
            assert (
                end(self.store, claim, one.ending, now=self.now, charge=one.charge, delay=one.delay) is holds
            )
            if holds:
                self.apply(one)

    # -- life and death --------------------------------------------------------------------------

    @rule(which=WHICH, how=HOWS)
    def beat(self, which: int, how: How = SMOOTH) -> None:
        hand = self.process(which)
        done, alive = self.attempt(how, lambda: self.store.beat(hand.name, "FIFO", now=self.now))
        if done and hand.name in self.beats:
            self.beats[hand.name] = self.now
        if alive is None:
            self.after_silence(hand, how)
        else:
            assert alive is (hand.name in self.beats)
            if not alive:
                self.renew(which)

    @rule(
        which=WHICH,
        others_beat=st.sampled_from([True, True, False]),
        others_claim=st.booleans(),
        wakes_up=st.sampled_from(["never", "to finish", "to commit"]),
        ending=st.sampled_from(list(Ending)),
        how=HOWS,
    )
    def fall_silent(
        self, which: int, others_beat: bool, others_claim: bool, wakes_up: str, ending: Ending, how: How
    ) -> None:
        """One that holds something does not beat for longer than its lease; it may wake up and go on."""
        self.exchange(which, 2, [], "FIFO", SMOOTH)
        self.now += LEASE + 0.5
        others = [other for other in range(WORKERS) if other != which]
        if others_beat:  # else all were frozen together, and nobody may be declared dead
            for other in others:
                self.beat(other, SMOOTH)
        self.rescue(others[0], how, beats_first=False)
        if others_claim:
            self.exchange(others[1], 3, [], "FIFO", SMOOTH)
        if wakes_up == "never":
            self.die(self.hands[which])
        elif wakes_up == "to finish":
            self.exchange(which, 0, [ending, ending], "FIFO", SMOOTH)
        else:
            self.run_in_a_transaction(which, "the end", dies=False)

    def renew(self, which: int) -> None:
        """It hears that it was declared dead: it drops its claims and registers anew, with what it owes."""
        hand = self.hands[which]
        self.stale += hand.claims.values()
        self.hands[which] = self.hire()
        self.hands[which].owed, self.hands[which].unsure = hand.owed, hand.unsure

    @rule(which=WHICH, how=HOWS, beats_first=st.sampled_from([True, True, False]))
    def rescue(self, which: int, how: How, beats_first: bool) -> None:
        if beats_first:
            self.beat(which)
        hand = self.process(which)
        silent = {name for name, beat in self.beats.items() if self.now - beat > LEASE}
        careful = hand.name not in self.beats or self.now - self.beats[hand.name] > CAREFUL
        done, did = self.attempt(how, lambda: self.store.rescue(hand.name, CAREFUL, now=self.now))
        if did is not None:
            assert did.waited is bool(silent and careful)
            assert set(did.workers) == (set() if careful else silent)
        if done and not careful:
            for name in silent:
                del self.beats[name]
            for expected in self.jobs.values():
                if expected.state == "running" and expected.holder in silent:
                    expected.orphaned()
        if did is None:
            self.after_silence(hand, how)

    @rule(which=WHICH, how=HOWS)
    def retire(self, which: int, how: How) -> None:
        """It ends in good order: what it holds goes back for nothing, or is ended if it runs at most once."""
        hand = self.process(which)
        done, _ = self.attempt(how, lambda: self.store.retire(hand.name, now=self.now))
        if done:
            self.beats.pop(hand.name, None)
            for expected in self.jobs.values():
                if expected.state == "running" and expected.holder == hand.name:
                    once = expected.max_attempts == 1
                    expected.ended(Ending.FAILED if once else Ending.RELEASED, charge=0, due=0.0)
        self.die(hand)

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def the_store_agrees_and_nothing_is_doubled_or_taken_back(self) -> None:
        there = jobs(self.store)
        assert there.keys() == self.jobs.keys()
        self.the_store_agrees(there)
        self.nothing_is_doubled_or_taken_back(there)

    def the_store_agrees(self, there: dict[int, Job]) -> None:
        for id, expected in self.jobs.items():
            found = there[id]
            assert (found.state, found.claim, found.failures) == expected.told, f"job {id}: {found}"
            assert (found.claimed_by == expected.holder) or found.state != "running"

    def nothing_is_doubled_or_taken_back(self, there: dict[int, Job]) -> None:
        assert all(count == 1 for count in self.accepted.values())
        rows = run_sql(self.store, f"SELECT job, claim FROM {table(self.store, 'rowlock_effects')}")
        assert Counter(map(tuple, rows)) == Counter(self.effects)
        for id, expected in self.jobs.items():
            found = there[id]
            state, claim = self.last.get(id, ("", 0))
            assert found.claim >= claim
            assert state not in FINAL or (found.state, found.claim) == (state, claim) or id in self.operated
            assert found.failures <= expected.max_attempts
            self.last[id] = (str(found.state), found.claim)
        self.operated.clear()

    def teardown(self) -> None:
        """Everybody crashes; one worker comes, and every job that was ever enqueued comes to an end."""
        try:
            self.drain()
        finally:
            self.store.close()

    def drain(self) -> None:
        for hand in self.hands:
            self.die(hand)
        self.now += 1000.0
        who = worker(self.store, "last", LEASE, now=self.now)
        self.store.rescue(who, CAREFUL, now=self.now)
        self.store.promote(1000, now=self.now)
        while claims := take(self.store, who, 10, now=self.now):
            for claim in claims:
                assert end(self.store, claim, now=self.now)
        there = jobs(self.store)
        assert there.keys() == self.jobs.keys()
        assert all(found.state.final for found in there.values())


def run_on(empty: EmptyStores, examples: int, **options: Any) -> None:
    check(lambda: CrashModel(empty), examples, stateful_step_count=50, **options)


@pytest.mark.no_cover  # what they run is measured elsewhere, and here it would take twice as long
def test_workers_that_crash_on_sqlite_lose_and_double_nothing(tmp_path: Path) -> None:
    with empty_files(tmp_path) as empty:
        run_on(empty, 25)


@pytest.mark.no_cover
def test_workers_that_crash_on_postgresql_lose_and_double_nothing(postgres_schema: str) -> None:
    with emptied_schemas(postgres_schema) as empty:
        run_on(empty, 12)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_workers_that_crash_often_on_sqlite_lose_and_double_nothing(tmp_path: Path) -> None:
    with empty_files(tmp_path) as empty:
        run_on(empty, 500)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_workers_that_crash_often_on_postgresql_lose_and_double_nothing(postgres_schema: str) -> None:
    with emptied_schemas(postgres_schema) as empty:
        run_on(empty, 120)
