"""A stateful model of consumers' claims against the real stores: what may happen to a row, in any order."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rowlock.consumers.row import from_text
from rowlock.consumers.store import ConsumerStore
from rowlock.consumers.table import Table
from rowlock.errors import Fail
from rowlock.job import Claim, Ending, Progress, Report
from rowlock.stores.base import Retention, Store
from rowlock.stores.sql import SqlStore
from tests.consumers.cells import Cell, StateCells, StatusCells
from tests.consumers.lab import Lab
from tests.stores.modelling import FINAL, LEASE, START, Expected, check
from tests.stores.steps import emptied, outcome, take, worker
from tests.stores.steps import end as ended

KEYS = range(1, 5)
GONE = "gone"
ATTEMPTS = st.sampled_from([3, 2, 1])
LATE = 10.0  # seconds that a retry waits
Place = tuple[str, int]  # a consumer, and the key of a row


@dataclass
class Held(Expected):
    """What the model believes of one claim: a job's life, as long as the claim is there."""

    alone: int = 0
    started: bool = True
    spared: bool = False  # a death, because it may only have waited
    done: float | None = None

    def ready(self, now: float) -> bool:
        return self.state != "running" and self.run_at <= now


@dataclass(frozen=True)
class Taken:
    """A claim in the hands of a worker, and the numbers of its rows: one, or several of a batch."""

    consumer: str
    claim: Claim
    numbers: dict[int, int]


