"""The body of a thread that runs jobs: takes a run, executes it, settles it, may make the next cycle."""

from __future__ import annotations

import os

from rowlock.execution.execute import Executor
from rowlock.pools.thread import ThreadPool
from rowlock.worker.next_cycle import NextCycle
from rowlock.worker.runs import Runs


class Runner:
    """What each thread of one worker's thread pool does."""

    def __init__(self, runs: Runs, executor: Executor, next_cycle: NextCycle) -> None:
        self._runs = runs
        self._executor = executor
        self._next_cycle = next_cycle

    def work(self, pool: ThreadPool) -> None:
        """Take one run after the other, until the pool needs this thread no more."""
        runs, execute, process = self._runs, self._executor.execute, os.getpid()
        while (run := pool.next()) is not None:
            outcome = runs.ended_before_start(run) or execute(run.task, run.context)
            if os.getpid() != process:  # a task forked, and its child came back: no business here
                os._exit(0)
            if not pool.ended(run):
                return
            # The last one to end makes the cycle and goes on with what comes: to wake the loop's thread
            # and to be woken by it takes longer than many a job (650 against 780 us, one job at a time), and
            # two threads that take the interpreter from each other take longer than one (30 k, 41 k jobs/s).
            if runs.settle(run, outcome, ring=False):
                self._next_cycle.after_run(pool.is_alone)
