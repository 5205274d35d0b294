"""The threads that run jobs: each takes a run, executes it and settles it.

Daemon threads, not an executor's: one that hangs can be abandoned and does not hold the exit.
"""

from __future__ import annotations

import itertools
import os
import threading

from rowlock.execution.execute import Executor
from rowlock.pools.thread import ThreadPool
from rowlock.stores.base import Bell
from rowlock.worker.claimer import Claimer
from rowlock.worker.runs import Runs


class Runners:
    """The threads of one worker's thread pool; started when they are needed."""

    def __init__(
        self, pool: ThreadPool, runs: Runs, executor: Executor, claimer: Claimer, bell: Bell
    ) -> None:
        self._pool = pool
        self._runs = runs
        self._claimer = claimer
        self._bell = bell
        self._executor = executor
        self._process = os.getpid()
        self._numbers = itertools.count(1)

    def start_missing(self) -> None:
        """Start the threads that are needed for what waits; to be called after runs were submitted."""
        for _ in range(self._pool.take_missing()):
            name = f"rowlock-run-{next(self._numbers)}"
            threading.Thread(target=self.work, name=name, daemon=True).start()

    def work(self) -> None:
        """Take one run after the other, until the pool needs this thread no more."""
        pool, runs, execute = self._pool, self._runs, self._executor.execute
        while (run := pool.next()) is not None:
            outcome = runs.ended_before_start(run)
            if outcome is None:
                outcome = execute(run.task, run.context)
            if os.getpid() != self._process:  # a task forked, and its child came back: no business here
                os._exit(0)
            # What it took beside another thread's exchange says little: they share the interpreter.
            beside_exchange = self._claimer.lock.locked()
            if not pool.ended(run, None if beside_exchange else outcome.run_seconds):
                return
            if not runs.settle(run, outcome, ring=False):
                continue
            # The last one to end makes the exchange and goes on with what comes: to wake the loop's thread
            # and to be woken by it takes longer than many a job (650 against 780 us, one job at a time), and
            # two threads that take the interpreter from each other take longer than one (30 k, 41 k jobs/s).
            if self._claimer.exchange_if_due(pool.is_alone):
                self.start_missing()
            else:
                self._bell.put(None)
