"""What the heartbeat's thread does for a worker between beats: reports, cancels, strays, questions.

Touches runs only through the worker's hand.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rowlock.errors import StoreError

if TYPE_CHECKING:
    from rowlock.worker.worker import Worker

_TELL_EVERY = 5.0  # seconds between looks at whether the worker's row still says how it chooses


class Chores:
    """One worker's chores, about twice a second while anything runs."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._told: dict[str, Any] = {}
        self._tell_at = 0.0

    def run_once(self) -> None:
        """Write what runs have said, hear who is to be cancelled and what is asked."""
        worker = self._worker
        suspected = worker.lost_claims.suspected
        if not worker.runs.in_flight and not suspected:
            return
        self._report()
        store = worker.store
        if suspected:
            worker.lost_claims.before_look()
        held = store.held(worker.id)
        worker.runs.cancelled((job, claim) for job, claim, cancelled in held if cancelled)
        if suspected:
            worker.lost_claims.run_once(worker.id, [(job, claim) for job, claim, _ in held])
        self._answer()
        self._tell()

    def _report(self) -> None:
        runs = self._worker.runs
        with runs.reporting:
            taken = runs.reports()
            try:
                self._worker.store.report([report for _, report in taken])
            except StoreError:
                for context, report in taken:
                    context.give_back(report)
                raise

    def _answer(self) -> None:
        """Somebody may have asked where the runs stand."""
        info = self._worker.store.info(self._worker.id)
        asked = info.get("stacks_asked")
        if asked is not None and asked != info.get("stacks_answered"):
            self._worker.store.tell(
                self._worker.id, {"stacks_answered": asked, "stacks": self._worker.runs.stacks()}
            )

    def _tell(self) -> None:
        """Keep the worker's row in step with how it chooses."""
        moment = time.monotonic()
        if moment < self._tell_at:
            return
        self._tell_at = moment + _TELL_EVERY
        facts = self._worker.facts()
        if facts != self._told:
            self._worker.store.tell(self._worker.id, facts)
            self._told = facts
