"""A task: a named function with options, and the ways to enqueue it.

Does not run anything but plain calls; the worker's side is in `running/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from rowlock import codec
from rowlock.binding import Binding
from rowlock.errors import ConfigurationError, StoreError
from rowlock.job import Inserted, Job, NewJob, utc
from rowlock.retry import LONGEST, Retry, policy

P = ParamSpec("P")
R = TypeVar("R")

LOWEST, HIGHEST = -100, 100
_CHUNK = 5_000
_MAX_META = 65_536
_UNIQUE = {"unfinished": "finished", "queued": "claimed"}
Seconds = float | int | timedelta


class Host(Protocol):
    """What a task needs of its app."""

    @property
    def max_payload_bytes(self) -> int:
        """The largest size of arguments and results, as JSON."""
        ...

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write jobs into the app's store."""
        ...

    def get(self, job: int) -> Job:
        """Read one job."""
        ...

    def local_context(self, task: str) -> Any:
        """A context for a call outside any worker."""
        ...


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is enqueued; checked when it is made."""

    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    run_at: float | None = None
    expires: float | None = None
    unique_key: str | None = None
    unique: str = "unfinished"
    meta: str | None = None


def options(base: Options, given: Mapping[str, Any]) -> Options:
    """The base options with those given put over them; a bad value raises, naming the option."""
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _CHECKS:
            raise ConfigurationError(f"unknown option {name!r}; there are: {', '.join(sorted(_CHECKS))}")
        changes[name] = _CHECKS[name](name, value)
    if changes.get("delay") is not None and changes.get("run_at") is not None:
        raise ConfigurationError("give either delay= or run_at=, not both")
    if "meta" in changes and changes["meta"] is not None:
        changes["meta"] = codec.encode(changes["meta"], "meta", _MAX_META)
    return msgspec.structs.replace(base, **changes)


def check_name(what: str, value: Any) -> str:
    """A name of a queue, task or key: text of 1 to 200 characters without control characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable():
        raise ConfigurationError(f"{what}={value!r}: must be printable text of 1 to 200 characters")
    return value


def check_priority(what: str, value: Any) -> int:
    """A priority from -100 to 100."""
    if not isinstance(value, int) or isinstance(value, bool) or not LOWEST <= value <= HIGHEST:
        raise ConfigurationError(f"{what}={value!r}: must be a whole number from {LOWEST} to {HIGHEST}")
    return value


def check_seconds(what: str, value: Any) -> float | None:
    """A number of seconds >= 0, or a timedelta; None means none."""
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= LONGEST:
        raise ConfigurationError(f"{what}={value!r}: must be seconds from 0 to 100 years, or a timedelta")
    return float(number)


