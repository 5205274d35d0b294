"""Rowlock: the façade that users hold. Short methods only; each room is imported when it is first needed.

Nothing is opened when it is made: each process opens the store on its first call.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from rowlock.asynchronous import awaited, in_thread
from rowlock.enqueuing import Destination, Enqueuer, joined
from rowlock.errors import ConfigurationError, JobCancelled, JobFailed, JobNotFound, UnknownTask
from rowlock.job import EVERY_TASK, HistoryEntry, Inserted, Job, JobList, LogEntry, NewJob, State
from rowlock.options import Options, Seconds, check_name, check_strategy_applies
from rowlock.registry import Registry
from rowlock.retry import Retry
from rowlock.task import Task

if TYPE_CHECKING:
    from rowlock.consumers.consumer import Consumer
    from rowlock.consumers.forms import Failed, Flag, Status
    from rowlock.consumers.host import ConsumerHost
    from rowlock.execution.context import JobContext
    from rowlock.execution.execute import Hook
    from rowlock.execution.residents import Residents
    from rowlock.files.ingest import Ingest
    from rowlock.files.janitor import Janitor
    from rowlock.insights import Stats
    from rowlock.settings import Settings
    from rowlock.stores.base import Retention, Store
    from rowlock.worker.finisher import Tally
    from rowlock.worker.poller import Poller
    from rowlock.worker.worker import Worker

# A library does not print: whoever wants the log lines configures logging, as `rowlock worker` does.
logging.getLogger("rowlock").addHandler(logging.NullHandler())

P = ParamSpec("P")
R = TypeVar("R")
_DAY = 86_400.0
_FIRST_LOOK, _LONGEST_LOOK = 0.002, 0.05


class Rowlock:
    """A queue in a database: register tasks on it, enqueue jobs, ask about them, run workers."""

    def __init__(
        self,
        url: str | None = None,
        *,
        include: Sequence[str] = (),
        poll_interval: float | None = None,
        lease: float | None = None,
        failed_after: float | None = None,
        max_payload_bytes: int | None = None,
        busy_timeout: float | None = None,
        keep_completed_days: float | None = None,
        keep_failed_days: float | None = None,
    ) -> None:
        self._registry = Registry(include)
        self._arguments = {
            "database_url": url,
            "poll_interval": poll_interval,
            "lease": lease,
            "failed_after": failed_after,
            "max_payload_bytes": max_payload_bytes,
            "busy_timeout": busy_timeout,
            "keep_completed_days": keep_completed_days,
            "keep_failed_days": keep_failed_days,
        }
        self._consumers: dict[str, Consumer] = {}
        self._ingests: dict[str, Ingest] = {}
        self._janitors: dict[str, Janitor] = {}
        self._hooks: list[Hook] = []
        self._home = os.getcwd()
        self._imported_as: str | None = None  # the `module:app` that a command was given
        self._settings: Settings | None = None
        self._store: Store | None = None
        self._first_store: dict[str, Store] = {}
        self._own_destination = _OwnDestination(self)
        self._residents: Residents | None = None  # of calls outside any worker
        if url is not None:  # a URL that cannot work is refused here, where it was written
            from rowlock.stores.address import store_for

            store_for(url)

    def __repr__(self) -> str:
        from rowlock.settings import without_password

        url = self._arguments["database_url"]
        return f"<Rowlock {without_password(str(url)) if url else '(from the environment)'}>"

    # -- tasks -----------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        timeout: Seconds | None = None,
        expires: Seconds | None = None,
        retry: Retry | bool | None = None,
        unique: str = "unfinished",
        aliases: Sequence[str] = (),
        pool: str | None = None,
    ) -> _TaskMaker: ...

    def task(self, *function: Callable[..., Any], **given: Any) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(queue="gpu", retry=Retry(...))`."""
        maker = _TaskMaker(self, given)
        return maker(*function) if function else maker

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name, without aliases."""
        return self._registry.tasks

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The task of that name or alias, or None."""
        return self._registry.find(name)

    def load_tasks(self) -> None:
        """Import the modules of `include`, so that their tasks are registered."""
        self._registry.load()

    def around(self, hook: Hook) -> Hook:
        """Register a generator around every run: it yields once and is sent the run's `Outcome`.

        An async generator goes around async tasks and consumers, on their event loop, and around no others.
        """
        import inspect

        if not (inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook)):
            raise ConfigurationError(f"@app.around needs a generator function that yields once, not {hook!r}")
        self._hooks.append(hook)
        return hook

    # -- consumers -------------------------------------------------------------------------------

    def consumer(
        self,
        name: str,
        *,
        table: str,
        state: str | None = None,
        status: Status | None = None,
        flag: Flag | None = None,
        failed: Failed | None = None,
        key: str = "id",
        order_by: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        due_at: str | None = None,
        when: Callable[[], bool] | None = None,
        timeout: Seconds | None = None,
        retry: Retry | bool | None = None,
        batch: int | None = None,
        pool: str | None = None,
    ) -> Callable[[Callable[..., Any]], Consumer]:
        """Register a function as a consumer of the rows of a table that is the user's own.

        With `state`, a row is due while the member `name` of the JSON object in that column is null or
        missing; with `status=Status(...)`, while the status column says so; with `flag=Flag(...)`, until that
        boolean column is true; and with `due_at`, not before the time in that column. `failed(error,
        attempts)` makes the mark that a row out of attempts gets in `state`. `when()` is asked before rows
        are claimed. With `batch=n` the function gets a list of up to n rows, and returns a list of as many
        answers (or None); an exception in it is that row's.
        """

        def register(function: Callable[..., Any]) -> Consumer:
            from rowlock.consumers.consumer import Consumer

            made = Consumer(
                function,
                name,
                table=table,
                state=state,
                status=status,
                flag=flag,
                failed=failed,
                key=key,
                order_by=order_by,
                columns=columns,
                where=where,
                due_at=due_at,
                when=when,
                timeout=timeout,
                retry=retry,
                batch=batch,
                pool=pool,
            )
            other = self._consumers.get(name)
            if other is not None and other.plain.__qualname__ != made.plain.__qualname__:
                raise ConfigurationError(f"two different consumers want the name {name!r}")
            self._consumers[name] = made
            return made

        return register

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """The registered consumers by name."""
        return dict(self._consumers)

    def consumer_host(self, name: str) -> ConsumerHost:
        """A consumer with what a worker needs to run it."""
        from rowlock.consumers.host import ConsumerHost

        if name not in self._consumers:
            self.load_tasks()
        if name not in self._consumers:
            known = ", ".join(sorted(self._consumers)) or "none"
            raise UnknownTask(f"there is no consumer {name!r}; known ones are: {known}")
        return ConsumerHost(self, self._consumers[name])

    def consuming(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        pool: str = "thread",
        poll_interval: float | None = None,
        worker_id: str | None = None,
        grace: float | None = None,
        prefetch: int | None = None,
        max_jobs_per_child: int | None = None,
    ) -> Worker:
        """A worker for the rows of a consumer: call `.run()` on it, or use `.background()`."""
        host = self.consumer_host(name)
        return self._make_worker(
            host,
            queues=host.queues,
            strategy="FIFO",
            concurrency=concurrency,
            pool=pool,
            poll_interval=poll_interval,
            worker_id=worker_id,
            grace=grace,
            prefetch=prefetch,
            max_jobs_per_child=max_jobs_per_child,
        )

    def consume(self, name: str, *, until_empty: bool = False, **chosen: Any) -> Tally:
        """Work on the rows of a consumer until stopped, or until none is due or in flight."""
        return self.consuming(name, **chosen).run(until_empty=until_empty)

    async def aconsume(self, name: str, *, until_empty: bool = False, **chosen: Any) -> Tally:
        """`consume` for async callers; to cancel it stops the worker."""
        worker = self.consuming(name, **chosen)
        try:
            return await in_thread(worker.run, until_empty=until_empty)
        finally:
            worker.stop()

    def wake(self, table: str) -> None:
        """Tell whoever waits for rows of this table that there may be some; call it after the commit."""
        from rowlock.consumers.consumer import wake_readers

        wake_readers(self.store, table)

    # -- files -----------------------------------------------------------------------------------

    def ingest(
        self,
        name: str,
        *,
        table: str,
        folder: str | os.PathLike[str],
        pattern: str = "**/*",
        path: str | Sequence[str] = "path",
        paths: str = "absolute",
        row: Callable[..., Mapping[str, Any] | bool | None] | None = None,
        settle: float = 2.0,
        interval: float = 60.0,
    ) -> Ingest:
        """Declare an ingest: one row in `table` for each finished file in `folder` that fits `pattern`.

        `path` names the column of the file's path, or several, of which the first is unique. `row(path)` or
        `row(path, tx)` returns the other columns; None means not yet, False never.
        """
        from rowlock.files.ingest import Ingest

        made = Ingest(
            self,
            name,
            table=table,
            folder=folder,
            pattern=pattern,
            path=path,
            paths=paths,
            row=row,
            settle=settle,
            interval=interval,
            home=self._home,
        )
        return _declared(self._ingests, made)

    def janitor(
        self,
        name: str,
        *,
        table: str,
        folder: str | os.PathLike[str],
        path: str | Sequence[str] = "path",
        paths: str = "absolute",
        key: str | None = None,
        order_by: str | None = None,
        after: Sequence[str] = (),
        failed_too: bool = False,
        where: str | None = None,
        deleted: str | None = None,
        remove_rows: bool = False,
        min_free: Any = None,
        target_free: Any = None,
        max_age: Any = None,
        max_size: Any = None,
        cap: int = 500,
        also: Callable[..., Iterable[Any]] | None = None,
        also_folder: str | os.PathLike[str] | None = None,
        on_deleted: Callable[..., Any] | None = None,
        interval: float = 60.0,
    ) -> Janitor:
        """Declare a janitor: it deletes the files of rows, oldest first, if a limit asks for it.

        Only rows that every consumer in `after` is done with and that fulfil `where`. Limits (`"20%"`,
        `"500MB"`, `"30d"`) may be functions, asked at each run. Several janitors on one folder are tiers.
        """
        from rowlock.files.janitor import Janitor

        made = Janitor(
            self,
            name,
            table=table,
            folder=folder,
            path=path,
            paths=paths,
            key=key,
            order_by=order_by,
            after=after,
            failed_too=failed_too,
            where=where,
            deleted=deleted,
            remove_rows=remove_rows,
            min_free=min_free,
            target_free=target_free,
            max_age=max_age,
            max_size=max_size,
            cap=cap,
            also=also,
            also_folder=also_folder,
            on_deleted=on_deleted,
            interval=interval,
            home=self._home,
        )
        return _declared(self._janitors, made)

    @property
    def janitors(self) -> Mapping[str, Janitor]:
        """The declared janitors by name, in the order in which they were declared."""
        return dict(self._janitors)

    @property
    def ingests(self) -> Mapping[str, Ingest]:
        """The declared ingests by name."""
        return dict(self._ingests)

    # -- producing -------------------------------------------------------------------------------

    def enqueue(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        expires: Seconds | None = None,
        unique_key: str | None = None,
        unique: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Job:
        """Enqueue by name. An app with tasks of its own refuses names that neither it nor a worker knows."""
        configured = self._enqueuer(check_name("task", task)).configure(
            queue=queue,
            priority=priority,
            delay=delay,
            run_at=run_at,
            expires=expires,
            unique_key=unique_key,
            unique=unique,
            meta=meta,
        )
        return configured.enqueue_named({} if args is None else args)

    def _enqueuer(self, name: str) -> Enqueuer[...]:
        found = self._registry.find_or_load(name)
        if found is not None:
            return found
        if self._registry:  # a producer without the code has no tasks at all, and is trusted
            elsewhere = {task for worker in self.store.workers() for task in worker.tasks} - {EVERY_TASK}
            if name not in elsewhere:
                raise UnknownTask(self._registry.no_such_task(name, elsewhere))
        return Enqueuer(self, name, None, None, Options())

    # -- asking ----------------------------------------------------------------------------------

    def job(self, job: int | Job) -> Job:
        """The job of that id, as it is now; raises `JobNotFound`."""
        id = _checked_id(job)
        found = self.store.get(id)
        if found is None:
            raise JobNotFound(f"there is no job {id}; it may have been pruned")
        return found

    def jobs(
        self,
        *,
        state: State | str | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobList:
        """A page of jobs, newest first; pass its `.cursor` on for the next page."""
        if state is not None and state not in list(State):
            raise ConfigurationError(f"state={state!r}: must be one of {', '.join(State)}")
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise ConfigurationError(f"limit={limit!r}: must be a whole number from 1 to 10000")
        name = None if state is None else State(state).value
        return self.store.find(state=name, queue=queue, task=task, limit=limit, cursor=cursor)

    def result(self, job: int | Job, timeout: float | None = None) -> Any:
        """Wait for the job to end and return its result; raises JobFailed, JobCancelled or TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        look = _FIRST_LOOK
        while True:
            found = self.job(job)
            if found.state.final:
                return _result_of(found)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise _not_yet(found, timeout)
            time.sleep(look if left is None else min(look, left))
            look = min(look * 1.5, _LONGEST_LOOK)

    async def aresult(self, job: int | Job, timeout: float | None = None) -> Any:
        """`result` for async callers; waits without holding a thread."""
        import asyncio

        deadline = None if timeout is None else time.monotonic() + timeout
        look = _FIRST_LOOK
        while True:
            found = await self.ajob(job)
            if found.state.final:
                return _result_of(found)
            if deadline is not None and time.monotonic() >= deadline:
                raise _not_yet(found, timeout)
            await asyncio.sleep(look)
            look = min(look * 1.5, _LONGEST_LOOK)

    def history(self, job: int | Job) -> list[HistoryEntry]:
        """What became of a job's earlier claims, and operators' acts."""
        return self.store.history(_checked_id(job))

    def logs(self, job: int | Job) -> list[LogEntry]:
        """The lines that the job's runs kept with `ctx.log`."""
        return self.store.logs(_checked_id(job))

    def stats(self) -> Stats:
        """How many jobs are in which state, in all and by queue."""
        from rowlock.insights import stats

        return stats(self.store)

    def depth(self, queue: str | None = None) -> int:
        """How many jobs wait to be claimed, in all queues or in one; cheap, whatever is finished."""
        return self.store.depth(None if queue is None else check_name("queue", queue))

    # -- operating -------------------------------------------------------------------------------

    def cancel(self, job: int | Job) -> Job:
        """Cancel a waiting job at once, ask a running one to stop; returns the job as it is then."""
        self.store.cancel(self.job(job).id)
        return self.job(job)

    def retry(self, job: int | Job) -> Job:
        """Put a finished (or scheduled) job back into its queue now, with a new budget."""
        self.store.retry(_checked_id(job))
        return self.job(job)

    def pause(self, queue: str) -> None:
        """Let nothing more be claimed from a queue; what runs goes on."""
        self.store.set_queue(check_name("queue", queue), paused=True)

    def resume(self, queue: str) -> None:
        """Let jobs be claimed from a paused queue again."""
        self.store.set_queue(check_name("queue", queue), paused=False)

    def set_strategy(self, queue: str, strategy: str | None) -> None:
        """Set the order in which all workers claim from a queue; None leaves it to each worker."""
        check_name("queue", queue)
        if strategy:
            check_strategy_applies(queue, strategy)
        self.store.set_queue(queue, strategy=strategy or "")

    def close(self) -> None:
        """Close this process's connections; a later call opens them again."""
        if self._store is not None:
            self._store.close()

    # -- the same for async callers (`aresult` and `aconsume` are beside theirs) -------------------

    aenqueue = awaited(enqueue)
    ajob = awaited(job)
    ajobs = awaited(jobs)
    ahistory = awaited(history)
    alogs = awaited(logs)
    astats = awaited(stats)
    adepth = awaited(depth)
    acancel = awaited(cancel)
    aretry = awaited(retry)
    apause = awaited(pause)
    aresume = awaited(resume)
    aset_strategy = awaited(set_strategy)
    awake = awaited(wake)
    aclose = awaited(close)

    # -- working ---------------------------------------------------------------------------------

    def worker(
        self,
        *,
        queues: Sequence[str] = (),
        strategy: str = "PRIORITY",
        concurrency: int | None = None,
        pool: str = "thread",
        poll_interval: float | None = None,
        worker_id: str | None = None,
        grace: float | None = None,
        prefetch: int | None = None,
        max_jobs_per_child: int | None = None,
    ) -> Worker:
        """A worker for these queues (none named: all); call `.run()` on it, or use `.background()`.

        Without `concurrency`, 4 threads or processes run at once, and 1,000 coroutines. `grace` is how many
        seconds runs may take to end after a stop, `prefetch` how many jobs may be claimed ahead. A process of
        the pool is replaced after `max_jobs_per_child` jobs, if that is given.
        """
        return self._make_worker(
            self,
            queues=queues,
            strategy=strategy,
            concurrency=concurrency,
            pool=pool,
            poll_interval=poll_interval,
            worker_id=worker_id,
            grace=grace,
            prefetch=prefetch,
            max_jobs_per_child=max_jobs_per_child,
        )

    def _make_worker(
        self,
        host: Any,
        *,
        queues: Sequence[str],
        strategy: str,
        concurrency: int | None,
        pool: str,
        poll_interval: float | None,
        worker_id: str | None,
        grace: float | None,
        prefetch: int | None,
        max_jobs_per_child: int | None,
    ) -> Worker:
        from rowlock.worker.worker import STOP_GRACE, Worker

        return Worker(
            host,
            queues=queues,
            strategy=strategy,
            concurrency=self._chosen_concurrency if concurrency is None else concurrency,
            pool=pool,
            poll_interval=self.settings.poll_interval if poll_interval is None else poll_interval,
            worker_id=worker_id,
            grace=STOP_GRACE if grace is None else grace,
            prefetch=prefetch,
            max_jobs_per_child=max_jobs_per_child,
        )

    @property
    def _chosen_concurrency(self) -> int | None:
        """The one that somebody set; without it each kind of pool has its own."""
        return self.settings.concurrency if "concurrency" in self.settings.model_fields_set else None

    def poller(self, **chosen: Any) -> Poller:
        """A poller for code that wants claims without a worker."""
        from rowlock.worker.poller import Poller

        chosen.setdefault("poll_interval", self.settings.poll_interval)
        return Poller(self, **chosen)

    # -- what the rooms below ask of their app ----------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in force: arguments, then environment, then defaults."""
        if self._settings is None:
            from rowlock.settings import load

            self._settings = load(**self._arguments)
        return self._settings

    @property
    def store(self) -> Store:
        """The store at the app's URL; opened by its first call."""
        if self._store is None:
            from rowlock.stores.address import store_for

            made = store_for(
                self.settings.database_url, home=self._home, busy_timeout=self.settings.busy_timeout
            )
            # Threads may come here together, and must leave with the same one. Not a lock: a fork may copy
            # that while it is held.
            self._store = self._first_store.setdefault("it", made)
        return self._store

    @property
    def lease(self) -> float:
        """How long a silent worker's claims are honoured, in seconds."""
        return self.settings.lease

    @property
    def retention(self) -> Retention:
        """How long finished jobs are kept."""
        from rowlock.stores.base import Retention

        return Retention(self.settings.keep_completed_days * _DAY, self.settings.keep_failed_days * _DAY)

    @property
    def failed_after(self) -> float:
        """After how many seconds a job that is still queued or running fails; 0: never."""
        return self.settings.failed_after

    @property
    def max_payload_bytes(self) -> int:
        """The largest size of arguments and results, as JSON."""
        return self.settings.max_payload_bytes

    @property
    def hooks(self) -> Sequence[Hook]:
        """The generators around every run."""
        return self._hooks

    def destination(self, connection: object | None) -> Destination:
        """Where jobs are written: on a user's connection, in the running task's transaction, or as usual."""
        if connection is not None:
            from rowlock.stores.sql.user_connection import borrow
            from rowlock.stores.sql.user_transaction import UserDestination

            return UserDestination(self.store, borrow(connection))
        destination = joined.get()
        # A consumer's store stands before the app's own.
        its = None if destination is None else getattr(destination.store, "underlying", destination.store)
        return (
            destination
            if destination is not None and destination.open and its is self.store
            else self._own_destination
        )

    def local_context(self, task: str) -> JobContext:
        """A context for a task that is called outside any worker."""
        from rowlock.execution.context import local_context

        return local_context(task)

    def local_residents(self, task: Task[..., Any]) -> dict[str, Any]:
        """The residents of a task that is called outside any worker: loaded here, once."""
        from rowlock.execution.residents import Residents

        if self._residents is None:
            self._residents = Residents()
        self._residents.load([task])
        return self._residents.values(task)

    def retry_policy(self, task: str) -> Retry | None:
        """The retry policy of a registered task, or None."""
        found = self.find_task(task)
        return found.retry if found else None

    def task_facts(self) -> dict[str, Any]:
        """What a worker's row says about the tasks it knows."""
        return self._registry.facts()


class _OwnDestination:
    """The usual way of a job into the queue: the store's own connections, committed at once."""

    asynchronous = False
    open = True

    def __init__(self, app: Rowlock) -> None:
        self._app = app

    @property
    def store(self) -> Store:
        return self._app.store

    def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        return self._app.store.insert(jobs)

    async def ainsert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        return await in_thread(self.insert, jobs)

    def get(self, job: int) -> Job | None:
        return self._app.store.get(job)

    async def aget(self, job: int) -> Job | None:
        return await in_thread(self.get, job)


class _TaskMaker:
    """What `@app.task(...)` with options returns: it takes the function."""

    def __init__(self, app: Rowlock, given: dict[str, Any]) -> None:
        self._app = app
        self._given = given

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app._registry.add(Task(self._app, function, **self._given))


_F = TypeVar("_F", bound="Ingest | Janitor")


def _declared(known: dict[str, _F], made: _F) -> _F:
    """Keep a service under its name; a module that is imported twice may declare it twice."""
    other = known.get(made.name)
    if other is not None and (other.table, other.folder.path) != (made.table, made.folder.path):
        raise ConfigurationError(
            f"two different services want the name {made.name!r}: {other!r} and {made!r}"
        )
    known[made.name] = made
    return made


def _checked_id(job: Any) -> int:
    if isinstance(job, Job):
        return job.id
    if isinstance(job, bool) or not isinstance(job, int):
        raise TypeError(f"a job's id is a whole number, not {job!r}")
    if not 0 < job < 2**63:
        raise JobNotFound(f"there is no job {job}")
    return job


def _not_yet(job: Job, timeout: float | None) -> TimeoutError:
    return TimeoutError(f"job {job.id} ({job.task}) is still {job.state} after {timeout:g} s")


def _result_of(job: Job) -> Any:
    if job.state is State.FAILED:
        raise JobFailed(job)
    if job.state is State.CANCELLED:
        raise JobCancelled(job)
    return job.result
