"""A worker's row in the store, and the thread that keeps it alive: register, beat, report, retire.

Claims nothing. What the beats mean is decided in `liveness.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from rowlock._version import __version__
from rowlock.errors import StoreError
from rowlock.job import EVERY_TASK
from rowlock.liveness import Liveness, WorkerState
from rowlock.stores.base import Bell, Registration
from rowlock.worker.profile import Profile
from rowlock.workload import Workload

if TYPE_CHECKING:  # `import rowlock` stays light: it brings the pools, and these asyncio
    from rowlock.worker.progress_reports import ProgressReports

log = logging.getLogger("rowlock.heartbeat")

_TICK_SECONDS = 0.5
_BEATS = "beats"  # what is said of an outage here


class Heartbeat:
    """The rows that one worker writes about itself, one incarnation after the other.

    The thread lives from `ensure` to `leave`, beats, and about twice a second has its runs reported.
    """

    def __init__(
        self,
        workload: Workload,
        profile: Profile,
        liveness: Liveness,
        bell: Bell,
        reports: ProgressReports | None = None,
    ) -> None:
        self._store = workload.store
        self._registry = workload.registry
        self._profile = profile
        self.liveness = liveness
        self._bell = bell
        self._reports = reports
        self.id = self._new_id()  # of this incarnation
        self._process = os.getpid()
        self._lock = threading.Lock()  # of registration
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tried_at = 0.0  # when the last beat began that was written
        self._failing = self._told_late = False
        self._told_tasks: dict[str, Any] = {}

    # -- coming and going ------------------------------------------------------------------------

    def ensure(self) -> None:
        """Register if this incarnation is new, and under a new id if it was declared dead; then beat."""
        if self._is_registered_here():
            return
        with self._lock:
            if not self._is_registered_here():
                self.register()
                if self._thread is None:
                    self._stop.clear()
                    self._thread = threading.Thread(target=self._loop, name="rowlock-heartbeat", daemon=True)
                    self._thread.start()

    def _is_registered_here(self) -> bool:
        liveness = self.liveness
        dead = liveness.state() is WorkerState.DEAD
        return liveness.is_registered and not dead and self._process == os.getpid()

    def register(self) -> None:
        """Write the row of a new incarnation."""
        wanted = self.id
        if self._process != os.getpid():  # a forked child is somebody else, and has no heartbeat yet
            self._thread, self._process, wanted = None, os.getpid(), self._new_id()
            self.liveness.retired()
        elif self.liveness.state() is WorkerState.DEAD:
            log.warning("worker %s was declared dead: it registers anew and drops its claims", self.id)
            if self._reports is not None:
                self._reports.lose_runs()
            wanted = self._new_id()
        tasks = self._tasks()
        registration = Registration(
            id=wanted,
            host=_host(),
            pid=os.getpid(),
            version=__version__,
            queues=self._profile.queues,
            tasks=tasks,
            strategy=self._profile.strategy,
            concurrency=self._profile.concurrency,
            lease=self.liveness.lease.seconds,
        )
        self.id = self._store.register(registration)
        self._told_tasks = tasks
        self._tried_at = time.monotonic()
        self.liveness.registered(self._tried_at)

    def declared_dead(self, worker: str) -> None:
        """Take note that the store calls this id dead; `ensure` does something about it."""
        if worker == self.id:  # and not an earlier incarnation, whose last beat is answered late
            self.liveness.declared_dead()
            self._bell.put(None)

    def leave(self, retire: bool = True) -> None:
        """Retire in good order: claims still held go back. A later `ensure` registers anew.

        Without `retire` it only falls silent, and its claims are rescued when the lease runs out.
        """
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)
        self._thread = None
        if self.liveness.is_registered:
            self.liveness.retired()
            try:
                if retire:
                    self._store.retire(self.id)
            except StoreError as error:  # its claims are rescued when the lease runs out
                log.warning("worker %s could not be retired: %s", self.id, error)
            self.id = self._new_id()

    def _new_id(self) -> str:
        return self._profile.name or f"{_host()}:{os.getpid()}:{os.urandom(3).hex()}"

    def _tasks(self) -> dict[str, Any]:
        return self._registry.facts() | ({EVERY_TASK: {}} if self._profile.takes_every_task else {})

    # -- in the heartbeat's thread ---------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stop.wait(min(_TICK_SECONDS, self.liveness.lease.beat_every / 2)):
            self.run_once(time.monotonic())

    def run_once(self, moment: float) -> None:
        """Beat if it is time to, then look after what runs; a store that fails is logged once."""
        try:
            if moment - self._tried_at >= self.liveness.lease.beat_every:
                self._beat(moment)
            with self._store.database.together():
                self._tell_tasks()
                if self._reports is not None:
                    self._reports.run_once(self.id)
        except StoreError as error:
            if self._store.database.outage.is_new(_BEATS):
                log.warning("the heartbeat cannot reach the store, it goes on trying: %s", error)
            self._failing = True
        except Exception:  # a heartbeat that stops would cost the worker all of its claims
            log.exception("the heartbeat goes on after an error")
        else:
            if self._failing:
                self._store.database.outage.ends(_BEATS)
            self._failing = False

    def _beat(self, moment: float) -> None:
        late = moment - self._tried_at - self.liveness.lease.beat_every
        if late > self.liveness.lease.beat_every and not self._told_late and not self._failing:
            self._told_late = True
            tasks = self._reports.tasks() if self._reports is not None else []
            log.warning(
                "the heartbeat is %.1f s late; something held the interpreter or the database. Running: %s",
                late,
                ", ".join(tasks) or "nothing",
            )
        worker = self.id
        alive = self._store.beat(worker, self._profile.strategy)
        self.liveness.beaten(max(moment, time.monotonic()))
        self._tried_at, self._told_late = moment, False
        if not alive:
            self.declared_dead(worker)

    def _tell_tasks(self) -> None:
        """Keep the row in step with the tasks: some may be registered while the worker runs."""
        tasks = self._tasks()
        if tasks != self._told_tasks:
            self._store.know(self.id, self._profile.queues, tasks)
            self._told_tasks = tasks


def _host() -> str:
    from socket import gethostname  # here, because `import rowlock` would be 4 ms longer

    return gethostname()
