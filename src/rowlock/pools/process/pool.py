"""A pool of child processes: for tasks that hold the interpreter, may crash, or have to be killed.

Keeps the line of runs that wait for a child; each child is kept by a `ChildSupervisor`.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from rowlock.errors import ConfigurationError
from rowlock.execution.residents import Residents
from rowlock.pools.base import Done, Ended, Run, not_begun
from rowlock.pools.process.child_supervisor import (
    SHUTDOWN_SECONDS,
    START_ATTEMPTS,
    CannotStart,
    ChildSupervisor,
)
from rowlock.pools.process.messages import ChildPlan
from rowlock.pools.process.spawn import plan_for

log = logging.getLogger("rowlock.process")

_QUICK_SECONDS_PER_CHILD = 0.03  # seconds of quick runs that a child has at once, by experience
_MOST_BYTES_PER_CHILD = (
    32_768  # of claims; a pipe holds 64 KiB, and no sender may have to wait for a busy child
)
_PER_CLAIM = 300  # bytes, besides its arguments
_ANSWER_WITHIN = 1.0  # seconds to say where a run stands
_SILENT = "its process does not answer: something holds its interpreter"


class ProcessPool:
    """As many children as runs at once, all of them ready before the first claim."""

    may_wait = False

    plan: ChildPlan

    def __init__(
        self,
        size: int,
        app: Any,
        done: Done,
        residents: Residents,
        tasks: Sequence[str] = (),
        max_jobs: int | None = None,
    ) -> None:
        self._app = app
        self._done = done
        self._residents = residents
        self._tasks = list(tasks)
        self.max_jobs = math.inf if max_jobs is None else max_jobs
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self._process = os.getpid()
        self._line: deque[Run] = deque()
        self._supervisors = [ChildSupervisor(number + 1, self) for number in range(size)]
        self._started: queue.SimpleQueue[tuple[dict[str, float], CannotStart | None]] = queue.SimpleQueue()

    # -- what the worker asks ----------------------------------------------------------------------

    @property
    def stuck(self) -> int:
        """How many slots have no child and cannot get one; a run that hangs holds none."""
        return sum(supervisor.failing >= START_ATTEMPTS for supervisor in self._supervisors)

    def start(self) -> None:
        self.plan = plan_for(self._app, self._tasks, len(self._supervisors))
        atexit.register(self._kill)  # children leave SIGTERM to us, and multiprocessing would wait for them
        for supervisor in self._supervisors:
            supervisor.thread.start()
        for _ in self._supervisors:
            loaded, error = self._started.get()
            if error is not None:
                self.close()
                if error.trace:
                    log.error("a child process cannot work for %s:\n%s", self.plan.app, error.trace)
                raise ConfigurationError(f"a child process cannot work for {self.plan.app}: {error}")
            self._residents.elsewhere.update(loaded)

    def submit(self, runs: Sequence[Run]) -> None:
        with self.lock:
            self._line.extend(runs)
            self._wake()

    def take_back(self) -> list[Run]:
        with self.lock:
            waiting = [run for supervisor in self._supervisors for run in supervisor.take_back()]
            waiting.extend(self._line)
            self._line.clear()
        return waiting

    def cancel(self, run: Run) -> None:
        with self.lock:
            for supervisor, _ in self._supervisors_of(run):
                supervisor.ring()

    def abandon(self, run: Run) -> None:
        with self.lock:
            for supervisor, number in self._supervisors_of(run):
                self._line.extendleft(reversed(supervisor.abandon(number)))
            self._wake()

    def where(self) -> dict[Run, str]:
        with self.lock:
            busy = [
                supervisor
                for supervisor in self._supervisors
                if supervisor.runs and supervisor.child is not None
            ]
            for supervisor in busy:
                supervisor.ask_stack()
        deadline = time.monotonic() + _ANSWER_WITHIN
        found: dict[Run, str] = {}
        for supervisor in busy:
            if supervisor.answered.wait(max(0.0, deadline - time.monotonic())):
                found |= supervisor.stacks
            else:
                found |= dict.fromkeys(list(supervisor.runs.values())[:1], _SILENT)
        return found

    def close(self) -> None:
        self.closed.set()
        with self.lock:
            for supervisor in self._supervisors:
                supervisor.ring()
        deadline = time.monotonic() + SHUTDOWN_SECONDS + 2.0
        for supervisor in self._supervisors:
            if supervisor.thread.ident is not None:
                supervisor.thread.join(max(0.0, deadline - time.monotonic()))
        self._kill()
        atexit.unregister(self._kill)

    # -- what its supervisors ask ------------------------------------------------------------------

    def take(self, supervisor: ChildSupervisor) -> list[Run]:
        """One run, or several that are known to be quick; none while the child has enough."""
        taken: list[Run] = []
        refused: list[Run] = []
        with self.lock:
            budget = _QUICK_SECONDS_PER_CHILD - sum(run.cost for run in supervisor.runs.values())
            size = sum(_size(run) for run in supervisor.runs.values())
            share = min(math.ceil(len(self._line) / len(self._supervisors)), supervisor.room)
            if supervisor.runs and (supervisor.has_slow_run or budget < _QUICK_SECONDS_PER_CHILD / 2):
                share = 0
            while self._line and len(taken) < share:
                run = self._line[0]
                budget -= run.cost
                size += _size(run)
                if supervisor.runs and (budget < 0 or size > _MOST_BYTES_PER_CHILD):
                    break
                self._line.popleft()
                if run.context.cancelled or run.context.lost:
                    refused.append(run)
                    continue
                taken.append(run)
                supervisor.add(run)
            supervisor.idle = not supervisor.runs and supervisor.room > 0
        if refused:
            self.done([(run, not_begun(run)) for run in refused])
        return taken

    def put_back(self, runs: Sequence[Run]) -> None:
        with self.lock:
            self._line.extendleft(reversed(runs))
            self._wake()

    def done(self, ended: Ended) -> None:
        self._done(ended)

    def ready(self, residents: dict[str, float], error: CannotStart | None) -> None:
        self._started.put((residents, error))

    def _wake(self) -> None:
        idle = [supervisor for supervisor in self._supervisors if supervisor.idle]
        for supervisor in idle[: len(self._line)]:
            supervisor.idle = False
            supervisor.ring()

    def _supervisors_of(self, run: Run) -> list[tuple[ChildSupervisor, int]]:
        """The supervisor that has this run, and the run's number there."""
        return [
            (supervisor, number)
            for supervisor in self._supervisors
            for number, one in list(supervisor.runs.items())
            if one is run
        ]

    def _kill(self) -> None:
        if os.getpid() != self._process:  # in a forked child of the worker, which is about to end
            return
        for supervisor in self._supervisors:
            supervisor.kill()


def _size(run: Run) -> int:
    return _PER_CLAIM + len(run.claim.args_json)
