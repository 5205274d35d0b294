"""A job or a row that kills its workers, and in between ends free of charge, does not live for ever."""

from __future__ import annotations

import time
from typing import cast

import pytest

from rowlock import Retry, Rowlock
from rowlock.job import Claim, Ending
from rowlock.stores.sql.store import Store
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import add, end, state, take, worker

BUDGET = 3
LONG = 1_000.0  # seconds, in which every lease runs out and every retry falls due

# What ends a run free of charge.
LATER, RELEASE, STOP = "the task raises RetryLater", "it is released", "its worker stops"
STORIES = [[LATER], [RELEASE], [STOP], [LATER, RELEASE], [LATER, RELEASE, STOP]]


class JobKiller:
    """A job that kills whoever claims it, as often as it is told to."""

    def __init__(self, lab: Lab, app: Rowlock, task: str) -> None:
        self.lab, self.app, self.task = lab, app, task
        self.source: Store = app.store
        self.now = time.time()
        self.deaths = 0
        self.put()

    def put(self) -> None:
        (self.id,) = add(self.source, task=self.task, max_attempts=BUDGET, now=self.now)

    @property
    def failed(self) -> bool:
        return state(self.source, self.id) == "failed"

    def claimed(self, name: str) -> Claim:
        self.source.promote(10, now=self.now)
        (claim,) = take(self.source, worker(self.app.store, name, now=self.now), 2, now=self.now)
        return claim

    def die(self) -> None:
        self.claimed("victim")
        self.now += LONG
        self.source.rescue(worker(self.app.store, "rescuer", now=self.now), careful_age=10.0, now=self.now)
        self.deaths += 1

    def end_free_of_charge(self, how: str) -> None:
        claim = self.claimed("survivor")
        if how == LATER:
            assert end(self.source, claim, Ending.RETRY, self.now, error="oh", error_kind="retry_later")
        elif how == RELEASE:
            assert end(self.source, claim, Ending.RELEASED, self.now)
        else:
            self.source.retire(claim.claimed_by, now=self.now)
        self.now += LONG


class RowKiller(JobKiller):
    """The same as a row of a user's table."""

    def put(self) -> None:
        retry = Retry(max_attempts=BUDGET)
        self.app.consumer(self.task, table=self.lab.table, state="analysis_state", retry=retry)(nothing)
        self.source = cast("Store", store_of(self.app, self.task))

    @property
    def failed(self) -> bool:
        mark = self.lab.marks(self.task)[1]
        return isinstance(mark, dict) and "failed" in mark


@pytest.mark.parametrize("source", [JobKiller, RowKiller], ids=["job", "row"])
def test_a_killer_that_ends_free_of_charge_in_between_fails_within_its_budget(
    lab: Lab, app: Rowlock, source: type[JobKiller]
) -> None:
    lab.create(1)
    for number, endings in enumerate(STORIES):
        killer = source(lab, app, f"killer_{number}")
        while not killer.failed and killer.deaths < 2 * BUDGET:
            killer.die()
            for how in [] if killer.failed else endings:
                killer.end_free_of_charge(how)
        assert (killer.failed, killer.deaths) == (True, BUDGET), endings
