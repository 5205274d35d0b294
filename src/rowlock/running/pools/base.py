"""What the worker asks of a pool, and the run that it hands over.

A pool runs and reports; it never touches the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from rowlock.job import Claim, Outcome
from rowlock.running.context import JobContext
from rowlock.task import Task


class Run:
    """One claim on its way through a pool."""

    __slots__ = ("claim", "context", "settled", "started", "task")

    def __init__(self, claim: Claim, task: Task[..., Any] | None, context: JobContext) -> None:
        self.claim = claim
        self.task = task
        self.context = context
        self.started = time.monotonic()
        self.settled = False  # somebody else decided on this run: its own outcome is dropped


class Pool(Protocol):
    """Runs up to its size at once; each ends in one call of `done(run, outcome)`, from any thread."""

    def submit(self, run: Run) -> None:
        """Run it as soon as there is room."""
        ...

    def abandon(self, run: Run) -> None:
        """Give up on a run that does not stop: its place is free again, whatever it still does."""
        ...

    def close(self) -> None:
        """Take no more runs; returns at once."""
        ...


Execute = Callable[[Run], Outcome]
Done = Callable[[Run, Outcome], None]
