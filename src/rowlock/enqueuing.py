"""The ways to enqueue a task: bind, check, write; alone or many, here or on a user's connection.

Which connection jobs are written on is the app's to say; what a task is, `task.py` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from rowlock import codec
from rowlock.asynchronous import in_thread
from rowlock.errors import ConfigurationError, StoreError
from rowlock.job import Inserted, Job, NewJob, utc
from rowlock.options import EnqueueOptions, with_options
from rowlock.task_arguments import Binding

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rowlock.settings import Settings
    from rowlock.stores.sql.store import Store
    from rowlock.stores.sql.user_connection import UserConnection

P = ParamSpec("P")
T = TypeVar("T")
_CHUNK = 10_000


class AsyncConnection(Protocol):
    """What tells an asynchronous connection or session from another: its commit is awaited."""

    def commit(self) -> Awaitable[None]:
        """Commit."""
        ...


class Destination:
    """Where a producer's jobs are written and read back: the store's own connections, or a user's."""

    open = True  # False once it is a task's transaction that has ended

    def __init__(self, store: Store, user: UserConnection | None = None) -> None:
        self.store = store
        self._user = user

    @property
    def asynchronous(self) -> bool:
        """True if it has to be awaited."""
        return self._user is not None and self._user.asynchronous

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write jobs; on a user's connection, in the user's transaction."""
        return self.store.insert(jobs) if self._user is None else self.store.insert_on(self._user, jobs)

    def get(self, job: int) -> Job | None:
        """Read one job; on a user's connection, as that transaction sees it."""
        return self.store.get(job) if self._user is None else self.store.get_on(self._user, job)

    def call(self, work: Callable[[Destination], T]) -> T:
        """Let `work` write jobs here."""
        if self._user is None:
            return work(self)
        return self._user.call(lambda user: work(Destination(self.store, user)))

    async def acall(self, work: Callable[[Destination], T]) -> T:
        """The same from a coroutine."""
        if self._user is None:
            return await in_thread(work, self)
        return await self._user.acall(lambda user: work(Destination(self.store, user)))


# The transaction of the task that runs in this thread: what it enqueues commits with its rows.
joined: ContextVar[Destination | None] = ContextVar("rowlock_transaction", default=None)


class App(Protocol):
    """What a task needs of its app."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        ...

    def destination(self, connection: object | None) -> Destination:
        """Where jobs are written: on a user's connection, in the running task's transaction, or as usual."""
        ...

    def call_task(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a task's function outside any worker."""
        ...


class Enqueuer(Generic[P]):
    """A task together with the options under which it is enqueued."""

    def __init__(
        self, app: App, binding: Binding | None, options: NewJob, connection: object | None = None
    ) -> None:
        self.name = options.task
        self.options = options  # each new job is a copy of this one with its own arguments
        self._app = app
        self._binding = binding  # None: this producer does not have the code
        self._connection = connection

    @overload
    def using(self, connection: AsyncConnection) -> AsyncEnqueuer[P]: ...  # type: ignore[overload-overlap]
    @overload
    def using(self, connection: object) -> Enqueuer[P]: ...
    def using(self, connection: object) -> Enqueuer[P] | AsyncEnqueuer[P]:
        """The same task, enqueued on a connection of yours: the job commits or rolls back with your rows."""
        if connection is None:  # a session that was never made: the job would be committed by itself
            raise ConfigurationError("using(None): pass the connection or session whose transaction it joins")
        other: Enqueuer[P] = Enqueuer(self._app, self._binding, self.options, connection)
        return AsyncEnqueuer(other) if self._app.destination(connection).asynchronous else other

    def configure(self, **chosen: Unpack[EnqueueOptions]) -> Enqueuer[P]:
        """The same task under other options; those left out stay as they are.

        Options: `queue`, `priority`, `delay` or `run_at`, `expires`, `unique_key`, `unique`, `meta`.
        """
        return Enqueuer(self._app, self._binding, with_options(self.options, chosen), self._connection)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Write one job, durably; with a unique key it may return the job that holds the key already."""
        new = self._new_job(self._bind(args, kwargs))
        return self._destination.call(lambda here: _write_one(here, new))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for async callers."""
        new = self._new_job(self._bind(args, kwargs))
        return await self._destination.acall(lambda here: _write_one(here, new))

    def enqueue_named(self, args: Mapping[str, Any]) -> Job:
        """The same, with the arguments as a mapping of names to values."""
        new = self._new_job(self._bind_named(args))
        return self._destination.call(lambda here: _write_one(here, new))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """Write one job per call (a mapping of names, or a sequence of positional arguments); returns ids.

        Every call is checked before the first is written. Long lists are written a few thousand at a time.
        """
        jobs = self._new_jobs(calls)
        return self._destination.call(lambda here: _write_many(here, jobs))

    async def aenqueue_many(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """`enqueue_many` for async callers."""
        jobs = self._new_jobs(calls)
        return await self._destination.acall(lambda here: _write_many(here, jobs))

    @property
    def _destination(self) -> Destination:
        return self._app.destination(self._connection)

    def _new_jobs(self, calls: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[NewJob]:
        jobs = []
        for number, call in enumerate(calls):
            try:
                jobs.append(self._new_job(self._bind_call(call)))
            except TypeError as error:  # InvalidPayload is one, too
                error.args = (f"{error} (call {number} of the list; nothing was enqueued)",)
                raise
        return jobs

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return self._binding.bind(args, kwargs) if self._binding else dict(kwargs)

    def _bind_named(self, args: Mapping[str, Any]) -> dict[str, Any]:
        if self._binding:
            return self._binding.bind_named(args)
        if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
            raise TypeError(f"{self.name}: arguments must be a mapping of names to values, not {args!r}")
        return dict(args)

    def _bind_call(self, call: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        if isinstance(call, Mapping):
            return self._bind_named(call)
        if isinstance(call, (str, bytes)) or not isinstance(call, Sequence):
            raise TypeError(f"{self.name}: each call must be a mapping of names to values, not {call!r}")
        return self._bind(tuple(call), {})

    def _new_job(self, bound: dict[str, Any]) -> NewJob:
        args = codec.encode(bound, f"{self.name}: arguments", self._app.settings.max_payload_bytes)
        if self._binding:
            self._binding.check(args)
        until = None if self.options.unique_key is None else self.options.unique_until or "finished"
        return msgspec.structs.replace(self.options, args=args, unique_until=until)


class AsyncEnqueuer(Generic[P]):
    """A task on an asynchronous connection: the same calls, to be awaited."""

    def __init__(self, inner: Enqueuer[P]) -> None:
        self._inner = inner

    def configure(self, **chosen: Unpack[EnqueueOptions]) -> AsyncEnqueuer[P]:
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


def _write_one(destination: Destination, new: NewJob) -> Job:
    """Write a job, and return it as a record, or the one that holds its unique key."""
    (inserted,) = destination.insert([new])
    if not inserted.is_new and (holder := destination.get(inserted.id)) is not None:
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


def _write_many(destination: Destination, jobs: Sequence[NewJob]) -> list[int]:
    """Write all of them, a few thousand at a time, and return their ids."""
    ids: list[int] = []
    for start in range(0, len(jobs), _CHUNK):
        try:
            ids += [one.id for one in destination.insert(jobs[start : start + _CHUNK])]
        except StoreError as error:
            if ids:
                error.args = (f"{error} (the first {len(ids)} jobs were enqueued before that)",)
            raise
    return ids
