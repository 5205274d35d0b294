"""Where runs happen: one file per kind of pool, all behind the small protocol in `base.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowlock.execution.residents import Residents
from rowlock.pools.base import CallersLoop, Pool, Runs
from rowlock.task import POOLS, Task
from rowlock.workload import App, Workload

__all__ = ["POOLS", "kind_of", "make"]


def kind_of(task: Task[..., Any] | None, default: str) -> str:
    """The kind of pool that a task runs in: the one it asks for, or one that fits."""
    if task is None:
        return default
    if task.pool is not None:
        return task.pool
    if task.is_async:
        return "process" if default == "process" else "async"
    return "thread" if default == "async" else default


def make(
    kind: str,
    size: int,
    app: App,
    workload: Workload,
    runs: Runs,
    residents: Residents,
    *,
    tasks: Sequence[str] = (),
    max_jobs_per_child: int | None = None,
    callers_loop: CallersLoop | None = None,
) -> Pool:
    """A pool of that kind, for these tasks; each is imported when it is first needed."""
    if kind == "process":
        from rowlock.pools.process.pool import ProcessPool

        return ProcessPool(size, app, workload, runs, residents, tasks, max_jobs_per_child)
    if kind == "async":
        from rowlock.pools.event_loop import AsyncPool

        return AsyncPool(size, app, runs, residents, callers_loop)
    from rowlock.pools.thread import ThreadPool

    return ThreadPool(size)
