"""A worker's presence in the store: registered, beating, retired; one incarnation after the other.

Claims nothing; it only makes sure that there is a living row under whose id somebody may claim.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rowlock._version import __version__
from rowlock.errors import StoreError
from rowlock.job import EVERY_TASK
from rowlock.stores.base import Registration, Store
from rowlock.worker.heartbeat import Heartbeat

log = logging.getLogger("rowlock.presence")


class Host(Protocol):
    """What a presence needs of its app."""

    @property
    def store(self) -> Store:
        """The store that holds the jobs."""
        ...

    @property
    def lease(self) -> float:
        """How long a silent worker's claims are honoured."""
        ...

    def task_facts(self) -> dict[str, Any]:
        """What a worker's row says about the tasks it knows."""
        ...


class Presence:
    """The rows that one worker writes about itself, and the thread that keeps the latest one alive."""

    def __init__(
        self,
        app: Host,
        *,
        name: str | None,
        queues: Sequence[str],
        concurrency: Callable[[], int],
        strategy: Callable[[], str],
        on_death: Callable[[], None] = lambda: None,
        on_renewal: Callable[[], None] = lambda: None,
        on_tick: Callable[[], None] = lambda: None,
        running: Callable[[], Sequence[str]] = lambda: (),
        takes_every_task: bool = False,
    ) -> None:
        self._app = app
        self._name = name
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._strategy = strategy
        self._on_death = on_death
        self._on_renewal = on_renewal
        self._on_tick = on_tick
        self._running = running
        self._takes_every_task = takes_every_task
        self._told_tasks: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._heartbeat: Heartbeat | None = None
        self._id = self._new_id()
        self._process = os.getpid()
        self._registered = False
        self._dead = False

    @property
    def id(self) -> str:
        """The id of this incarnation."""
        return self._id

    @property
    def is_registered(self) -> bool:
        """True once the store knows this worker, until it leaves."""
        return self._registered

    def ensure(self) -> None:
        """Register if this incarnation is new, and under a new id if it was declared dead."""
        if self._registered and not self._dead and self._process == os.getpid():
            return
        with self._lock:
            wanted = self._id
            if self._process != os.getpid():  # a forked child is somebody else, and has no heartbeat yet
                self._heartbeat, self._process, wanted = None, os.getpid(), self._new_id()
            elif self._dead:
                log.warning("worker %s was declared dead: it registers anew and drops its claims", self._id)
                self._on_renewal()
                wanted = self._new_id()
            tasks = self._tasks()
            registration = Registration(
                id=wanted,
                host=_host(),
                pid=os.getpid(),
                version=__version__,
                queues=self._queues,
                tasks=tasks,
                strategy=self._strategy(),
                concurrency=self._concurrency(),
                lease=self._app.lease,
            )
            self._id = self._app.store.register(registration)
            self._registered, self._dead, self._told_tasks = True, False, tasks
            if self._heartbeat is None:
                self._heartbeat = Heartbeat(
                    self._app.store,
                    worker=lambda: self._id,
                    strategy=self._strategy,
                    lease=self._app.lease,
                    on_death=self.declared_dead,
                    on_tick=self._tick,
                    running=self._running,
                )
                self._heartbeat.start()

    def _tasks(self) -> dict[str, Any]:
        return self._app.task_facts() | ({EVERY_TASK: {}} if self._takes_every_task else {})

    def _tick(self) -> None:
        """Keep the row in step with the tasks: some may be registered while the worker runs."""
        tasks = self._tasks()
        if tasks != self._told_tasks:
            self._app.store.know(self._id, self._queues, tasks)
            self._told_tasks = tasks
        self._on_tick()

    def declared_dead(self, worker: str) -> None:
        """Take note that the store calls this id dead; `ensure` does something about it."""
        if worker == self._id:  # and not an earlier incarnation, whose last beat is answered late
            self._dead = True
            self._on_death()

    def steady(self) -> bool:
        """False while this worker cannot tell a dead one from one that was frozen together with it."""
        heartbeat = self._heartbeat
        return heartbeat is None or heartbeat.steady()

    def is_fresh(self) -> bool:
        """False until this worker has beaten again after a pause: what it claimed could be taken from it."""
        heartbeat = self._heartbeat
        return heartbeat is None or heartbeat.is_fresh()

    def leave(self, retire: bool = True) -> None:
        """Retire in good order: claims still held go back. A later `ensure` registers anew.

        Without `retire` it only falls silent, and its claims are rescued when the lease runs out.
        """
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        if self._registered:
            self._registered = False
            try:
                if retire:
                    self._app.store.retire(self._id)
            except StoreError as error:  # its claims are rescued when the lease runs out
                log.warning("worker %s could not say goodbye: %s", self._id, error)
            self._id = self._new_id()

    def _new_id(self) -> str:
        return self._name or f"{_host()}:{os.getpid()}:{os.urandom(3).hex()}"


def _host() -> str:
    from socket import gethostname  # here, because `import rowlock` would be 4 ms longer

    return gethostname()
