"""RQ as a relay's target: `RowlockWorker` takes ids from RQ, and that is all RQ is used for.

What Redis says is never trusted: only ids are read from it, and the database decides what becomes of them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, cast

from rq import Queue, SimpleWorker
from rq.exceptions import DequeueTimeout
from rq.serializers import JSONSerializer
from rq.suspension import WORKERS_SUSPENDED
from rq.utils import utcformat
from rq.worker_registration import register

from rowlock.errors import RowlockError
from rowlock.job import ClaimKey
from rowlock.outage import Outage, backoff
from rowlock.relays.messages import JOBS, BadMessage, Message, received
from rowlock.relays.receiving import ReceivingStore
from rowlock.relays.redis_connection import ERRORS, SOCKET_TIMEOUT_SECONDS, check, explained
from rowlock.relays.rq_target import FUNCTION, check_version, forget, intermediate, names_for, texts
from rowlock.relays.workload import app_from_environment, target_queues, workload_for
from rowlock.worker.options import STOP_GRACE
from rowlock.worker.signals import EXIT_CODES, leave_with, told_by_signals
from rowlock.worker.wait_for_database import when_usable
from rowlock.worker.worker import Worker
from rowlock.workload import App, Workload

log = logging.getLogger("rowlock.relay")

_POP_SECONDS = 1  # the longest wait for a message, and so for the end of a worker
_LOOK_SECONDS = 0.5  # while a run is under way; between two looks whether `rq suspend` holds
_BEAT_SECONDS = 15.0
_QUEUES_EVERY_SECONDS = 1.0
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 2.0


def run(*arguments: Any) -> None:
    """What RQ would call, were it to run our jobs: they are for `RowlockWorker` only."""
    raise RuntimeError("start it as: rq worker --worker-class rowlock.relays.rq.RowlockWorker")


class RowlockWorker(SimpleWorker):
    """An RQ worker that pops ids and nothing else: what is run, and what becomes of it, is rowlock's affair.

    RQ's loop is not used, nor what RQ does around a job: its function, callbacks, webhooks, retries, cleaning
    of registries, commands by pub/sub. A thread pops; the runs are a rowlock worker's, which does not notice
    whether Redis is there.
    """

    def __init__(
        self,
        queues: Any,
        *args: Any,
        ready: Callable[[], None] = lambda: None,
        outage: Outage | None = None,
        **chosen: Any,
    ) -> None:
        chosen["serializer"] = JSONSerializer
        super().__init__(queues, *args, **chosen)
        self._ready = ready
        self._outage = outage or Outage()
        self._store: ReceivingStore  # once it is known what to work on
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._popped: dict[ClaimKey, tuple[Queue, str]] = {}  # where the ids that were popped came from
        self._over: deque[tuple[Queue, str]] = deque()  # ids to be forgotten
        self._usable = True  # Redis, as far as we know
        self._beat_at = self._queues_at = self._suspended_at = 0.0
        self._suspended = False
        self._burst = False
        self._most: int | None = None
        self._begun = 0
        self._busy = False

    @property
    def connection_timeout(self) -> int:  # what RQ sets for a connection that has none
        """Seconds after which an answer of Redis is not waited for any more."""
        return int(SOCKET_TIMEOUT_SECONDS)

    # -- how it is started -----------------------------------------------------------------------

    def work(self, burst: bool = False, *args: Any, **chosen: Any) -> bool:
        """What `rq worker` calls: work on the app that ROWLOCK_APP names, until told to stop."""
        logging.basicConfig(level=chosen.get("logging_level") or logging.INFO)
        self._burst, self._most = burst, chosen.get("max_jobs")
        for option in ("with_scheduler", "max_idle_time"):
            if chosen.get(option):
                log.warning(
                    "--%s is not used: rowlock's workers know no such thing", option.replace("_", "-")
                )
        code = self._work_on_named_app()
        leave_with(code)
        if code:
            raise SystemExit(code)
        return self._begun > 0

    def _work_on_named_app(self) -> int:
        """Work until told to stop; returns the exit code."""
        try:
            check_version()
            app = app_from_environment()
            check(self.connection, self._address())  # before a model is loaded for nothing
            if when_usable(app.store.install_id) is None:
                return 0
            made = self.worker_for(app, workload_for(app, self.queue_names()))
            with told_by_signals(made.stop_by_signal) as told:
                told.process_ends = True
                made.run()
        except RowlockError as error:  # RQ would show its stack
            log.error("%s", error)  # noqa: TRY400
            return 1
        finally:
            self.close()
        return 128 + (made.stopped_by or 2) if made.ended == "now" else EXIT_CODES.get(made.ended, 0)

    def worker_for(
        self,
        app: App,
        workload: Workload,
        *,
        grace: float = STOP_GRACE,
        worker_id: str | None = None,
    ) -> Worker:
        """The worker that begins what is popped from the queues of this workload."""
        self._registry = workload.registry
        self._wanted_names = target_queues(workload)
        self._source = self._wanted_names[0] if workload.consumer else JOBS
        self._rq_names = names_for(workload)
        self._store = ReceivingStore(workload, self)
        self._made = Worker(
            app,
            # Maintenance is the relay's: between a message and its start it would take longer than the rest.
            workload._replace(store=self._store, needs_maintenance=False),
            concurrency=1,
            prefetch=0,
            poll_interval=app.settings.poll_interval,
            worker_id=worker_id,
            grace=grace,
        )
        return self._made

    def close(self) -> None:
        """Pop no more; what was popped and not begun goes back to the head of its queue."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * SOCKET_TIMEOUT_SECONDS)
            with suppress(*ERRORS):
                message = self._store.message
                if message is not None and message.key in self._popped:
                    self._put_back(*self._popped.pop(message.key))
                self._forget()
                self.register_death()  # type: ignore[no-untyped-call]
        self.connection.close()

    # -- what the rowlock worker asks for ---------------------------------------------------------

    def take_now(self) -> Message | None:
        """The next message, if there is one: asked by a worker that has just ended a run."""
        if self._thread is None:  # its first question: now it is ready, with all its residents loaded
            self._thread = threading.Thread(target=self._receive, name="rowlock-receive", daemon=True)
            self._thread.start()
            self._ready()
            return None
        self._busy = False
        if not self._usable or self._ending.is_set() or self._had_enough():
            return None
        try:
            return None if self._is_suspended() else self._pop(None)
        except ERRORS:
            self._usable = False  # the other thread says so, and tries again
            return None

    def settled(self, message: Message, begun: bool) -> None:
        """The database has decided: RQ may forget the id. The other thread tells it."""
        self._begun += begun
        self._busy = begun
        popped = self._popped.pop(message.key, None)
        if popped is not None:
            self._over.append(popped)

    # -- in the thread that receives --------------------------------------------------------------

    def _receive(self) -> None:
        failures = 0
        while not self._ending.is_set():
            try:
                self._beat()
                self._forget()
                if self._store.wanted.wait(_LOOK_SECONDS) and not self._ending.is_set():
                    self._pop_into_store()
                if failures and self._outage.ends():
                    log.info("Redis can be used again")
                failures, self._usable = 0, True
            except ERRORS as error:
                self._usable = False
                if self._outage.is_new():
                    log.error("%s; runs go on without it", explained(error, self._address()))  # noqa: TRY400
                failures += 1
                self._ending.wait(backoff(failures, _BACKOFF_FIRST, _BACKOFF_MOST))
            except Exception:  # a thread that ends would leave a worker that never works again
                log.exception("receiving goes on after an error")
                self._ending.wait(_BACKOFF_MOST)

    def _pop_into_store(self) -> None:
        if self._had_enough():
            self._made.stop()
            self._ending.wait(_LOOK_SECONDS)
            return
        is_suspended = self._is_suspended()
        message = None if is_suspended else self._pop(None if self._burst else _POP_SECONDS)
        if message is None:
            if self._burst:
                self._made.stop()
            if self._burst or is_suspended:
                self._ending.wait(_LOOK_SECONDS)
            return
        if self._ending.is_set():
            self._put_back(*self._popped.pop(message.key))
        else:
            self._store.put(message)

    def _is_suspended(self) -> bool:
        """Whether `rq suspend` holds; looked at once in a while."""
        moment = time.monotonic()
        if moment >= self._suspended_at:
            before, self._suspended = self._suspended, bool(self.connection.exists(WORKERS_SUSPENDED))
            self._suspended_at = moment + _LOOK_SECONDS
            if self._suspended != before:
                log.info("suspended: `rq resume` lets it go on" if self._suspended else "resumed")
        return self._suspended

    def _had_enough(self) -> bool:
        return self._most is not None and self._begun >= self._most

    def _pop(self, timeout: int | None) -> Message | None:
        """One id from RQ, waited for up to so many seconds; None: not at all, or it was none of ours."""
        self._look_for_queues()
        self.queues = [*self.queues[1:], *self.queues[:1]]  # each is the first in its turn
        try:
            found = self.queue_class.dequeue_any(
                self.queues,
                timeout,
                connection=self.connection,
                job_class=self.job_class,
                serializer=self.serializer,
                death_penalty_class=self.death_penalty_class,
            )
        except DequeueTimeout:
            return None
        except ERRORS:
            raise
        except Exception as error:  # whatever a forged hash makes of itself
            queue, id = getattr(error, "queue", None), getattr(error, "job_id", None)
            log.warning("an RQ job is refused, for it cannot be read: %r: %s", id, error)
            if queue is not None and id is not None:
                self._over.append((queue, str(id)))
            return None
        return None if found is None else self._message(*found)

    def _message(self, job: Any, queue: Queue) -> Message | None:
        """What an RQ job tells; None if no relay of this database sent it."""
        try:
            match json.loads(job.data):
                case [str(function), None, list(arguments), dict(named)] if (
                    function == FUNCTION and not named
                ):
                    message = received(self._rq_names.install, arguments)
                case _:
                    raise BadMessage("it is not a relay's")
            # It is about what this worker works on: jobs, or the rows of its consumer.
            fits = message.source == self._source and queue.name.startswith(self._rq_names.prefix)
            if job.id != self._rq_names.id(message) or not fits:
                raise BadMessage("its id or its queue does not fit what it says")
        except (BadMessage, ValueError, TypeError, RecursionError) as error:
            log.warning("RQ job %r in %s is refused: %s", str(job.id)[:100], queue.name, error)
            self._over.append((queue, job.id))
            return None
        self._popped[message.key] = (queue, job.id)
        return message

    def _put_back(self, queue: Queue, id: str) -> None:
        with self.connection.pipeline() as pipeline:
            pipeline.lrem(intermediate(queue), 0, id)
            pipeline.lpush(queue.key, id)
            pipeline.execute()

    def _forget(self) -> None:
        """Remove what RQ keeps of ids that are decided on."""
        over = [self._over.popleft() for _ in range(len(self._over))]
        if not over:
            return
        try:
            with self.connection.pipeline(transaction=False) as pipeline:
                for queue, id in over:
                    forget(pipeline, queue, id)
                pipeline.execute()
        except ERRORS:
            self._over.extend(over)
            raise

    def _look_for_queues(self) -> None:
        """The queues to pop from: those that are named, or all that RQ has of this database."""
        moment = time.monotonic()
        if moment < self._queues_at:
            return
        self._queues_at = moment + (_QUEUES_EVERY_SECONDS if not self._wanted_names else 3600.0)
        names = {self._rq_names.queue(name) for name in self._wanted_names}
        if not names:
            known = {"default", *(task.options.queue for task in self._registry.tasks.values())}
            listed = texts(cast("Any", self.connection.smembers(Queue.redis_queues_keys)))
            ours = (key.removeprefix(Queue.redis_queue_namespace_prefix) for key in listed)
            others = {name for name in ours if name.startswith(self._rq_names.prefix)}
            names = {self._rq_names.queue(name) for name in known} | {
                name for name in others if not name.startswith(self._rq_names.of_consumers)
            }
        if names != set(self.queue_names()):
            self.queues = [
                self.queue_class(name, connection=self.connection, serializer=JSONSerializer)
                for name in sorted(names)
            ]
            self._beat_at = 0.0

    def _beat(self) -> None:
        """Keep RQ's own record of this worker alive, also while a run is under way and after a flush."""
        moment = time.monotonic()
        if moment < self._beat_at:
            return
        self._look_for_queues()
        if self.birth_date is None:
            self.register_birth()  # type: ignore[no-untyped-call]
        # Not RQ's: one that is too old has none, and could not be told so.
        now = datetime.now(timezone.utc)
        record: dict[Any, Any] = {
            "birth": utcformat(self.birth_date or now),
            "last_heartbeat": utcformat(now),
            "queues": ",".join(self.queue_names()),
            "pid": os.getpid(),
            "hostname": self.hostname or "",
            "ip_address": self.ip_address or "",
            "version": self.version,
            "python_version": self.python_version,
            "state": "busy" if self._busy else "idle",
        }
        with self.connection.pipeline() as pipeline:
            pipeline.hset(self.key, mapping=record)
            pipeline.expire(self.key, self.worker_ttl + 60)
            register(self, pipeline)
            pipeline.execute()
        self._beat_at = moment + _BEAT_SECONDS

    def _address(self) -> str:
        chosen = self.connection.connection_pool.connection_kwargs
        return str(chosen.get("path") or f"{chosen.get('host')}:{chosen.get('port')}")

    # -- what RQ would do, and rowlock does not let it --------------------------------------------

    def perform_job(self, job: Any, queue: Queue) -> bool:
        """Never: what Redis says is not run."""
        raise NotImplementedError

    def run_maintenance_tasks(self) -> None:
        """Not done: it would run callbacks that Redis names."""

    def clean_registries(self) -> None:
        """Not done, for the same reason."""

    def subscribe(self) -> None:
        """Not done: whoever can publish could shut the worker down."""

    def handle_payload(self, message: Any) -> None:
        """Ignored."""

    def _install_signal_handlers(self) -> None:
        """Signals are the rowlock worker's."""
