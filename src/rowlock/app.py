"""Rowlock: the façade that users hold. Short methods only; each room is imported when it is first needed.

Nothing is opened when it is made: each process opens the store on its first call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from rowlock.asynchronous import awaited, in_thread
from rowlock.enqueuing import Enqueuer
from rowlock.errors import ConfigurationError, JobNotFound, UnknownTask
from rowlock.job import EVERY_TASK, HistoryEntry, Job, JobList, LogEntry, NewJob, State, id_of
from rowlock.options import CONSUMERS, EnqueueOptions, check_name, check_strategy_applies
from rowlock.registry import Registry
from rowlock.task import Runnable, Task, TaskOptions
from rowlock.workload import App, Workload

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rowlock.consumers.consumer import Consumer, ConsumerOptions
    from rowlock.consumers.source import ConsumerSource
    from rowlock.execution.context import JobContext
    from rowlock.execution.hooks import Hook
    from rowlock.files.ingest import Ingest
    from rowlock.files.janitor import Janitor
    from rowlock.files.options import IngestOptions, JanitorOptions
    from rowlock.insights import Stats
    from rowlock.watching import Watch, Watcher
    from rowlock.worker.counts import Tally
    from rowlock.worker.options import ConsumingOptions, WorkerOptions
    from rowlock.worker.poller import Poller
    from rowlock.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


class TaskMaker(Protocol):
    """What `@app.task(...)` with options returns: it takes the function."""

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Rowlock(App):
    """A queue in a database: register tasks on it, enqueue jobs, ask about them, run workers."""

    def __init__(
        self,
        url: str | None = None,
        *,
        engine: Any = None,
        connection: Any = None,
        include: Sequence[str] = (),
        poll_interval: float | None = None,
        lease: float | None = None,
        failed_after: float | None = None,
        max_payload_bytes: int | None = None,
        busy_timeout: float | None = None,
        keep_completed_days: float | None = None,
        keep_failed_days: float | None = None,
    ) -> None:
        arguments = {
            "database_url": url,
            "poll_interval": poll_interval,
            "lease": lease,
            "failed_after": failed_after,
            "max_payload_bytes": max_payload_bytes,
            "busy_timeout": busy_timeout,
            "keep_completed_days": keep_completed_days,
            "keep_failed_days": keep_failed_days,
        }
        super().__init__(include, arguments)
        self._consumers: dict[str, Consumer] = {}
        self._ingests: dict[str, Ingest] = {}
        self._janitors: dict[str, Janitor] = {}
        self._watchers: dict[int, Watcher] = {}  # by process: a forked child has its own
        if sum(given is not None for given in (url, engine, connection)) > 1:
            raise ConfigurationError("give Rowlock a URL, an engine or a connection, and only one of them")
        if url is not None:  # one that cannot work is refused here, where it was written
            from rowlock.stores.address import store_for

            store_for(url)
        elif engine is not None or connection is not None:  # with which this process has a DuckDB file open
            from rowlock.stores.address import owner_of

            self._owner = owner_of(engine, connection, self._home)
            self.given["database_url"] = self._owner.url

    def __repr__(self) -> str:
        from rowlock.settings import without_password

        url = self.given["database_url"]
        return f"<Rowlock {without_password(str(url)) if url else '(from the environment)'}>"

    # -- tasks -----------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskMaker: ...

    def task(self, *function: Callable[..., Any], **given: Any) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(queue="gpu", retry=Retry(...))`."""

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self.registry.add(Task(self, function, **given))

        return register(*function) if function else register

    def around(self, hook: Hook) -> Hook:
        """Register a generator around every run: it yields once and is sent the run's `Outcome`.

        An async generator goes around async tasks and consumers, on their event loop, and around no others.
        """
        import inspect

        if not (inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook)):
            raise ConfigurationError(f"@app.around needs a generator function that yields once, not {hook!r}")
        self.hooks.append(hook)
        return hook

    # -- consumers -------------------------------------------------------------------------------

    def consumer(
        self, name: str, **options: Unpack[ConsumerOptions]
    ) -> Callable[[Callable[..., Any]], Consumer]:
        """Register a function as a consumer of the rows of a table that is the user's own.

        With `state`, a row is due while the member `name` of the JSON object in that column is null or
        missing; with `status=Status(...)`, while the status column says so; with `flag=Flag(...)`, until that
        boolean column is true; and with `due_at`, not before the time in that column. `failed(error,
        attempts)` makes the mark that a row out of attempts gets in `state`. `when()` is asked before rows
        are claimed. With `batch=n` the function gets a list of up to n rows, and returns a list of as many
        answers (or None); an exception in it is that row's. Further options: `key`, `order_by`, `columns`,
        `where`, `timeout`, `retry`, `pool`.
        """

        def register(function: Callable[..., Any]) -> Consumer:
            from rowlock.consumers.consumer import Consumer

            made = Consumer(function, name, **options)
            other = self._consumers.get(name)
            if other is not None and other.plain.__qualname__ != made.plain.__qualname__:
                raise ConfigurationError(f"two different consumers want the name {name!r}")
            self._consumers[name] = made
            return made

        return register

    def consuming(self, name: str, **chosen: Unpack[ConsumingOptions]) -> Worker:
        """A worker for the rows of a consumer: call `.run()` on it, or use `.background()`."""
        chosen["strategy"] = strategy = chosen.get("strategy") or "FIFO"
        check_strategy_applies(CONSUMERS + name, strategy)
        return self._make_worker(self.workload(consumer=name), **chosen)

    def consume(self, name: str, *, until_empty: bool = False, **chosen: Unpack[ConsumingOptions]) -> Tally:
        """Work on the rows of a consumer until stopped, or until none is due or in flight."""
        return self.consuming(name, **chosen).run(until_empty=until_empty)

    async def aconsume(
        self, name: str, *, until_empty: bool = False, **chosen: Unpack[ConsumingOptions]
    ) -> Tally:
        """`consume` for async callers; to cancel it stops the worker."""
        worker = self.consuming(name, **chosen)
        try:
            return await in_thread(worker.run, until_empty=until_empty)
        finally:
            worker.stop()

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """The registered consumers by name."""
        return dict(self._consumers)

    def consumer_source(self, name: str) -> ConsumerSource:
        """A consumer with its table, whose rows are a source of work."""
        from rowlock.consumers.source import ConsumerSource

        if name not in self._consumers:
            self.load_tasks()
        if name not in self._consumers:
            known = ", ".join(sorted(self._consumers)) or "none"
            raise UnknownTask(f"there is no consumer {name!r}; known ones are: {known}")
        return ConsumerSource(self.store.database, self._consumers[name])

    def wake(self, table: str) -> None:
        """Tell whoever waits for rows of this table that there may be some; call it after the commit."""
        from rowlock.consumers.consumer import wake_readers

        wake_readers(self.store, table)

    # -- files -----------------------------------------------------------------------------------

    def ingest(self, name: str, **options: Unpack[IngestOptions]) -> Ingest:
        """Declare an ingest: one row in `table` for each finished file in `folder` that fits `pattern`.

        `path` names the column of the file's path, or several, of which the first is unique. `row(path)` or
        `row(path, tx)` returns the other columns; None means not yet, False never. `paths` are "absolute" or
        "relative" to the folder, `settle` and `interval` are seconds.
        """
        from rowlock.files.ingest import Ingest
        from rowlock.files.service import keep_declared

        return keep_declared(self._ingests, Ingest(self, self._home, name, options))

    def janitor(self, name: str, **options: Unpack[JanitorOptions]) -> Janitor:
        """Declare a janitor: it deletes the files that rows of `table` name, oldest first by `order_by`.

        It acts when a limit asks for it: `min_free` (until `target_free`), `max_age`, `max_size`; each
        (`"20%"`, `"500MB"`, `"30d"`) may be a function, asked at each run. It deletes at most `cap` rows in a
        run, and only those that every consumer in `after` is done with (`failed_too`: or has failed on) and
        that fulfil `where`. `deleted` names the column that says so, or `remove_rows=True` removes the row.
        `also(row, tx)` names companion files in `also_folder`; `on_deleted(row, paths, tx)` is told. Several
        janitors on one folder are tiers.
        """
        from rowlock.files.janitor import Janitor
        from rowlock.files.service import keep_declared

        return keep_declared(self._janitors, Janitor(self, self._home, name, options))

    @property
    def ingests(self) -> Mapping[str, Ingest]:
        """The declared ingests by name."""
        return dict(self._ingests)

    @property
    def janitors(self) -> Mapping[str, Janitor]:
        """The declared janitors by name, in the order in which they were declared."""
        return dict(self._janitors)

    # -- producing -------------------------------------------------------------------------------

    def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **chosen: Unpack[EnqueueOptions]
    ) -> Job:
        """Enqueue by name, under options as of `task.configure(...)`.

        An app with tasks of its own refuses names that neither it nor a worker knows.
        """
        configured = self._enqueuer(check_name("task", task)).configure(**chosen)
        return configured.enqueue_named({} if args is None else args)

    def _enqueuer(self, name: str) -> Enqueuer[...]:
        if self.registry.find(name) is None:
            self.load_tasks()
        found = self.registry.find(name)
        if found is not None:
            return found
        if self.registry:  # a producer without the code has no tasks at all, and is trusted
            elsewhere = {task for worker in self.store.workers() for task in worker.tasks} - {EVERY_TASK}
            if name not in elsewhere:
                raise UnknownTask(self.registry.no_such_task(name, elsewhere))
        return self._enqueuer_unchecked(name)

    def _enqueuer_unchecked(self, name: str) -> Enqueuer[...]:
        """For a task that nobody needs to know yet."""
        return Enqueuer(self, None, NewJob(task=check_name("task", name), max_attempts=None))

    # -- asking ----------------------------------------------------------------------------------

    def job(self, job: int | Job) -> Job:
        """The job of that id, as it is now; raises `JobNotFound`."""
        id = id_of(job)
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
        from rowlock.watching import Waiting, result_of

        waiting = Waiting(timeout)
        while not (found := self.job(job)).state.final:
            time.sleep(waiting.pause(found))
        return result_of(found)

    async def aresult(self, job: int | Job, timeout: float | None = None) -> Any:
        """`result` for async callers; waits without holding a thread."""
        import asyncio

        from rowlock.watching import Waiting, result_of

        waiting = Waiting(timeout)
        while not (found := await self.ajob(job)).state.final:  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(waiting.pause(found))
        return result_of(found)

    def watch(self, job: int | Job) -> Watch:
        """The job at once, then whenever its progress or state changes, until it has ended.

        For both `for job in app.watch(id)` and `async for job in app.watch(id)`. However many watch, each
        process looks at the database once for all of them.
        """
        from rowlock.watching import Watcher

        watcher = self._watchers.setdefault(os.getpid(), Watcher(self.store))
        return watcher.watch(id_of(job))

    def history(self, job: int | Job) -> list[HistoryEntry]:
        """What became of a job's earlier claims, and operators' acts."""
        return self.store.history(id_of(job))

    def logs(self, job: int | Job) -> list[LogEntry]:
        """The lines that the job's runs kept with `ctx.log`."""
        return self.store.logs(id_of(job))

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
        self.store.retry(id_of(job))
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

    def connection(self) -> AbstractContextManager[Any]:
        """A DuckDB connection for statements of your own: `with app.connection() as con:`.

        In file mode it takes a turn with the file for as long as the block lasts.
        """
        lend = getattr(self.store.database, "lend", None)
        if lend is None:
            raise ConfigurationError(
                "app.connection() is for DuckDB, where processes take turns: connect to other databases as "
                "usual"
            )
        made: AbstractContextManager[Any] = lend()
        return made

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

    def worker(self, **chosen: Unpack[WorkerOptions]) -> Worker:
        """A worker for these `queues` (none named: all); call `.run()` on it, or use `.background()`.

        Without `concurrency`, 4 threads or processes run at once, and 1,000 coroutines. `grace` is how many
        seconds runs may take to end after a stop, `prefetch` how many jobs may be claimed ahead. A process of
        the `pool` is replaced after `max_jobs_per_child` jobs, if that is given.
        """
        queues = chosen.pop("queues", None)
        return self._make_worker(self.workload(() if queues is None else queues), **chosen)

    def workload(self, queues: Sequence[str] = (), *, consumer: str | None = None) -> Workload:
        """What to give a worker: the jobs of these queues (none named: of all), or the rows of a consumer."""
        if consumer is None:
            return Workload(self.store, self.registry, queues)
        source = self.consumer_source(consumer)
        registry = Registry[Runnable]()
        registry.add(source.consumer)
        return Workload(self.store.over(source), registry, source.consumer.queues, consumer)

    def _make_worker(self, workload: Workload, **chosen: Any) -> Worker:
        from rowlock.worker.worker import Worker

        given = {name: value for name, value in chosen.items() if value is not None}
        given.setdefault("poll_interval", self.settings.poll_interval)
        if "concurrency" in self.settings.model_fields_set:  # else each kind of pool has its own
            given.setdefault("concurrency", self.settings.concurrency)
        return Worker(self, workload, **given)

    def poller(self, **chosen: Any) -> Poller:
        """A poller for code that wants claims without a worker."""
        from rowlock.worker.poller import Poller

        chosen.setdefault("poll_interval", self.settings.poll_interval)
        return Poller(self, **chosen)
