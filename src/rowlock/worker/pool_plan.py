"""Which pools a worker has for the tasks of its app, and how many places in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rowlock import pools
from rowlock.errors import ConfigurationError
from rowlock.execution.residents import Residents
from rowlock.pools.base import CallersLoop, Done
from rowlock.task import Task
from rowlock.worker.runs import PoolState

_CONCURRENCY = {"thread": 4, "process": 4, "async": 1_000}  # unless it is given


class Host(Protocol):
    """What it needs of the app."""

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name."""
        ...


class PoolPlan:
    """As it was asked for; what that means for each task is worked out from the tasks of the moment."""

    def __init__(
        self,
        app: Host,
        pool: str,
        concurrency: int | None,
        prefetch: int | None,
        max_jobs_per_child: int | None,
    ) -> None:
        if pool not in pools.POOLS:
            raise ConfigurationError(f"pool={pool!r}: must be one of {', '.join(pools.POOLS)}")
        _check_number("concurrency", concurrency, 1)
        _check_number("prefetch", prefetch, 0)
        _check_number("max_jobs_per_child", max_jobs_per_child, 1)
        self._app = app
        self._pool = pool
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._max_jobs_per_child = max_jobs_per_child
        self.callers_loop: CallersLoop | None = None  # on which coroutines run, if not on one of their own

    def kind_of(self, task: Task[..., Any] | None) -> str:
        """The kind of pool that this task runs in."""
        return pools.kind_of(task, self._pool)

    @property
    def concurrency(self) -> int:
        """How many jobs run at once: in the pool that was asked for, or in the one that all tasks need."""
        kinds = {self.kind_of(task) for task in self._app.tasks.values()} or {self._pool}
        return self._concurrency or _CONCURRENCY[self._pool if self._pool in kinds else min(kinds)]

    def tasks_here(self) -> list[Task[..., Any]]:
        """The tasks that run in this process; a process pool loads what they need in its children."""
        return [task for task in self._app.tasks.values() if self.kind_of(task) != "process"]

    def pool_states(self, done: Done, residents: Residents) -> dict[str, PoolState]:
        """A pool for each kind that the tasks need."""
        kinds: dict[str, list[str]] = {}
        for name, task in self._app.tasks.items():
            kinds.setdefault(self.kind_of(task), []).append(name)
        made = {}
        for kind, tasks in sorted((kinds or {self.kind_of(None): []}).items()):
            size = self._slots_in(kind)
            pool = pools.make(
                *(kind, size, self._app, done, residents),
                tasks=tasks,
                max_jobs_per_child=self._max_jobs_per_child,
                callers_loop=self.callers_loop,
            )
            made[kind] = PoolState(pool, size, self._prefetch)
        return made

    def _slots_in(self, kind: str) -> int:
        size = self._concurrency or _CONCURRENCY[kind]
        asked = [
            {one.key for one in task.residents.values() if not one.shared}
            for task in self._app.tasks.values()
            if self.kind_of(task) == kind
        ]
        # One object that all of them need, one after the other: claiming more would only keep it from others.
        return 1 if kind != "process" and asked and set.intersection(*asked) else size


def _check_number(name: str, value: Any, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ConfigurationError(f"{name}={value!r}: must be a whole number >= {least}")
