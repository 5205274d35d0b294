"""What is written and read about runs while they run: progress, log lines, cancels, stacks.

Called by the heartbeat's thread, about twice a second.
"""

from __future__ import annotations

import time
from typing import Any

from rowlock.errors import StoreError
from rowlock.execution.residents import Residents
from rowlock.stores.sql.store import Store
from rowlock.worker.demand import Demand
from rowlock.worker.pools import Pools
from rowlock.worker.runs import Runs

_FACTS_EVERY_SECONDS = 5.0  # between looks at whether the worker's row still says how it chooses


class ProgressReports:
    """The reports of one worker's runs."""

    def __init__(self, store: Store, runs: Runs, pools: Pools, demand: Demand, residents: Residents) -> None:
        self._store = store
        self._runs = runs
        self._pools = pools
        self._demand = demand
        self._residents = residents
        self._told: tuple[str, dict[str, Any]] | None = None  # which worker's row says what
        self._facts_at = 0.0

    def run_once(self, worker: str) -> None:
        """Write what runs have reported, read who is to be cancelled, and answer what is asked."""
        if not self._runs.in_flight:
            return
        self._report()
        held = self._store.held(worker)
        for run in self._runs.cancel((job, claim) for job, claim, cancelled in held if cancelled):
            self._pools.cancel(run)
        self._answer(worker)
        self._tell_facts(worker)

    def lose_runs(self) -> None:
        """The worker was declared dead: what its runs come to will be refused."""
        self._runs.lose()

    def tasks(self) -> list[str]:
        """The tasks of the runs, for log lines."""
        return [run.claim.task for run in self._runs.all_runs()]

    def stacks(self) -> str:
        """Where every run stands, for people."""
        return self._runs.stacks(self._pools.where())

    def _report(self) -> None:
        with self._runs.reporting:
            taken = self._runs.reports()
            try:
                self._store.report([report for _, report in taken])
            except StoreError:
                for context, report in taken:
                    context.give_back(report)
                raise

    def _answer(self, worker: str) -> None:
        """Somebody may have asked where the runs stand."""
        info = self._store.info(worker)
        asked = info.get("stacks_asked")
        if asked is not None and asked != info.get("stacks_answered"):
            self._store.tell(worker, {"stacks_answered": asked, "stacks": self.stacks()})

    def _tell_facts(self, worker: str) -> None:
        """Keep the worker's row in step with how it chooses, and what it has loaded."""
        moment = time.monotonic()
        if moment < self._facts_at:
            return
        self._facts_at = moment + _FACTS_EVERY_SECONDS
        facts: dict[str, Any] = {"pools": self._demand.facts()}
        if residents := self._residents.seconds:
            facts["residents"] = residents
        if self._told != (worker, facts):
            self._store.tell(worker, facts)
            self._told = worker, facts
