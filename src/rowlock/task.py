"""A task: a named function with options, that can be called here or enqueued for a worker.

Does not run anything but plain calls; the worker's side is in `execution/`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from rowlock.enqueuing import App, Enqueuer
from rowlock.errors import ConfigurationError
from rowlock.job import NewJob
from rowlock.options import EnqueueOptions, Seconds, check_keywords, check_name, check_seconds, with_options
from rowlock.retry import Retry, policy
from rowlock.task_arguments import Binding

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")
POOLS = ("thread", "process", "async")


class Runnable:
    """A function that workers run: a task's, or that of a consumer of a table's rows."""

    kind = "task"
    name: str
    aliases: tuple[str, ...] = ()

    def __init__(
        self,
        function: Callable[..., Any],
        binding: Binding,
        retry: Retry | bool | None,
        timeout: Seconds | None,
        pool: str | None,
    ) -> None:
        self.binding = binding
        self.residents = binding.residents
        self.retry = policy(retry)
        self.timeout = check_seconds("timeout", timeout)
        if self.timeout == 0:
            raise ConfigurationError("timeout=0: must be more than 0 seconds, or None for no limit")
        if pool is not None and pool not in POOLS:
            raise ConfigurationError(f"pool={pool!r}: must be one of {', '.join(POOLS)}")
        self.is_async = inspect.iscoroutinefunction(function)
        if pool == "async" and not self.is_async:
            raise ConfigurationError(
                f"{self.title} is a plain function and would block the event loop: pool='async' is for "
                "async def"
            )
        self.pool = pool
        self.function = function
        update_wrapper(cast("Any", self), function)

    @property
    def title(self) -> str:
        """What it is called in errors."""
        return f"{self.kind} {self.name!r}"


class TaskOptions(EnqueueOptions, total=False):
    """Options of `@app.task`, beside how its jobs are enqueued; each is explained in `docs/tasks.md`."""

    name: str | None  # without one, the function's
    timeout: Seconds | None  # of a run
    retry: Retry | bool | None  # False: at most once
    aliases: Sequence[str]  # earlier names
    pool: str | None  # thread, process or async; without one, the worker's


class Task(Enqueuer[P], Runnable, Generic[P, R]):
    """A registered function; calling it runs it here, `enqueue` runs it in a worker."""

    def __init__(self, app: App, function: Callable[..., R], **given: Unpack[TaskOptions]) -> None:
        check_keywords("app.task", given, TaskOptions)
        name, aliases = given.get("name"), given.get("aliases", ())
        self.name = check_name("name", name if name is not None else getattr(function, "__name__", "?"))
        binding = Binding(function, self.name)
        Runnable.__init__(
            self, function, binding, given.get("retry"), given.get("timeout"), given.get("pool")
        )
        if isinstance(aliases, str):
            raise ConfigurationError(f"aliases={aliases!r}: must be a list of names")
        self.aliases = tuple(check_name("aliases", alias) for alias in aliases)
        plain = NewJob(task=self.name, max_attempts=self.retry.max_attempts)
        enqueued = {name: value for name, value in given.items() if name in EnqueueOptions.__annotations__}
        Enqueuer.__init__(self, app, binding, with_options(plain, cast("EnqueueOptions", enqueued)))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._app.call_task(self, args, kwargs)
        return result

    def __repr__(self) -> str:
        return f"<task {self.name!r} of {self.function.__module__}>"
