"""What the worker asks of a pool, and the run that it is given.

A pool runs and settles; it never touches the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol

from rowlock.execution.context import JobContext
from rowlock.job import Claim, Outcome
from rowlock.retry import DEFAULT, Retry
from rowlock.task import Runnable


class Run:
    """One claim on its way through a pool."""

    __slots__ = ("claim", "context", "cost", "is_quick", "pool_name", "settled", "started", "task")

    def __init__(
        self,
        claim: Claim,
        task: Runnable | None,
        context: JobContext,
        cost: float = math.inf,
        pool_name: str = "",
    ) -> None:
        self.claim = claim
        self.task = task
        self.context = context
        self.pool_name = pool_name
        self.cost = cost  # seconds that it may take; infinite if its task is not known to be quick
        self.is_quick = cost < math.inf  # it may have been claimed before a slot was free
        self.started = time.monotonic()  # given to its pool; its context knows when it began
        self.settled = False  # somebody has decided on this run: any later outcome is dropped

    @property
    def retry(self) -> Retry:
        """The policy of its task."""
        return self.task.retry if self.task is not None else DEFAULT


class Runs(Protocol):
    """Where a pool's runs end; the worker's own, which stand below every pool."""

    def ended_before_start(self, run: Run) -> Outcome | None:
        """The outcome of a run that must not begin: it was cancelled or lost, or its queue was paused."""
        ...

    def settle(self, run: Run, outcome: Outcome) -> bool:
        """End a run; False if somebody else has decided on it. Safe from any thread."""
        ...


class Pool(Protocol):
    """Runs up to its size at once; each run ends in one call of `runs.settle(run, outcome)`.

    The threads of the thread pool are the worker's runners, which make that call.
    """

    @property
    def stuck(self) -> int:
        """How many slots are lost to abandoned runs."""
        ...

    def start(self) -> None:
        """Get ready before the first claim; raises if it cannot."""
        ...

    def submit(self, runs: Sequence[Run]) -> None:
        """Run them in this order, each as soon as there is room; with none, look again at those that wait."""
        ...

    def take_back(self) -> list[Run]:
        """The runs that have not begun; they will not."""
        ...

    def cancel(self, run: Run) -> None:
        """Somebody asked to cancel this run: stop it, where that can be done from outside."""
        ...

    def abandon(self, run: Run) -> None:
        """Give up on a run that does not stop: its slot is free again, whatever it still does."""
        ...

    def where(self) -> dict[Run, str]:
        """The stacks of the runs that have begun."""
        ...

    def close(self) -> None:
        """Take no more runs; returns at once."""
        ...
