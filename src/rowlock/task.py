"""A task: a named function with options, that can be called here or enqueued for a worker.

Does not run anything but plain calls; the worker's side is in `execution/`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from rowlock.binding import Binding
from rowlock.enqueuing import App, Enqueuer
from rowlock.errors import ConfigurationError
from rowlock.job import NewJob
from rowlock.options import Seconds, check_name, check_seconds, with_options
from rowlock.retry import Retry, policy

P = ParamSpec("P")
R = TypeVar("R")
POOLS = ("thread", "process", "async")
_OPTIONS = ("name", "queue", "priority", "timeout", "expires", "retry", "unique", "aliases", "pool")


class Task(Enqueuer[P], Generic[P, R]):
    """A registered function; calling it runs it here, `enqueue` runs it in a worker."""

    def __init__(
        self,
        app: App,
        function: Callable[..., R],
        *,
        name: str | None = None,
        retry: Retry | bool | None = None,
        timeout: Seconds | None = None,
        aliases: Sequence[str] = (),
        pool: str | None = None,
        **given: Any,
    ) -> None:
        chosen = check_name("name", name if name is not None else getattr(function, "__name__", "?"))
        binding = Binding(function, chosen)
        self.retry = policy(retry)
        self.timeout = check_timeout(timeout)
        if isinstance(aliases, str):
            raise ConfigurationError(f"aliases={aliases!r}: must be a list of names")
        self.aliases = tuple(check_name("aliases", alias) for alias in aliases)
        self.is_async = inspect.iscoroutinefunction(function)
        self.pool = check_pool(f"task {chosen!r}", pool, self.is_async)
        self.function = function
        self.binding = binding
        self.residents = binding.residents
        plain = NewJob(task=chosen, max_attempts=self.retry.max_attempts)
        super().__init__(app, binding, with_options(plain, given, _OPTIONS))
        update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.residents:
            for name, value in self._app.local_residents(self).items():
                kwargs.setdefault(name, value)
        if self.binding.takes_context:
            return self.function(self._app.local_context(self.name), *args, **kwargs)
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name!r} of {self.function.__module__}>"


def check_timeout(value: Any) -> float | None:
    """The seconds that a run may take; None: no limit."""
    seconds = check_seconds("timeout", value)
    if seconds == 0:
        raise ConfigurationError("timeout=0: must be more than 0 seconds, or None for no limit")
    return seconds


def check_pool(who: str, pool: str | None, is_async: bool) -> str | None:
    """A kind of pool in which this function can run; None: any."""
    if pool is not None and pool not in POOLS:
        raise ConfigurationError(f"pool={pool!r}: must be one of {', '.join(POOLS)}")
    if pool == "async" and not is_async:
        raise ConfigurationError(
            f"{who} is a plain function and would block the event loop: pool='async' is for async def"
        )
    return pool