def _check_moment(what: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{what}={value!r}: must be a datetime with a timezone")
    if value.tzinfo is None:
        raise ConfigurationError(f"{what}={value!r} has no timezone; use datetime.now(timezone.utc) + ...")
    seconds = value.timestamp()
    if seconds > time.time() + LONGEST:
        raise ConfigurationError(f"{what}={value!r} lies more than 100 years ahead")
    return seconds


def _check_key(what: str, value: Any) -> str | None:
    return None if value is None else check_name(what, value)


def _check_unique(what: str, value: Any) -> str:
    if value not in _UNIQUE:
        raise ConfigurationError(f"{what}={value!r}: must be one of {', '.join(_UNIQUE)}")
    return str(value)


def _check_meta(what: str, value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise ConfigurationError(f"{what}={value!r}: must be a dict of JSON values")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": check_name,
    "priority": check_priority,
    "delay": check_seconds,
    "run_at": _check_moment,
    "expires": check_seconds,
    "unique_key": _check_key,
    "unique": _check_unique,
    "meta": _check_meta,
}


class Enqueuer(Generic[P]):
    """A task together with the options under which it is enqueued."""

    def __init__(
        self, host: Host, name: str, binding: Binding | None, max_attempts: int | None, chosen: Options
    ) -> None:
        self.name = name
        self.options = chosen
        self._host = host
        self._binding = binding
        self._max_attempts = max_attempts

    def configure(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        expires: Seconds | None = None,
        unique_key: str | None = None,
        unique: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Enqueuer[P]:
        """The same task under other options; those left out stay as they are."""
        given = {
            "queue": queue,
            "priority": priority,
            "delay": delay,
            "run_at": run_at,
            "expires": expires,
            "unique_key": unique_key,
            "unique": unique,
            "meta": meta if meta is None else dict(meta),
        }
        other: Enqueuer[P] = Enqueuer(self._host, self.name, self._binding, self._max_attempts, self.options)
        other.options = options(
            self.options, {key: value for key, value in given.items() if value is not None}
        )
        return other

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Write one job, durably; with a unique key it may return the job that holds the key already."""
        bound = self._binding.bind(args, kwargs) if self._binding else dict(kwargs)
        return self._enqueue(bound)

    def enqueue_named(self, args: Mapping[str, Any]) -> Job:
        """The same, with the arguments as a mapping of names to values."""
        return self._enqueue(
            self._binding.bind_named(args) if self._binding else _plain_mapping(self.name, args)
        )

    def enqueue_many(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """Write one job per call (a mapping of names, or a sequence of positional arguments); returns ids.

        Every call is checked before the first is written. Long lists are written a few thousand at a time.
        """
        jobs = []
        for number, call in enumerate(calls):
            try:
                jobs.append(self._new_job(self._bound(call)))
            except TypeError as error:  # InvalidPayload is one, too
                error.args = (f"{error} (call {number} of the list; nothing was enqueued)",)
                raise
        ids: list[int] = []
        for start in range(0, len(jobs), _CHUNK):
            try:
                ids += [one.id for one in self._host.insert(jobs[start : start + _CHUNK])]
            except StoreError as error:
                if ids:
                    error.args = (
                        f"{error} (the first {len(ids)} of {len(jobs)} jobs were enqueued before that)",
                    )
                raise
        return ids

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for async callers: the write happens in a thread."""
        import asyncio

        return await asyncio.to_thread(self.enqueue, *args, **kwargs)

    async def aenqueue_many(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """`enqueue_many` for async callers."""
        import asyncio

        return await asyncio.to_thread(self.enqueue_many, calls)

    def _bound(self, call: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        if isinstance(call, Mapping):
            return self._binding.bind_named(call) if self._binding else _plain_mapping(self.name, call)
        if self._binding is None or isinstance(call, (str, bytes)) or not isinstance(call, Sequence):
            raise TypeError(f"{self.name}: each call must be a mapping of names to values, not {call!r}")
        return self._binding.bind(tuple(call), {})

    def _new_job(self, bound: dict[str, Any]) -> NewJob:
        args = codec.encode(bound, f"{self.name}: arguments", self._host.max_payload_bytes)
        if self._binding:
            self._binding.check(args)
        chosen = self.options
        return NewJob(
            task=self.name,
            queue=chosen.queue,
            args=args,
            priority=chosen.priority,
            max_attempts=self._max_attempts,
            delay=chosen.delay,
            run_at=chosen.run_at,
            expires=chosen.expires,
            unique_key=chosen.unique_key,
            unique_until=None if chosen.unique_key is None else _UNIQUE[chosen.unique],
            meta=chosen.meta,
        )

    def _enqueue(self, bound: dict[str, Any]) -> Job:
        new = self._new_job(bound)
        (inserted,) = self._host.insert([new])
        if not inserted.is_new:
            return msgspec.structs.replace(self._host.get(inserted.id), is_new=False)
        return _as_job(new, inserted)


class Task(Enqueuer[P], Generic[P, R]):
    """A registered function; calling it runs it here, `enqueue` runs it in a worker."""

    def __init__(
        self,
        host: Host,
        function: Callable[..., R],
        *,
        name: str | None = None,
        retry: Retry | bool | None = None,
        timeout: Seconds | None = None,
        aliases: Sequence[str] = (),
        **given: Any,
    ) -> None:
        chosen = check_name("name", name if name is not None else getattr(function, "__name__", "?"))
        binding = Binding(function, chosen)
        self.retry = policy(retry)
        self.timeout = check_seconds("timeout", timeout)
        if self.timeout == 0:
            raise ConfigurationError("timeout=0: must be more than 0 seconds, or None for no limit")
        if isinstance(aliases, str):
            raise ConfigurationError(f"aliases={aliases!r}: must be a list of names")
        self.aliases = tuple(check_name("aliases", alias) for alias in aliases)
        self.function = function
        self.binding = binding
        super().__init__(host, chosen, binding, self.retry.max_attempts, options(Options(), given))
        update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.binding.takes_context:
            return self.function(self._host.local_context(self.name), *args, **kwargs)
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name!r} of {self.function.__module__}>"


def _plain_mapping(task: str, args: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise TypeError(f"{task}: arguments must be a mapping of names to values, not {args!r}")
    return dict(args)


def _as_job(new: NewJob, inserted: Inserted) -> Job:
    state, due, deadline = new.placed(inserted.now)
    created_at = utc(inserted.now)
    return Job(
        id=inserted.id,
        task=new.task,
        queue=new.queue,
        args=codec.decode(new.args),
        priority=new.priority,
        state=state,
        claim=0,
        failures=0,
        max_attempts=new.max_attempts,
        created_at=created_at,
        run_at=created_at if due == inserted.now else utc(due),
        expires_at=None if deadline is None else utc(deadline),
        unique_key=new.unique_key,
        meta=codec.decode(new.meta) if new.meta else {},
    )