class ConsumerModel(RuleBasedStateMachine):
    """Rows, two consumers of them, two workers at a time, and a clock that only the rules move."""

    def __init__(self, lab: Lab, store: Store, table: StateCells) -> None:
        super().__init__()
        self.lab, self.store, self.table = lab, store, table
        emptied(store)
        table.delete()
        self.now = START
        self.cells: dict[int, Cell] = {}
        self.held: dict[Place, Held] = {}
        self.taken: list[Taken] = []
        self.highest = 0
        self.beats: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.names = iter(range(10**6))
        self.workers = [self.hire(), self.hire()]

    @initialize(attempts=st.tuples(ATTEMPTS, ATTEMPTS), batch=st.sampled_from([None, 2]))
    def register(self, attempts: tuple[int, int], batch: int | None) -> None:
        chosen = zip(self.table.consumers, attempts, (None, batch), strict=True)
        self.consumers = {name: self.table.consumer(name, most, rows) for name, most, rows in chosen}
        self.stores = {name: ConsumerStore(self.store, one) for name, one in self.consumers.items()}
        for key in KEYS:
            self.insert(key)

    def hire(self) -> str:
        name = worker(self.store, f"w{next(self.names)}", LEASE, now=self.now)
        self.beats[name] = self.now
        return name

    # -- what the users of the table do ----------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), data=st.data())
    def write(self, key: int, data: st.DataObject) -> None:
        """Clear the mark, set one, break the cell, delete the row: nobody asks the consumers before."""
        if key not in self.cells:
            self.insert(key)
            return
        self.cells[key] = cell = data.draw(st.sampled_from([*self.table.theirs, GONE]))
        if cell == GONE:
            self.table.delete(key)
            del self.cells[key]
        else:
            self.table.write(key, cell)

    def insert(self, key: int) -> None:
        """Maybe under the key of a row that was deleted."""
        self.table.insert(key)
        self.cells[key] = self.table.new

    # -- claims and their ends -------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1),
        number=st.integers(0, 1),
        count=st.integers(1, 3),
        alone=st.sampled_from([True, True, False]),
        quick=st.booleans(),
        sweep=st.sampled_from([True, True, False]),
    )
    def claim(self, which: int, number: int, count: int, alone: bool, quick: bool, sweep: bool) -> None:
        who, name = self.workers[which], self.table.consumers[number]
        store, consumer = self.stores[name], self.consumers[name]
        store._sweep_at = 0.0 if sweep else math.inf  # the wall clock has no say here
        most = count * (consumer.batch or 1)
        returned, free = self.takeable(name, most, alone)
        want = {"alone": alone, "quick": (name,) if quick else ()}
        got = take(cast("Store", store), who, count, now=self.now, **want)
        rows = {claim: [row.id for row in from_text(claim.args_json)] for claim in got}
        keys = [key for lot in rows.values() for key in lot]
        assert len(keys) == len({*keys}) <= most and {*returned} <= {*keys} <= {*returned, *free}
        assert not sweep or {*keys} == {*returned, *free[: most - len(returned)]}
        numbers = {key: claim for (consumer_, key), (claim, *_) in self.told().items() if consumer_ == name}
        before = self.highest
        for key in keys:
            held = self.held.setdefault((name, key), Held("queued", self.now))
            assert held.state != "running" and numbers[key] > before
            self.highest = max(self.highest, numbers[key])
            first = key in free and quick and consumer.retry.max_attempts > 1
            held.taken(who)
            held.claim, held.started = numbers[key], not first
            self.cells[key] = self.table.taken(self.cells[key])
        for claim, lot in rows.items():
            told = {(self.held[name, key].failures, self.held[name, key].alone) for key in lot}
            assert len(lot) <= (consumer.batch or 1) and told == {(claim.failures, claim.alone)}
            self.taken.append(Taken(name, claim, {key: numbers[key] for key in lot}))
            assert claim.claim in self.taken[-1].numbers.values()

    def takeable(self, name: str, count: int, alone: bool) -> tuple[list[int], list[int]]:
        """The rows that have to come back from an earlier attempt, and those that nobody has had yet."""
        due = [key for key in sorted(self.cells) if self.table.due(self.cells[key], name)]
        back = [key for key in due if (name, key) in self.held and self.held[name, key].ready(self.now)]
        back.sort(key=lambda key: (self.held[name, key].run_at, self.held[name, key].claim))
        by_itself = [key for key in back if self.held[name, key].alone]
        if alone and by_itself:
            return by_itself[:1], []
        returned = [key for key in back if key not in by_itself][:count]
        return returned, [key for key in due if (name, key) not in self.held]

    def holding(self, taken: Taken) -> bool:
        """True if this claim still counts; the rows of a batch are lost together, or not at all."""
        held = [self.held.get((taken.consumer, key)) for key in taken.numbers]
        (still,) = {
            one is not None and one.holds(number)
            for one, number in zip(held, taken.numbers.values(), strict=True)
        }
        return still

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), late=st.booleans(), how=st.sampled_from([*Ending, "transaction", "report"]))
    def end(self, data: st.DataObject, late: bool, how: str) -> None:
        """Also with a claim that was finished or lost before: the fence has to refuse it."""
        fitting = [one for one in self.taken if self.holding(one) is not late] or self.taken
        taken = data.draw(st.sampled_from(fitting))
        if how == "report":
            self.report(taken, percent=len(self.taken))
        elif how == "transaction":
            self.finish_with_what_it_wrote(taken)
        else:
            self.finish(taken, Ending(how))

    def report(self, taken: Taken, percent: int) -> None:
        number = taken.claim.claim
        self.stores[taken.consumer].report([Report(id=number, claim=number, progress=Progress(percent))])
        if self.holding(taken):
            for key in taken.numbers:
                self.held[taken.consumer, key].done = percent

    def finish(self, taken: Taken, ending: Ending) -> None:
        holds = self.holding(taken)
        charge = int(ending in (Ending.RETRY, Ending.FAILED))
        values: dict[str, Any] = {"charge": charge}
        if charge:
            values |= {"error": "oh", "error_kind": "exception"}
        values["delay"] = LATE if ending is Ending.RETRY else None
        store = cast("Store", self.stores[taken.consumer])
        assert ended(store, taken.claim, ending, now=self.now, **values) is holds
        if holds:
            for key in taken.numbers:
                held = self.held[taken.consumer, key]
                held.ended(ending, charge, due=self.now + LATE)
                held.spared = held.spared and not charge
                held.alone = held.alone if ending is Ending.RELEASED else 0
                self.settle(taken.consumer, key, "oh" if charge else "cancelled")
                if ending is Ending.RELEASED:
                    self.forget_if_untried(taken.consumer, key)

    def finish_with_what_it_wrote(self, taken: Taken) -> None:
        """In the function's own transaction, which is undone if there is no row left to be marked."""
        holds, store = self.holding(taken), self.stores[taken.consumer]
        markable = all(key in self.cells and self.table.markable(self.cells[key]) for key in taken.numbers)
        with closing(self.store.transaction(None)) as tx:
            done = outcome(taken.claim, Ending.COMPLETED)
            try:
                assert store.finish_on(tx.borrowed, taken.claim.claimed_by, done, None) is holds
            except Fail:
                assert holds and not markable
                return
            tx.commit()
        assert markable or not holds
        if holds:
            for key in taken.numbers:
                self.held[taken.consumer, key].ended(Ending.COMPLETED, charge=0, due=self.now)
                self.settle(taken.consumer, key, "")

    def settle(self, name: str, key: int, reason: str) -> None:
        """A claim has ended, or was given back: what becomes of it, and of its row."""
        held, cell, table = self.held[name, key], self.cells.get(key), self.table
        held.done, held.started = None, True
        if held.state not in FINAL:
            if key in self.cells:
                self.cells[key] = table.given_back(cell)
            if held.state == "queued":
                held.run_at = self.now
            return
        del self.held[name, key]
        if key not in self.cells or not table.markable(cell):
            return
        if held.state == "completed":
            self.cells[key] = table.done(cell, name)
        else:
            self.cells[key] = table.failed(cell, name, reason, held.failures)

    def forget_if_untried(self, name: str, key: int) -> None:
        """What was given back and never failed is free again."""
        held = self.held.get((name, key))
        if held is not None and held.state == "queued" and not held.failures and not held.alone:
            del self.held[name, key]

    # -- time and workers ------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1),
        number=st.integers(0, 1),
        after=st.sampled_from([None, 0.0, 1.0, 30.0, 61.0, 61.0]),
    )
    def time_passes(self, which: int, number: int, after: float | None) -> None:
        """Until a worker ends in good order, or looks after the other."""
        self.now += after or 0.0
        if after is None:
            self.stop(which, number)
        else:
            self.rescue(which, number)

    def rescue(self, which: int, number: int) -> None:
        """One worker beats and looks after the other; each consumer sees to its own rows."""
        me, other = self.workers[which], self.workers[1 - which]
        name = self.table.consumers[number]
        assert self.store.beat(me, "FIFO", now=self.now)
        self.beats[me] = self.now
        silent = self.now - self.beats[other] > LEASE
        did = self.stores[name].rescue(me, careful_age=20, now=self.now)
        if silent:
            self.ended[other] = "silent"
            self.workers[1 - which] = self.hire()
        lost = [place for place, held in self.held.items() if self.is_orphan(place, held, name)]
        holders = {str(self.held[place].holder) for place in lost}
        assert did.workers == sorted({*holders, *([other] if silent else [])})
        fates = [self.bury(*place) for place in lost]
        assert (did.requeued, did.failed) == (fates.count(True), fates.count(False))

    def is_orphan(self, place: Place, held: Held, name: str) -> bool:
        return place[0] == name and held.state == "running" and held.holder in self.ended

    def bury(self, name: str, key: int) -> bool:
        """True if it is to be tried again."""
        held, attempts = self.held[name, key], self.consumers[name].retry.max_attempts
        died = self.ended[str(held.holder)] == "silent"
        if died and held.started:
            held.max_attempts = attempts
            held.orphaned(late=held.spared and held.failures == 1)
            held.alone = self.told()[name, key][4] if held.state == "queued" else 0
            assert held.alone > 0 or held.state == "failed"
        else:
            held.state, held.spared = "queued", died
        reason = f"its worker died under it; its budget of {attempts} attempts is used up"
        back = held.state == "queued"
        self.settle(name, key, reason)
        if not died:
            self.forget_if_untried(name, key)
        return back

    def stop(self, which: int, number: int) -> None:
        who, name = self.workers[which], self.table.consumers[number]
        self.stores[name].retire(who, now=self.now)
        self.ended[who] = "stopped"
        self.workers[which] = self.hire()
        once = self.consumers[name].retry.max_attempts == 1
        for place in [place for place, held in self.held.items() if self.is_orphan(place, held, name)]:
            if self.held[place].holder == who:
                self.held[place].state = "failed" if once else "queued"
                self.settle(*place, "its worker ended while it ran, and it is run at most once")
                self.forget_if_untried(*place)

    @rule(which=st.integers(0, 1), number=st.integers(0, 1), prune=st.booleans())
    def keep_up(self, which: int, number: int, prune: bool) -> None:
        """What a worker does and asks before it waits, or leaves."""
        if prune:
            self.prune(self.table.consumers[number])
        who, name = self.workers[which], self.table.consumers[number]
        mine = {place: held for place, held in self.held.items() if place[0] == name}
        running = [held for held in mine.values() if held.state == "running"]
        found = self.stores[name].held(who)
        assert len(found) <= len([held for held in running if held.holder == who])
        assert {lot for lot, *_ in found} <= {held.claim for held in running if held.holder == who}
        returned, free = self.takeable(name, len(KEYS), alone=False)
        by_itself, _ = self.takeable(name, len(KEYS), alone=True)
        idle = not (running or returned or free or by_itself)
        assert self.stores[name].idle((), now=self.now) is idle
        moments = [held.run_at - self.now for held in mine.values() if held.state != "running"]
        moments = [moment for moment in moments if moment > 0]
        other = self.workers[1 - which]
        moments.append(max(0.0, self.beats[other] + LEASE - self.now))
        if any(self.is_orphan(place, held, name) for place, held in mine.items()):
            moments.append(0.0)
        asked = self.stores[name].next_needed(who, now=self.now)
        assert asked == pytest.approx(min(moments), abs=0.4)

    def prune(self, name: str) -> None:
        """What waits for a row that is done, gone or broken is forgotten."""
        idle = [
            (consumer, key)
            for (consumer, key), held in self.held.items()
            if consumer == name and held.state != "running"
            and not (key in self.cells and self.table.due(self.cells[key], name))
        ]  # fmt: skip
        assert self.stores[name].prune(Retention(0.0, 0.0), 0, 100, now=self.now) == (len(idle), 0)
        for place in idle:
            del self.held[place]

    # -- what always holds -----------------------------------------------------------------------

    def told(self) -> dict[Place, tuple[int, str | None, int, float | None, int]]:
        """The claims as the database has them."""
        rows = self.lab.execute(
            "SELECT consumer, row_key, claim, claimed_by, failures, done, alone "
            f"FROM {self.lab.prefix}rowlock_consumer_claims"
        )
        return {(name, int(key)): tuple(rest) for name, key, *rest in rows}

    @invariant()
    def the_table_and_the_claims_agree(self) -> None:
        assert self.table.read() == self.cells
        believed = {
            place: (
                held.claim,
                held.holder if held.state == "running" else None,
                held.failures,
                held.done,
                held.alone,
            )
            for place, held in self.held.items()
        }
        assert self.told() == believed


FORMS: dict[str, type[StateCells]] = {"state": StateCells, "status": StatusCells}


def run_model(lab: Lab, form: str, examples: int) -> None:
    table, store = FORMS[form](lab), lab.app().store
    for name in table.consumers:
        Table(cast("SqlStore", store), table.consumer(name, 1, None)).create_indexes()
    check(lambda: ConsumerModel(lab, store, table), examples)


@pytest.mark.timeout(400)  # a failure is made small before it is shown
@pytest.mark.parametrize("form", FORMS)
def test_both_stores_do_what_the_model_does(lab: Lab, form: str) -> None:
    run_model(lab, form, examples=40 if lab.is_sqlite else 15)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", FORMS)
def test_both_stores_do_what_the_model_does_for_long(lab: Lab, form: str) -> None:
    run_model(lab, form, examples=600 if lab.is_sqlite else 200)
