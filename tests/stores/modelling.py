"""What the stateful models share: what they believe of a job, and empty queues to compare it with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from rowlock.job import Ending
from rowlock.stores.address import store_for
from rowlock.stores.sql.store import Store
from tests.stores.steps import emptied

START = 1_800_000_000.0
LEASE = 60.5  # time passes in whole seconds here, so that no beat is ever exactly a lease old
FINAL = ("completed", "failed", "cancelled")
EmptyStores = Callable[[], Store]


@dataclass
class Expected:
    """What a model believes of one job."""

    state: str
    run_at: float
    claim: int = 0
    failures: int = 0
    max_attempts: int = 3
    holder: str | None = None
    cancel: bool = False
    deaths: int = 0  # of its workers, since it was charged for something else
    is_suspect: bool = False  # a worker died that had it: it runs alone next time

    @property
    def told(self) -> tuple[str, int, int]:
        """What the store has to say of it."""
        return self.state, self.claim, self.failures

    def holds(self, claim: int) -> bool:
        return self.state == "running" and self.claim == claim

    def taken(self, who: str) -> None:
        self.state, self.holder = "running", who
        self.claim += 1

    def ended(self, ending: Ending, charge: int, due: float) -> None:
        comes_back = {Ending.RETRY: "scheduled", Ending.RELEASED: "queued"}
        if not (self.cancel and ending in comes_back):  # to be cancelled costs nothing
            self.failures += charge
            self.deaths = 0 if charge else self.deaths
        self.is_suspect = self.is_suspect and ending is Ending.RELEASED
        if ending in comes_back:
            self.state = "cancelled" if self.cancel else comes_back[ending]
        else:
            self.state = str(ending)
        if ending is Ending.RETRY:
            self.run_at = due

    def orphaned(self) -> None:
        """Its worker was declared dead: the first time it is spared, the second time it pays for both."""
        self.is_suspect = True
        if self.cancel:
            self.state = "cancelled"
            return
        charge = 1 if self.max_attempts == 1 else {0: 0, 1: 2}.get(self.deaths, 1)
        charge = min(charge, max(1, self.max_attempts - self.failures))
        self.deaths += 1
        self.failures += charge
        self.state = "failed" if charge and self.failures >= self.max_attempts else "queued"

    def retried(self) -> None:
        """By an operator."""
        self.state, self.failures, self.cancel = "queued", 0, False
        self.deaths = 0
        self.is_suspect = False


@contextmanager
def empty_files(folder: Path) -> Iterator[EmptyStores]:
    """Each call a new SQLite file."""
    numbers = itertools.count()
    yield lambda: store_for(f"sqlite:///{folder / f'queue-{next(numbers)}.db'}")


@contextmanager
def emptied_schemas(url: str) -> Iterator[EmptyStores]:
    """Each call the same PostgreSQL schema, emptied: making one takes longer than an example."""
    with closing(store_for(url)) as first:
        first.open()

        def empty() -> Store:
            emptied(first)
            return store_for(url)

        yield empty


def check(machine: Any, examples: int, **options: Any) -> None:
    """Run a model against its store."""
    how = settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        **{"stateful_step_count": 40, **options},
    )
    run_state_machine_as_test(machine, settings=how)
