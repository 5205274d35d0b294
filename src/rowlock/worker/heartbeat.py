"""A worker's row in the store, and the thread that keeps it alive: register, beat, report, retire.

Claims nothing. What the beats mean is decided in `liveness.py`; runs are touched only through `Runs`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rowlock._version import __version__
from rowlock.errors import StoreError
from rowlock.job import EVERY_TASK
from rowlock.liveness import Lease, Liveness, WorkerState
from rowlock.stores.base import Registration, Store
from rowlock.worker.lost_claims import LostClaims

if TYPE_CHECKING:  # `import rowlock` stays light: runs bring the pools, and these asyncio
    from rowlock.worker.runs import Runs

log = logging.getLogger("rowlock.heartbeat")

_TICK_SECONDS = 0.5
_FACTS_EVERY_SECONDS = 5.0  # between looks at whether the worker's row still says how it chooses


class Host(Protocol):
    """What a heartbeat needs of its app."""

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


class Heartbeat:
    """The rows that one worker writes about itself, one incarnation after the other.

    The thread lives from `ensure` to `leave`, beats, and about twice a second looks after what runs.
    """

    def __init__(
        self,
        app: Host,
        *,
        name: str | None,
        queues: Sequence[str],
        concurrency: Callable[[], int],
        strategy: Callable[[], str],
        ring: Callable[[], None] = lambda: None,
        runs: Callable[[], Runs | None] = lambda: None,
        facts: Callable[[], dict[str, Any]] = dict,
        lost_claims: LostClaims | None = None,
        takes_every_task: bool = False,
    ) -> None:
        self._app = app
        self._name = name
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._strategy = strategy
        self._ring = ring
        self._runs = runs
        self._facts = facts
        self._lost_claims = lost_claims
        self._takes_every_task = takes_every_task
        self.lease = Lease(app.lease)
        self.liveness = Liveness(self.lease)
        self._id = self._new_id()
        self._process = os.getpid()
        self._lock = threading.Lock()  # of registration
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tried_at = 0.0  # when the last beat began that was written
        self._failing = self._told_late = False
        self._told_tasks: dict[str, Any] = {}
        self._told_facts: dict[str, Any] = {}
        self._facts_at = 0.0

    @property
    def id(self) -> str:
        """The id of this incarnation."""
        return self._id

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
        wanted = self._id
        if self._process != os.getpid():  # a forked child is somebody else, and has no heartbeat yet
            self._thread, self._process, wanted = None, os.getpid(), self._new_id()
            self.liveness.forked()
        elif self.liveness.state() is WorkerState.DEAD:
            log.warning("worker %s was declared dead: it registers anew and drops its claims", self._id)
            if (runs := self._runs()) is not None:
                runs.lose()
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
            lease=self.lease.seconds,
        )
        self._id = self._app.store.register(registration)
        self._told_tasks = tasks
        self._tried_at = time.monotonic()
        self.liveness.registered(self._tried_at)

    def declared_dead(self, worker: str) -> None:
        """Take note that the store calls this id dead; `ensure` does something about it."""
        if worker == self._id:  # and not an earlier incarnation, whose last beat is answered late
            self.liveness.declared_dead()
            self._ring()

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
                    self._app.store.retire(self._id)
            except StoreError as error:  # its claims are rescued when the lease runs out
                log.warning("worker %s could not say goodbye: %s", self._id, error)
            self._id = self._new_id()

    def _new_id(self) -> str:
        return self._name or f"{_host()}:{os.getpid()}:{os.urandom(3).hex()}"

    def _tasks(self) -> dict[str, Any]:
        return self._app.task_facts() | ({EVERY_TASK: {}} if self._takes_every_task else {})

    # -- in the heartbeat's thread ---------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stop.wait(min(_TICK_SECONDS, self.lease.beat_every / 2)):
            self.run_once(time.monotonic())

    def run_once(self, moment: float) -> None:
        """Beat if it is time to, then look after what runs; a store that fails is logged once."""
        try:
            if moment - self._tried_at >= self.lease.beat_every:
                self._beat(moment)
            self._tell_tasks()
            self._look_after_runs()
        except StoreError as error:
            if not self._failing:
                log.warning("the heartbeat cannot reach the store, it goes on trying: %s", error)
            self._failing = True
        except Exception:  # a heartbeat that stops would cost the worker all of its claims
            log.exception("the heartbeat goes on after an error")
        else:
            self._failing = False

    def _beat(self, moment: float) -> None:
        late = moment - self._tried_at - self.lease.beat_every
        if late > self.lease.beat_every and not self._told_late and not self._failing:
            self._told_late = True
            runs = self._runs()
            log.warning(
                "the heartbeat is %.1f s late; something held the interpreter or the database. Running: %s",
                late,
                ", ".join(runs.tasks() if runs is not None else ()) or "nothing",
            )
        worker = self._id
        alive = self._app.store.beat(worker, self._strategy())
        self.liveness.beaten(max(moment, time.monotonic()))
        self._tried_at, self._told_late = moment, False
        if not alive:
            self.declared_dead(worker)

    def _tell_tasks(self) -> None:
        """Keep the row in step with the tasks: some may be registered while the worker runs."""
        tasks = self._tasks()
        if tasks != self._told_tasks:
            self._app.store.know(self._id, self._queues, tasks)
            self._told_tasks = tasks

    def _look_after_runs(self) -> None:
        """Write what runs have said, hear who is to be cancelled and what is asked."""
        runs, lost_claims = self._runs(), self._lost_claims
        suspected = lost_claims is not None and lost_claims.suspected
        if runs is None or not (runs.in_flight or suspected):
            return
        self._report(runs)
        if lost_claims is not None and suspected:
            lost_claims.before_look()
        held = self._app.store.held(self._id)
        runs.cancelled((job, claim) for job, claim, cancelled in held if cancelled)
        if lost_claims is not None and suspected:
            lost_claims.run_once(self._id, [(job, claim) for job, claim, _ in held])
        self._answer(runs)
        self._tell_facts()

    def _report(self, runs: Runs) -> None:
        with runs.reporting:
            taken = runs.reports()
            try:
                self._app.store.report([report for _, report in taken])
            except StoreError:
                for context, report in taken:
                    context.give_back(report)
                raise

    def _answer(self, runs: Runs) -> None:
        """Somebody may have asked where the runs stand."""
        info = self._app.store.info(self._id)
        asked = info.get("stacks_asked")
        if asked is not None and asked != info.get("stacks_answered"):
            self._app.store.tell(self._id, {"stacks_answered": asked, "stacks": runs.stacks()})

    def _tell_facts(self) -> None:
        """Keep the worker's row in step with how it chooses."""
        moment = time.monotonic()
        if moment < self._facts_at:
            return
        self._facts_at = moment + _FACTS_EVERY_SECONDS
        facts = self._facts()
        if facts != self._told_facts:
            self._app.store.tell(self._id, facts)
            self._told_facts = facts


def _host() -> str:
    from socket import gethostname  # here, because `import rowlock` would be 4 ms longer

    return gethostname()
