"""A stateful model of consumers' claims against the real stores: what may happen to a row, in any order."""

from __future__ import annotations

import json
import math
from contextlib import closing, suppress
from copy import copy
from typing import Any, cast

import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rowlock import Rowlock
from rowlock.consumers import overview
from rowlock.consumers.row import from_text
from rowlock.consumers.source import ConsumerSource
from rowlock.consumers.table import Table
from rowlock.endings import LONGEST_ISOLATION, Event
from rowlock.errors import Fail, RetryLater, WorkerGone
from rowlock.job import ClaimRequest, Ending, ExchangeResult, Outcome, Progress, Report
from rowlock.stores.base import Retention
from rowlock.stores.sql.store import Store
from tests.consumers.beliefs import End, Held, Taken
from tests.consumers.cells import Cell, FlagCells, OwnMarkCells, StateCells, StatusCells
from tests.consumers.chances import BUDGETS, KEYS, STEP, How
from tests.consumers.lab import Lab
from tests.stores.modelling import FINAL, LEASE, START, check
from tests.stores.steps import emptied, outcome, take, worker
from tests.stores.steps import end as ended

GONE = "gone"
Place = tuple[str, int]  # a consumer, and the key of a row

STOPPED = "its worker ended while it ran, and it is run at most once"


class ConsumerModel(RuleBasedStateMachine):
    """Rows, two consumers of them, two workers at a time, and a clock that only the rules move."""

    def __init__(self, lab: Lab, app: Rowlock, table: StateCells, looked_at: dict[str, Table]) -> None:
        super().__init__()
        self.lab, self.app, self.store, self.table, self.looked_at = lab, app, app.store, table, looked_at
        emptied(self.store)
        table.delete()
        self.now = START
        self.sources: dict[str, ConsumerSource] = {}
        self.stores: dict[str, Store] = {}
        self.found_nothing: dict[str, bool] = {}  # lately, so that it may not look at all rows again
        self.cells: dict[int, Cell] = {}
        self.held: dict[Place, Held] = {}
        self.failures: dict[Place, Any] = {}  # in rowlock's own table, with the mark that the row was given
        self.taken: list[Taken] = []
        self.highest = 0
        self.beats: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.names = iter(range(10**6))
        self.workers = [self.hire(), self.hire()]

    @initialize(attempts=BUDGETS)
    def register(self, attempts: tuple[int, int]) -> None:
        chosen = zip(self.table.consumers, attempts, (None, 2), strict=True)  # the second takes two at once
        self.consumers = {name: self.table.consumer(name, most, rows) for name, most, rows in chosen}
        for name in self.consumers:
            self.begin_anew(name)
        for key in KEYS:
            self.insert(key)

    def begin_anew(self, name: str) -> None:
        """As a process that has just started: it has taken no row yet, beyond which it would go on."""
        self.sources[name] = source = ConsumerSource(self.store.database, self.consumers[name])
        source._table = copy(self.looked_at[name])  # the statements are always the same
        source.table.consumer = self.consumers[name]
        self.stores[name] = cast("Store", self.store.over(source))
        self.found_nothing[name] = False

    @rule(step=STEP)
    def go_on(self, step: tuple[str, dict[str, Any]]) -> None:
        name, values = step
        getattr(self, name)(**values)

    def hire(self) -> str:
        name = worker(self.store, f"w{next(self.names)}", LEASE, now=self.now)
        self.beats[name] = self.now
        return name

    # -- what the users of the table do ----------------------------------------------------------

    def write(self, key: int, pick: int) -> None:
        """Clear the mark, set one, break the cell, delete the row: nobody asks the consumers before."""
        if key not in self.cells:
            self.insert(key)
            return
        choices = [*self.table.theirs, GONE]
        self.cells[key] = cell = choices[pick % len(choices)]
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

    def claim(self, which: int | None, number: int, count: int, isolate: bool, sweep: bool) -> None:
        name = self.table.consumers[number]
        if sweep:  # else it goes on beyond the last row, unless a second has passed
            self.begin_anew(name)
        store, consumer = self.stores[name], self.consumers[name]
        if which is None:
            self.claim_in_vain(name)
            return
        who, most = self.workers[which], count * (consumer.batch or 1)
        returned, free = self.takeable(name, most, isolate)
        got = take(cast("Store", store), who, count, now=self.now, may_isolate=isolate)
        rows = {claim: [row.id for row in from_text(claim.args_json)] for claim in got}
        keys = [key for batch in rows.values() for key in batch]
        assert len(keys) == len({*keys}) <= most and {*returned} <= {*keys} <= {*returned, *free}
        assert not sweep or {*keys} == {*returned, *free[: most - len(returned)]}
        # Before it says that there is nothing it looks at all of them.
        assert keys or not free or self.found_nothing[name]
        self.found_nothing[name] |= len(keys) < most and not {*keys} & {*free}
        numbers = {key: claim for (consumer_, key), (claim, *_) in self.told().items() if consumer_ == name}
        before = self.highest
        for key in keys:
            held = self.held.setdefault((name, key), Held("queued", self.now))
            assert held.state != "running" and numbers[key] > before
            self.highest = max(self.highest, numbers[key])
            held.taken(who)
            held.claim, held.since = numbers[key], self.now
            self.cells[key] = self.table.taken(self.cells[key])
        for claim, batch in rows.items():
            told = {(self.held[name, key].failures, self.held[name, key].isolate) for key in batch}
            assert len(batch) <= (consumer.batch or 1) and told == {(claim.failures, claim.isolate)}
            self.taken.append(Taken(name, claim, {key: numbers[key] for key in batch}))
            assert claim.claim == min(self.taken[-1].numbers.values())
            assert (claim.taken, claim.claimed_by, claim.claimed_before) == (
                self.now,
                who,
                bool({*batch} & {*returned}),
            )
            assert claim.max_attempts == consumer.retry.max_attempts
            for key in batch:
                self.held[name, key].batch = claim.claim if len(batch) > 1 else None

    def claim_in_vain(self, name: str) -> None:
        """Nothing goes to those who were declared dead, nor to anybody while the consumer is paused."""
        store, queue = cast("Store", self.stores[name]), self.consumers[name].queue
        lost = Outcome(id=0, claim=0, ending=Ending.COMPLETED)
        for dead in [*self.ended][-1:]:
            with suppress(WorkerGone):
                assert take(store, dead, 3, now=self.now) == []
            got = store.exchange(dead, [lost], ClaimRequest(count=3), now=self.now)
            assert got == ExchangeResult([], [lost])
        self.store.set_queue(queue, paused=True)
        assert take(store, self.workers[0], 3, now=self.now) == []
        running = any(place[0] == name and held.state == "running" for place, held in self.held.items())
        assert store.idle((), now=self.now) is not running
        self.store.set_queue(queue, paused=False)

    def takeable(self, name: str, count: int, isolate: bool) -> tuple[list[int], list[int]]:
        """The rows that have to come back from an earlier attempt, and those that nobody has had yet."""
        due = [key for key in sorted(self.cells) if self.table.due(self.cells[key], name)]
        if self.table.gives_up:
            due = [key for key in due if (name, key) not in self.failures]
        back = [key for key in due if (name, key) in self.held and self.held[name, key].ready(self.now)]
        back.sort(key=lambda key: (self.held[name, key].run_at, self.held[name, key].claim))
        by_itself = [key for key in back if self.held[name, key].isolate]
        if isolate and by_itself:
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

    def end(self, late: bool, pick: int, how: How, then: How) -> None:
        """Also with a claim that was finished or lost before: the fence has to refuse it."""
        fitting = [one for one in self.taken if self.holding(one) is not late] or self.taken
        if fitting:
            taken = fitting[-1 - pick % min(4, len(fitting))]  # one of the latest, so that stories go on
            self.end_so(taken, **how)
            self.the_table_and_the_claims_agree()
            if how["how"] == "report" or not self.holding(taken):
                self.end_so(taken, **then)

    def end_so(self, taken: Taken, how: str, lightly: bool, result: Any, answers: tuple[Any, Any]) -> None:
        if how == "report":
            self.report(taken, percent=len(self.taken))
        elif how == "transaction":
            self.finish_with_what_it_wrote(taken)
        elif how == Ending.COMPLETED and self.consumers[taken.consumer].batch:
            self.finish_each(taken, answers[: len(taken.numbers)])
        else:
            self.finish(taken, End.chosen(Ending(how), lightly, result))

    def report(self, taken: Taken, percent: int) -> None:
        number = taken.claim.claim
        self.stores[taken.consumer].report([Report(id=number, claim=number, progress=Progress(percent))])
        if self.holding(taken):
            for key in taken.numbers:
                self.held[taken.consumer, key].done = percent

    def finish(self, taken: Taken, end: End) -> None:
        """All rows of the claim alike; who was declared dead gives none back."""
        dead = end.ending is Ending.RELEASED and taken.claim.claimed_by in self.ended
        holds, store = self.holding(taken) and not dead, cast("Store", self.stores[taken.consumer])
        values: dict[str, Any] = {"charge": end.charge, "error": end.error, "delay": end.delay}
        values["error_kind"] = "exception" if end.error else None
        result = json.dumps(end.result)
        assert ended(store, taken.claim, end.ending, now=self.now, result=result, **values) is holds
        if holds:
            for key in taken.numbers:
                self.ended_so(taken.consumer, key, end)

    def finish_each(self, taken: Taken, answers: tuple[Any, ...]) -> None:
        """The rows of a batch each for itself, in the order in which they were handed over."""
        holds, store = self.holding(taken), cast("Store", self.stores[taken.consumer])
        events = {True: Event.FAIL, False: Event.RAISED}
        told = [
            ["error", "oh", events[one], {"never": False}] if isinstance(one, bool) else ["ok", one]
            for one in answers
        ]
        assert ended(store, taken.claim, now=self.now, result=json.dumps(told)) is holds
        attempts = self.consumers[taken.consumer].retry.max_attempts
        if holds:
            for key, answer in zip(taken.numbers, answers, strict=True):
                failures = self.held[taken.consumer, key].failures
                self.ended_so(taken.consumer, key, End.answered(answer, failures, attempts))

    def ended_so(self, name: str, key: int, end: End) -> None:
        held = self.held[name, key]
        held.ended(end.ending, end.charge, due=self.now)
        held.isolate = held.isolate if end.ending is Ending.RELEASED else 0
        self.settle(name, key, end.error or "cancelled", end.result)
        held.run_at = self.now + (end.delay or 0.0)
        if end.ending is Ending.RELEASED and end.delay is None:
            self.forget_if_untried(name, key)

    def finish_with_what_it_wrote(self, taken: Taken) -> None:
        """In the function's own transaction, which is undone if there is no row left to be marked."""
        holds, store = self.holding(taken), self.stores[taken.consumer]
        markable = all(
            key in self.cells and self.table.markable(self.cells[key], taken.consumer)
            for key in taken.numbers
        )
        with closing(self.store.transaction(None)) as tx:
            done = outcome(taken.claim, Ending.COMPLETED)
            try:
                assert store.finish_on(tx, taken.claim.claimed_by, done, None) is holds
            except (Fail, RetryLater):  # a row alone, or one of a batch
                assert holds and not markable
                return
            tx.commit()
        assert markable or not holds
        if holds:
            for key in taken.numbers:
                self.ended_so(taken.consumer, key, End(Ending.COMPLETED))

    def settle(self, name: str, key: int, reason: str, result: Any = None) -> None:
        """A claim has ended, or was given back: what becomes of it, and of its row."""
        held, cell, table = self.held[name, key], self.cells.get(key), self.table
        held.done = held.batch = None
        if held.state not in FINAL:
            if key in self.cells:
                self.cells[key] = table.given_back(cell)
            if held.state == "queued":
                held.run_at = self.now
            return
        del self.held[name, key]
        if table.keeps_failures:
            self.remember(name, key, held, reason)
        if key not in self.cells or not table.markable(cell, name):
            return
        if held.state == "completed":
            self.cells[key] = table.done(cell, name, result)
        else:
            self.cells[key] = table.failed(cell, name, reason, held.failures)

    def remember(self, name: str, key: int, held: Held, reason: str) -> None:
        """Which rows have failed; where they carry a mark, only if it was set."""
        cell = self.cells.get(key)
        if held.state != "completed":
            if not self.table.gives_up and (key not in self.cells or not self.table.markable(cell, name)):
                return
            mark = self.table.failed({}, name, reason, held.failures)
            self.failures[name, key] = mark.get(name) if mark else True
        elif not self.table.gives_up:
            self.failures.pop((name, key), None)

    def forget_if_untried(self, name: str, key: int) -> None:
        """What was given back and never failed is free again."""
        held = self.held.get((name, key))
        if held is not None and held.state == "queued" and not (held.failures or held.isolate or held.deaths):
            del self.held[name, key]

    # -- time and workers ------------------------------------------------------------------------

    def time_passes(self, after: float | None, then: How, which: int, number: int, **claim: Any) -> None:
        """Until a worker ends in good order, or looks after the other; whoever lost a row notices late."""
        self.now += after or 0.0
        running = [taken for taken in self.taken if self.holding(taken)]
        if after is None:
            self.stop(which, number)
        else:
            self.rescue(which, number)
        for taken in [taken for taken in running if not self.holding(taken)][:2]:
            self.end_so(taken, **then)
        self.claim(which, number, **claim)

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
        fates = [self.rescue_claims(*place) for place in lost]
        assert (did.requeued, did.failed) == (fates.count(True), fates.count(False))

    def is_orphan(self, place: Place, held: Held, name: str) -> bool:
        return place[0] == name and held.state == "running" and held.holder in self.ended

    def rescue_claims(self, name: str, key: int) -> bool:
        """True if it is to be tried again."""
        held, attempts = self.held[name, key], self.consumers[name].retry.max_attempts
        died = self.ended[str(held.holder)] == "silent"
        if died:
            held.max_attempts = attempts
            held.orphaned()
            # For as long as it may have taken to kill its worker, which was alive at its last beat.
            seen_alive = self.beats[str(held.holder)] + LEASE / 6
            held.isolate = max(1, min(math.ceil(seen_alive - held.since), LONGEST_ISOLATION))
        else:
            held.state = "failed" if attempts == 1 else "queued"
        times = "once" if held.deaths == 1 else f"{held.deaths} times"
        budget = f"{attempts} attempt{'s' if attempts > 1 else ''}"
        reason = f"its worker died {times} under it; its budget of {budget} is used up" if died else STOPPED
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
                self.settle(*place, STOPPED)
                self.forget_if_untried(*place)

    def maintain(self, which: int, number: int, first: str) -> None:
        """What a worker does and asks before it waits, or leaves."""
        who, name = self.workers[which], self.table.consumers[number]
        if first == "prune":
            self.prune(name)
        elif first == "retry":
            self.retry_failed(name)
        mine = {place: held for place, held in self.held.items() if place[0] == name}
        running = [held for held in mine.values() if held.state == "running"]
        batches = {held.batch or held.claim for held in running if held.holder == who}
        assert sorted(self.stores[name].held(who)) == [(batch, batch, False) for batch in sorted(batches)]
        returned, free = self.takeable(name, len(KEYS), isolate=False)
        by_itself, _ = self.takeable(name, len(KEYS), isolate=True)
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
        past = [place for place in self.failures if place[0] == name and not self.has_failed(*place)]
        forgotten = len(idle) + len(past)
        assert self.stores[name].prune(Retention(0.0, 0.0), 0, 100, now=self.now) == (forgotten, 0)
        for place in idle:
            del self.held[place]
        for place in past:
            del self.failures[place]

    def has_failed(self, name: str, key: int) -> bool:
        kept = self.failures.get((name, key))
        return key in self.cells and self.table.has_failed(self.cells[key], name, kept)

    def retry_failed(self, name: str) -> None:
        """An operator's word: whatever has failed is due again."""
        failed = [key for key in self.cells if self.has_failed(name, key)]
        assert overview.retry_failed(self.sources[name]) == len(failed)
        self.failures = {place: mark for place, mark in self.failures.items() if place[0] != name}
        for key in failed:
            self.cells[key] = self.table.cleared(self.cells[key], name)

    # -- what always holds -----------------------------------------------------------------------

    def told(self) -> dict[Place, tuple[Any, ...]]:
        """The claims as the database has them."""
        waits = "run_at" if self.lab.is_sqlite else "CAST(extract(epoch FROM run_at) AS double precision)"
        rows = self.lab.execute(
            "SELECT consumer, row_key, claim, claimed_by, failures, isolate, done, batch_id, CASE "
            "WHEN claimed_by IS NULL THEN NULL WHEN started_at IS NULL THEN 0 ELSE 1 END, "
            f"CASE WHEN claimed_by IS NULL THEN {waits} END FROM {self.lab.prefix}rowlock_consumer_claims"
        )
        return {(name, int(key)): tuple(rest) for name, key, *rest in rows}

    @invariant()
    def the_table_and_the_claims_agree(self) -> None:
        assert self.table.read() == self.cells
        assert self.told() == {place: held.row for place, held in self.held.items()}
        kept = self.lab.execute(f"SELECT consumer, row_key FROM {self.lab.prefix}rowlock_consumer_failures")
        assert {(name, int(key)) for name, key in kept} == {*self.failures}


FORMS: dict[str, type[StateCells]] = {
    "state": StateCells,
    "own marks": OwnMarkCells,
    "status": StatusCells,
    "flag": FlagCells,
}


def run_model(lab: Lab, form: str, examples: int) -> None:
    table, app = FORMS[form](lab), lab.app()
    looked_at: dict[str, Table] = {}
    for name in table.consumers:
        looked_at[name] = Table(app.store.database, table.consumer(name, 1, None))
        looked_at[name].indexes.create()
    check(lambda: ConsumerModel(lab, app, table, looked_at), examples)


@pytest.mark.no_cover  # what it runs is measured elsewhere, and here it would take twice as long
@pytest.mark.timeout(400)  # a failure is made small before it is shown
@pytest.mark.parametrize("form", FORMS)
def test_both_stores_do_what_the_model_does(lab: Lab, form: str) -> None:
    examples = 12 if lab.is_sqlite else 6  # always the same: `make chaos` tries more, and others
    run_model(lab, form, examples // 2 if FORMS[form].keeps_failures else examples)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", FORMS)
def test_both_stores_do_what_the_model_does_for_long(lab: Lab, form: str) -> None:
    run_model(lab, form, examples=600 if lab.is_sqlite else 200)
