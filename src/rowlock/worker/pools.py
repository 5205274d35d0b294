"""The pools of one worker: which it needs for its tasks, and with how many slots.

How a pool runs is in `rowlock.pools`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rowlock import pools
from rowlock.errors import ConfigurationError
from rowlock.execution.residents import Residents
from rowlock.pools.base import CallersLoop, Pool, Run
from rowlock.task import Task
from rowlock.worker.runs import Runs
from rowlock.workload import App, Workload

_CONCURRENCY = {"thread": 4, "process": 4, "async": 1_000}  # unless it is given


class Pools:
    """As they were asked for; what that means for each task is worked out from the tasks of the moment."""

    def __init__(
        self,
        app: App,
        workload: Workload,
        pool: str,
        concurrency: int | None,
        max_jobs_per_child: int | None,
        runs: Runs,
    ) -> None:
        if pool not in pools.POOLS:
            raise ConfigurationError(f"pool={pool!r}: must be one of {', '.join(pools.POOLS)}")
        check_number("concurrency", concurrency, 1)
        check_number("max_jobs_per_child", max_jobs_per_child, 1)
        self._app = app
        self._workload = workload
        self._pool = pool
        self._concurrency = concurrency
        self._max_jobs_per_child = max_jobs_per_child
        self._runs = runs
        self.callers_loop: CallersLoop | None = None  # on which coroutines run, if not on one of their own
        self.by_kind: dict[str, Pool] = {}
        self.slots: dict[str, int] = {}

    # -- which are needed --------------------------------------------------------------------------

    def kind_of(self, task: Task[..., Any] | None) -> str:
        """The kind of pool that this task runs in; one that nobody here knows can go back from any."""
        kind = pools.kind_of(task, self._pool)
        return kind if kind in self.by_kind or not self.by_kind else next(iter(self.by_kind))

    @property
    def concurrency(self) -> int:
        """How many jobs run at once: in the pool that was asked for, or in the one that all tasks need."""
        tasks = self._workload.registry.tasks.values()
        kinds = {pools.kind_of(task, self._pool) for task in tasks} or {self._pool}
        return self._concurrency or _CONCURRENCY[self._pool if self._pool in kinds else min(kinds)]

    def make(self, residents: Residents) -> None:
        """A pool for each kind that the tasks need."""
        kinds: dict[str, list[Task[..., Any]]] = {}
        for task in self._workload.registry.tasks.values():
            kinds.setdefault(pools.kind_of(task, self._pool), []).append(task)
        kinds = kinds or {pools.kind_of(None, self._pool): []}
        self.slots = {kind: self._slots_in(kind, tasks) for kind, tasks in sorted(kinds.items())}
        self.by_kind = {
            kind: pools.make(
                *(kind, size, self._app, self._workload, self._runs, residents),
                tasks=[task.name for task in kinds[kind]],
                max_jobs_per_child=self._max_jobs_per_child,
                callers_loop=self.callers_loop,
            )
            for kind, size in self.slots.items()
        }

    def start(self, residents: Residents) -> None:
        """Load what runs in this process need, and get every pool ready; raises if one cannot."""
        tasks = self._workload.registry.tasks.values()  # a process pool loads what they need in its children
        residents.load([task for task in tasks if pools.kind_of(task, self._pool) != "process"])
        for pool in self.by_kind.values():
            pool.start()

    def _slots_in(self, kind: str, tasks: Sequence[Task[..., Any]]) -> int:
        size = self._concurrency or _CONCURRENCY[kind]
        asked = [{one.key for one in task.residents.values() if not one.shared} for task in tasks]
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
