"""The pools of one worker: which it needs for its tasks, and with how many slots.

How a pool runs is in `rowlock.pools`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rowlock.errors import ConfigurationError
from rowlock.execution.execute import Executor
from rowlock.pools.base import Pool, Run
from rowlock.pools.thread import ThreadPool
from rowlock.task import POOLS, Runnable
from rowlock.worker.runs import Runs
from rowlock.workload import App, Workload

_CONCURRENCY = {"thread": 4, "process": 4, "async": 1_000}  # unless it is given


class Pools:
    """As they were asked for; what that means for each task is worked out from the tasks of the moment."""

    def __init__(
        self,
        app: App,
        workload: Workload,
        runs: Runs,
        executor: Executor,
        pool: str,
        concurrency: int | None,
        max_jobs_per_child: int | None,
    ) -> None:
        if pool not in POOLS:
            raise ConfigurationError(f"pool={pool!r}: must be one of {', '.join(POOLS)}")
        check_number("concurrency", concurrency, 1)
        check_number("max_jobs_per_child", max_jobs_per_child, 1)
        self._app = app
        self._workload = workload
        self._runs = runs
        self._executor = executor
        self._pool = pool
        self._concurrency = concurrency
        self._max_jobs_per_child = max_jobs_per_child
        self.callers_loop: asyncio.AbstractEventLoop | None = None  # of the program around the worker
        self.by_kind: dict[str, Pool] = {}
        self._threads: ThreadPool | None = None
        self.slots: dict[str, int] = {}

    # -- which are needed --------------------------------------------------------------------------

    def kind_of(self, task: Runnable | None) -> str:
        """The kind of pool that this task runs in; one that nobody here knows can go back from any."""
        kind = self._pool if task is None else self._needed_by(task)
        return kind if kind in self.by_kind or not self.by_kind else next(iter(self.by_kind))

    def _needed_by(self, task: Runnable) -> str:
        """The kind of pool that a task asks for, or one that fits."""
        if task.pool is not None:
            return task.pool
        if task.is_async:
            return "process" if self._pool == "process" else "async"
        return "thread" if self._pool == "async" else self._pool

    def _tasks_by_kind(self) -> dict[str, list[Runnable]]:
        kinds: dict[str, list[Runnable]] = {}
        for task in self._workload.registry.tasks.values():
            kinds.setdefault(self._needed_by(task), []).append(task)
        return kinds or {self._pool: []}

    @property
    def concurrency(self) -> int:
        """How many jobs run at once: in the pool that was asked for, or in the one that all tasks need."""
        kinds = self._tasks_by_kind()
        return self._concurrency or _CONCURRENCY[self._pool if self._pool in kinds else min(kinds)]

    def make(self, work: Callable[[ThreadPool], None]) -> None:
        """A pool for each kind that the tasks need; `work` is what each thread of a thread pool does."""
        kinds = self._tasks_by_kind()
        self.slots = {kind: self._slots_in(kind, tasks) for kind, tasks in sorted(kinds.items())}
        self.by_kind = {kind: self._made(kind, kinds[kind], work) for kind in self.slots}
        self._threads = next((pool for pool in self.by_kind.values() if isinstance(pool, ThreadPool)), None)

    def _made(self, kind: str, tasks: Sequence[Runnable], work: Callable[[ThreadPool], None]) -> Pool:
        """A pool of that kind; imported when it is first needed."""
        size, runs = self.slots[kind], self._runs
        if kind == "process":
            from rowlock.pools.process.pool import ProcessPool

            names, most = [task.name for task in tasks], self._max_jobs_per_child
            return ProcessPool(size, self._app, self._workload, runs, self._executor.residents, names, most)
        if kind == "async":
            from rowlock.pools.event_loop import AsyncPool

            return AsyncPool(size, runs, self._executor, self.callers_loop)
        return ThreadPool(size, work)

    def start(self) -> None:
        """Load what runs in this process need, and get every pool ready; raises if one cannot."""
        # A process pool loads what its tasks need in its children.
        here = (tasks for kind, tasks in self._tasks_by_kind().items() if kind != "process")
        self._executor.residents.load([task for tasks in here for task in tasks])
        for pool in self.by_kind.values():
            pool.start()

    def _slots_in(self, kind: str, tasks: Sequence[Runnable]) -> int:
        size = self._concurrency or _CONCURRENCY[kind]
        asked = [{one.load for one in task.residents.values() if not one.shared} for task in tasks]
        # One object that all of them need, one after the other: claiming more would only keep it from others.
        return 1 if kind != "process" and asked and set.intersection(*asked) else size

    # -- what they are told ------------------------------------------------------------------------

    def submit(self, runs: Iterable[Run]) -> None:
        """Give each run to its pool."""
        batches: dict[str, list[Run]] = {}
        for run in runs:
            batches.setdefault(run.pool_name, []).append(run)
        for kind, batch in batches.items():
            self.by_kind[kind].submit(batch)

    def go_on(self) -> None:
        """Look whether a run that was thought to be quick holds up others: then another thread goes on."""
        if self._threads is not None:
            self._threads.submit(())

    def one_thread_is_enough(self) -> bool:
        """Whether what waits for threads is left to one of them."""
        return self._threads is not None and self._threads.one_is_enough()

    def take_back(self, kinds: Iterable[str] | None = None) -> list[Run]:
        """The runs that have not begun, in all pools or in these; they will not."""
        chosen = self.by_kind.values() if kinds is None else [self.by_kind[kind] for kind in kinds]
        return [run for pool in chosen for run in pool.take_back()]

    def cancel(self, run: Run) -> None:
        """Somebody asked to cancel this run."""
        self.by_kind[run.pool_name].cancel(run)

    def abandon(self, run: Run) -> None:
        """Give up on a run that does not stop."""
        self.by_kind[run.pool_name].abandon(run)

    def where(self) -> dict[Run, str]:
        """The stacks of the runs that have begun."""
        return {run: text for pool in self.by_kind.values() for run, text in pool.where().items()}

    @property
    def is_stuck(self) -> bool:
        """True if all slots of one pool are lost to abandoned runs."""
        return any(pool.stuck >= self.slots[kind] for kind, pool in self.by_kind.items())

    def close(self) -> None:
        """Let the pools go."""
        for pool in self.by_kind.values():
            pool.close()


def check_number(name: str, value: Any, least: int) -> None:
    """Raise if this is not a whole number of at least so much."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigurationError(f"{name}={value!r}: must be a whole number >= {least}")
