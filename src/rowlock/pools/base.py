"""What the worker asks of a pool, and the run that it hands over.

A pool runs and reports; it never touches the store.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from rowlock.endings import Event, ended
from rowlock.execution.context import JobContext
from rowlock.execution.execute import Hook
from rowlock.job import Claim, Outcome
from rowlock.retry import DEFAULT
from rowlock.task import Task


class Run:
    """One claim on its way through a pool."""

    __slots__ = ("claim", "context", "cost", "pool_name", "settled", "started", "task")

    def __init__(
        self, claim: Claim, task: Task[..., Any] | None, context: JobContext, cost: float = math.inf
    ) -> None:
        self.claim = claim
        self.task = task
        self.context = context
        self.pool_name = ""  # the name of the station that has it in hand
        self.cost = cost  # seconds that it may take, by experience; without any: for ever
        self.started = time.monotonic()  # handed to its pool; its context knows when it began
        self.settled = False  # somebody else decided on this run: its own outcome is dropped


class Pool(Protocol):
    """Runs up to its size at once; each ends in one call of `done([(run, outcome)])`, from any thread."""

    may_wait: bool  # True if `done` is called from a thread that has nothing else to do

    @property
    def stuck(self) -> int:
        """How many abandoned runs still hold what they ran in."""
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
        """Give up on a run that does not stop: its place is free again, whatever it still does."""
        ...

    def where(self) -> dict[Run, str]:
        """The stacks of the runs that have begun."""
        ...

    def close(self) -> None:
        """Take no more runs; returns at once."""
        ...


class CallersLoop(NamedTuple):
    """The event loop of the program around a worker, and the thread that it runs in."""

    loop: asyncio.AbstractEventLoop
    thread: int


class Host(Protocol):
    """What a pool needs of the app."""

    @property
    def hooks(self) -> Sequence[Hook]:
        """The generators around every run."""
        ...

    @property
    def max_payload_bytes(self) -> int:
        """The largest size of results, as JSON."""
        ...


def not_begun(run: Run) -> Outcome:
    """What becomes of a run that was cancelled, or whose claim was lost, while it waited for its turn."""
    retry = run.task.retry if run.task is not None else DEFAULT
    lost = run.context.lost
    return ended(run.claim, Event.RELEASED, retry, began=False, cancel_requested=True, lost=lost)


Ended = Sequence[tuple[Run, Outcome]]
Done = Callable[[Ended], None]
