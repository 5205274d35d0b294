"""The ways to enqueue a task: bind, check, write; alone or many, here or on a user's connection.

Where jobs are written is the app's to say; what a task is, `task.py` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, overload

import msgspec

from rowlock import codec
from rowlock.binding import Binding
from rowlock.errors import StoreError
from rowlock.job import Inserted, Job, NewJob, utc
from rowlock.options import UNIQUE, Options, Seconds, options

P = ParamSpec("P")
_CHUNK = 10_000


class AsyncConnection(Protocol):
    """What tells an asynchronous connection or session from another: its commit is awaited."""

    def commit(self) -> Awaitable[None]:
        """Commit."""
        ...


class Destination(Protocol):
    """Where a producer's jobs are written and read back."""

    @property
    def store(self) -> object:
        """The store behind it."""
        ...

    @property
    def open(self) -> bool:
        """False once the transaction that it belonged to has ended."""
        ...

    @property
    def asynchronous(self) -> bool:
        """True if it has to be awaited."""
        ...

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write jobs, all or none."""
        ...

    async def ainsert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same from a coroutine."""
        ...

    def get(self, job: int) -> Job | None:
        """Read one job."""
        ...

    async def aget(self, job: int) -> Job | None:
        """The same from a coroutine."""
        ...


# The transaction of the task that runs in this thread: what it enqueues commits with its rows.
joined: ContextVar[Destination | None] = ContextVar("rowlock_transaction", default=None)


class Host(Protocol):
    """What a task needs of its app."""

    @property
    def max_payload_bytes(self) -> int:
        """The largest size of arguments and results, as JSON."""
        ...

    def destination(self, connection: object | None) -> Destination:
        """Where jobs are written: on a user's connection, in the running task's transaction, or as usual."""
        ...

    def local_context(self, task: str) -> Any:
        """A context for a call outside any worker."""
        ...

    def local_residents(self, task: Any) -> dict[str, Any]:
        """The residents of a task for a call outside any worker."""
        ...


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
        self._connection: object | None = None

    @overload
    def using(self, connection: AsyncConnection) -> AsyncEnqueuer[P]: ...  # type: ignore[overload-overlap]
    @overload
    def using(self, connection: object) -> Enqueuer[P]: ...
    def using(self, connection: object) -> Enqueuer[P] | AsyncEnqueuer[P]:
        """The same task, enqueued on a connection of yours: the job commits or rolls back with your rows."""
        other = self._copy(self.options)
        other._connection = connection
        return AsyncEnqueuer(other) if self._host.destination(connection).asynchronous else other

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
        return self._copy(
            options(self.options, {key: value for key, value in given.items() if value is not None})
        )

    def _copy(self, chosen: Options) -> Enqueuer[P]:
        other: Enqueuer[P] = Enqueuer(self._host, self.name, self._binding, self._max_attempts, chosen)
        other._connection = self._connection
        return other

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Write one job, durably; with a unique key it may return the job that holds the key already."""
        return self._enqueue(self._new_job(self._bind(args, kwargs)))

    def enqueue_named(self, args: Mapping[str, Any]) -> Job:
        """The same, with the arguments as a mapping of names to values."""
        bound = self._binding.bind_named(args) if self._binding else _plain_mapping(self.name, args)
        return self._enqueue(self._new_job(bound))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """Write one job per call (a mapping of names, or a sequence of positional arguments); returns ids.

        Every call is checked before the first is written. Long lists are written a few thousand at a time.
        """
        destination, ids = self._host.destination(self._connection), list[int]()
        for chunk in self._chunks(calls):
            with _told_how_many(ids):
                ids += [one.id for one in destination.insert(chunk)]
        return ids

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for async callers."""
        new = self._new_job(self._bind(args, kwargs))
        destination = self._host.destination(self._connection)
        (inserted,) = await destination.ainsert([new])
        return _as_job(new, inserted, None if inserted.is_new else await destination.aget(inserted.id))

    async def aenqueue_many(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """`enqueue_many` for async callers."""
        destination, ids = self._host.destination(self._connection), list[int]()
        for chunk in self._chunks(calls):
            with _told_how_many(ids):
                ids += [one.id for one in await destination.ainsert(chunk)]
        return ids

    def _chunks(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[list[NewJob]]:
        jobs = []
        for number, call in enumerate(calls):
            try:
                jobs.append(self._new_job(self._bound(call)))
            except TypeError as error:  # InvalidPayload is one, too
                error.args = (f"{error} (call {number} of the list; nothing was enqueued)",)
                raise
        return [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return self._binding.bind(args, kwargs) if self._binding else dict(kwargs)

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
            unique_until=None if chosen.unique_key is None else UNIQUE[chosen.unique],
            meta=chosen.meta,
        )

    def _enqueue(self, new: NewJob) -> Job:
        destination = self._host.destination(self._connection)
        (inserted,) = destination.insert([new])
        return _as_job(new, inserted, None if inserted.is_new else destination.get(inserted.id))


class AsyncEnqueuer(Generic[P]):
    """A task on an asynchronous connection: the same calls, to be awaited."""

    def __init__(self, inner: Enqueuer[P]) -> None:
        self._inner = inner

    def configure(self, **chosen: Any) -> AsyncEnqueuer[P]:
        """The same task under other options; those left out stay as they are."""
        return AsyncEnqueuer(self._inner.configure(**chosen))

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Write one job on the connection; it commits or rolls back with the rest of the transaction."""
        return await self._inner.aenqueue(*args, **kwargs)

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """Write one job per call on the connection; returns their ids."""
        return await self._inner.aenqueue_many(calls)

    aenqueue = enqueue
    aenqueue_many = enqueue_many


@contextmanager
def _told_how_many(ids: list[int]) -> Iterator[None]:
    """An error after the first few thousand says that those were written."""
    try:
        yield
    except StoreError as error:
        if ids:
            error.args = (f"{error} (the first {len(ids)} jobs were enqueued before that)",)
        raise


def _plain_mapping(task: str, args: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise TypeError(f"{task}: arguments must be a mapping of names to values, not {args!r}")
    return dict(args)


def _as_job(new: NewJob, inserted: Inserted, holder: Job | None) -> Job:
    """The new job as a record, or the one that holds its unique key."""
    if holder is not None:
        return msgspec.structs.replace(holder, is_new=False)
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
        is_new=inserted.is_new,
    )
