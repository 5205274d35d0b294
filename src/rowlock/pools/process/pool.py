"""A pool of child processes: for tasks that hold the interpreter, may crash, or have to be killed.

Keeps the runs that wait for a child; each child is kept by a `ChildSupervisor`, and has one run at a time.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import as_completed, wait
from contextlib import suppress

from rowlock.errors import ConfigurationError
from rowlock.execution.residents import Residents
from rowlock.pools.base import Run, Runs
from rowlock.pools.process.child_supervisor import (
    SHUTDOWN_SECONDS,
    START_ATTEMPTS,
    ChildSupervisor,
)
from rowlock.pools.process.messages import StartFailed
from rowlock.pools.process.spawn import plan_for
from rowlock.workload import App, Workload

log = logging.getLogger("rowlock.process")

_STACK_SECONDS = 1.0  # to say where a run stands
_OPENED_AT_IMPORT = (
    "; its module must not open the DuckDB file when it is imported, which the parent has open: "
    "`duckdb.connect` does, an engine opens it when it is first used"
)
_SILENT = "its process does not answer: something holds its interpreter"


class ProcessPool:
    """As many children as runs at once, all of them ready before the first claim."""

    def __init__(
        self,
        size: int,
        app: App,
        workload: Workload,
        runs: Runs,
        residents: Residents,
        tasks: Sequence[str] = (),
        max_jobs: int | None = None,
    ) -> None:
        self._app = app
        self._workload = workload
        self._residents = residents
        self._tasks = list(tasks)
        self._process = os.getpid()
        self._closed = threading.Event()
        self._waiting: deque[Run] = deque()
        most = math.inf if max_jobs is None else max_jobs
        self._supervisors = [
            ChildSupervisor(number + 1, runs, self._next_waiting, self._closed, most)
            for number in range(size)
        ]

    @property
    def stuck(self) -> int:
        """How many slots have no child and cannot get one; a run that hangs holds none."""
        return sum(supervisor.failing >= START_ATTEMPTS for supervisor in self._supervisors)

    def start(self) -> None:
        plan = plan_for(self._app, self._workload, self._tasks)
        atexit.register(self._kill)  # children leave SIGTERM to us, and multiprocessing would wait for them
        for supervisor in self._supervisors:
            supervisor.start(plan)
        for ready in as_completed([supervisor.ready for supervisor in self._supervisors]):
            said = ready.result()
            if isinstance(said, StartFailed):
                if said.trace:
                    log.error("a child process cannot work for %s:\n%s", plan.app, said.trace)
                hint = _OPENED_AT_IMPORT if plan.database.startswith("duckdb:") else ""
                raise ConfigurationError(f"a child process cannot work for {plan.app}: {said.reason}{hint}")
            self._residents.elsewhere.update(said.residents)

    def submit(self, runs: Sequence[Run]) -> None:
        self._waiting.extend(runs)
        for supervisor in self._supervisors:
            if supervisor.run is None:  # one that is in a run looks by itself when it ends
                supervisor.ring()

    def take_back(self) -> list[Run]:
        return list(iter(self._next_waiting, None))

    def _next_waiting(self) -> Run | None:
        """Taken one by one, also by the children."""
        with suppress(IndexError):
            return self._waiting.popleft()
        return None

    def cancel(self, run: Run) -> None:
        for supervisor in self._supervisors:
            if supervisor.run is run:
                supervisor.ring()

    def abandon(self, run: Run) -> None:
        for supervisor in self._supervisors:
            supervisor.kill(run)

    def where(self) -> dict[Run, str]:
        asked = {run: one.ask_stack() for one in self._supervisors if (run := one.run) is not None}
        wait(asked.values(), _STACK_SECONDS)
        return {run: stack.result() if stack.done() else _SILENT for run, stack in asked.items()}

    def close(self) -> None:
        self._closed.set()
        for supervisor in self._supervisors:
            supervisor.ring()
        deadline = time.monotonic() + SHUTDOWN_SECONDS + 2.0
        for supervisor in self._supervisors:
            supervisor.join(max(0.0, deadline - time.monotonic()))
        self._kill()
        atexit.unregister(self._kill)

    def _kill(self) -> None:
        if os.getpid() != self._process:  # in a forked child of the worker, which is about to end
            return
        for supervisor in self._supervisors:
            supervisor.kill()
