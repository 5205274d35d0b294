"""Claims jobs, waits well between polls, and counts: usable by itself and inside the worker.

Does not run tasks and knows no pools; what to do with a claim is the caller's.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rowlock import codec
from rowlock._version import __version__
from rowlock.errors import InvalidPayload, StoreBusy, StoreError, WorkerGone
from rowlock.job import Claim, Ending, Exchange, Minute, Outcome, Report, Want
from rowlock.polling.heartbeat import Heartbeat
from rowlock.retry import DEFAULT, Retry, after_error, storable
from rowlock.stores.base import Registration, Retention, Store
from rowlock.strategies import get_strategy
from rowlock.task import check_name
from rowlock.upkeep import Upkeep

log = logging.getLogger("rowlock.poller")

_LOOK_EVERY = 0.02  # seconds between looks for a wake-up: 50 looks of about 30 us are 0.2 % of a core
_LONGEST_WAIT = 60.0
_UPKEEP_AT_LEAST = 0.5  # seconds; between claims of a busy worker


class Host(Protocol):
    """What a poller needs of its app."""

    @property
    def store(self) -> Store:
        """The store that holds the jobs."""
        ...

    @property
    def lease(self) -> float:
        """How long a silent worker's claims are honoured."""
        ...

    @property
    def retention(self) -> Retention:
        """How long finished jobs are kept."""
        ...

    @property
    def max_payload_bytes(self) -> int:
        """The largest size of arguments and results, as JSON."""
        ...

    def retry_policy(self, task: str) -> Retry | None:
        """The retry policy of a registered task; None if there is no such task."""
        ...

    def task_facts(self) -> dict[str, Any]:
        """What a worker's row says about the tasks it knows."""
        ...


class HeldClaim(Claim, frozen=True, kw_only=True):
    """A claim in the hands of a poller's user, who says how it ended."""

    settle: Callable[[Outcome], bool]
    retry: Retry
    limit: int

    def complete(self, result: Any = None) -> bool:
        """End the job as completed; False if the claim was lost meanwhile, and nothing was written."""
        try:
            text = codec.encode(result, f"the result of {self.task}", self.limit)
        except InvalidPayload as error:
            return self._settle(Ending.FAILED, error=str(error), error_kind="result")
        return self._settle(Ending.COMPLETED, result=text)

    def fail(self, error: BaseException | str) -> bool:
        """End this attempt with an error: tried again while the budget lasts, else failed."""
        raised = error if isinstance(error, BaseException) else RuntimeError(error)
        return self.settle(after_error(self, raised, self.retry))

    def release(self, delay: float | None = None) -> bool:
        """Give the job back without charge, at once or after a delay."""
        return self._settle(Ending.RELEASED, delay=delay)

    def _settle(self, ending: Ending, *, error: str | None = None, **values: Any) -> bool:
        outcome = Outcome(
            id=self.id,
            claim=self.claim,
            ending=ending,
            queue=self.queue,
            task=self.task,
            error=None if error is None else storable(error),
            **values,
        )
        return self.settle(outcome)


class Poller:
    """Polls one app's store under one worker id."""

    def __init__(
        self,
        app: Host,
        worker_id: str | None = None,
        strategy: str = "PRIORITY",
        poll_interval: float = 1.0,
        max_idle_polls: int = 12,
        *,
        queues: Sequence[str] = (),
        concurrency: int = 1,
        heartbeat: bool = True,
    ) -> None:
        if not poll_interval > 0:
            raise ValueError(f"poll_interval={poll_interval!r}: must be more than 0 seconds")
        if isinstance(queues, str):
            raise ValueError(f"queues={queues!r}: must be a list of names")
        self._app = app
        self._name = check_name("worker_id", worker_id) if worker_id is not None else None
        self.strategy = strategy
        self.poll_interval = poll_interval
        self.max_idle_polls = max_idle_polls
        self._queues = tuple(check_name("queue", name) for name in queues)
        self._concurrency = concurrency
        self._worker: str | None = None
        self._lock = threading.Lock()
        self._heartbeat: Heartbeat | None = None
        self._own_heartbeat = heartbeat
        self._upkeep: Upkeep | None = None
        self._upkeep_at = 0.0
        self._last_queue = ""
        self._held = 0
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put is safe in a signal handler
        self._seen: int | None = None
        self._stopped = False
        self.running = False
        self.polls_total = self.polls_successful = self.polls_empty = self.polls_busy = 0
        self.consecutive_empty = 0
        self._complained = False

    # -- what users call -------------------------------------------------------------------------

    @property
    def strategy(self) -> str:
        """The order of claiming; may be changed at any time."""
        return self._strategy

    @strategy.setter
    def strategy(self, name: str) -> None:
        self._strategy = get_strategy(name).name

    @property
    def worker_id(self) -> str:
        """The id of this incarnation, as claims and `rowlock workers` show it."""
        with self._lock:
            if self._worker is None:
                self._worker = self._name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
            return self._worker

    def claim(self) -> HeldClaim | None:
        """Claim one job, or return None if there is none (or the database is busy: counted and logged)."""
        try:
            self.keep_up()
            got = self.exchange(1)
        except WorkerGone:
            self._register_anew()
            return None
        except StoreBusy as error:
            self._count_busy(error)
            return None
        if not got.claims:
            return None
        self._held += 1
        plain = got.claims[0]
        fields = {name: getattr(plain, name) for name in Claim.__struct_fields__}
        retry = self._app.retry_policy(plain.task) or DEFAULT
        return HeldClaim(**fields, settle=self._settle, retry=retry, limit=self._app.max_payload_bytes)

    def poll_once(self, on_job: Callable[[HeldClaim], Any], on_idle: Callable[[], Any] | None = None) -> bool:
        """Claim and hand over at most one job: returning completes it, raising fails it. Never sleeps."""
        claim = self.claim()
        if claim is None:
            if on_idle is not None:
                on_idle()
            return False
        try:
            result = on_job(claim)
        except Exception as error:
            claim.fail(error)
        except BaseException:
            claim.release()
            raise
        else:
            claim.complete(result)
        return True

    def run(
        self,
        on_job: Callable[[HeldClaim], Any],
        on_idle: Callable[[], Any] | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Poll until `stop()`, or for so many polls; waits between empty ones."""
        self.running, self._stopped = True, False
        try:
            done = 0
            while not self._stopped and (max_iterations is None or done < max_iterations):
                done += 1
                if not self.poll_once(on_job, on_idle) and done != max_iterations and not self._stopped:
                    self.wait(self.idle_wait())
        finally:
            self.running = False
            self.close()

    def stop(self) -> None:
        """End `run()` after the job in hand, and waits at once; safe from any thread or signal handler."""
        self._stopped = True
        self.ring()
        if not self.running:
            self.close()

    def close(self) -> None:
        """Retire this incarnation; claims it still holds go back. A later claim registers anew."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        if self._upkeep is not None:
            self._upkeep = None
            self._held = 0
            try:
                self._app.store.retire(self.worker_id)
            except StoreError as error:  # its claims are rescued when the lease runs out
                log.warning("worker %s could not say goodbye: %s", self._worker, error)
            self._worker = None

    def stats(self) -> dict[str, Any]:
        """Counts since this poller was made, and how it stands."""
        return {
            "polls_total": self.polls_total,
            "polls_successful": self.polls_successful,
            "polls_empty": self.polls_empty,
            "polls_busy": self.polls_busy,
            "success_rate": self.polls_successful / self.polls_total if self.polls_total else 0.0,
            "consecutive_empty": self.consecutive_empty,
            "running": self.running,
            "strategy": self.strategy,
            "worker_id": self.worker_id,
        }

    # -- what the worker uses, too ---------------------------------------------------------------

    def exchange(
        self,
        count: int,
        outcomes: Sequence[Outcome] = (),
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        alone: bool | None = None,
    ) -> Exchange:
        """Hand outcomes back and take up to `count` claims, in one transaction; count it as a poll."""
        store = self._app.store
        self.ensure_registered()
        want = None
        if count > 0:
            self._seen = store.change()  # before the claim: what is committed after it ends the wait
            want = Want(
                count=count,
                strategy=self.strategy,
                queues=self._queues,
                after=self._last_queue,
                alone=self._held == 0 if alone is None else alone,
            )
        got = store.exchange(self.worker_id, outcomes, want, reports, minutes)
        self._complained = False
        if want is not None:
            self.polls_total += 1
            if got.claims:
                self.polls_successful += 1
                self.consecutive_empty = 0
                self._last_queue = got.last_queue
            else:
                self.polls_empty += 1
                self.consecutive_empty += 1
        return got

    def keep_up(self) -> float:
        """Do the store's upkeep if it is time; returns the seconds until it is needed again."""
        self.ensure_registered()
        moment = time.monotonic()
        if moment >= self._upkeep_at and self._upkeep is not None:
            done = self._upkeep.run_once(self.worker_id)
            self._upkeep_at = moment + min(done.next_in, _UPKEEP_AT_LEAST)
        return max(0.0, self._upkeep_at - moment)

    def idle_wait(self) -> float:
        """How long to wait after an empty poll: the interval, growing while nothing comes, with jitter.

        It grows only because a wake-up can end it, and never past the next moment something falls due.
        """
        wait = self.poll_interval
        beyond = self.consecutive_empty - self.max_idle_polls
        if beyond > 0 and self._seen is not None:
            wait = min(wait * 2.0 ** min(beyond, 16), max(_LONGEST_WAIT, wait))
            wait *= random.uniform(0.75, 1.0)  # noqa: S311 - spreads the workers, hides nothing
        try:
            needed = self._app.store.next_needed(self.worker_id)
        except StoreError:
            return self.poll_interval
        if needed is not None and needed < wait:
            wait = needed
            self._upkeep_at = min(self._upkeep_at, time.monotonic() + needed)
        return wait

    def wait(self, seconds: float, *, for_jobs: bool = True) -> None:
        """Wait until time is up, the bell rings, or (for jobs) somebody else commits."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._bell.get(timeout=min(left, _LOOK_EVERY) if for_jobs else left)
            except queue.Empty:
                if for_jobs and self._changed():
                    return
            else:
                break
        while not self._bell.empty():
            self._bell.get()

    def ring(self) -> None:
        """End a wait at once; safe from any thread or signal handler."""
        self._bell.put(None)

    def ensure_registered(self) -> None:
        """Register this incarnation with the store, once."""
        if self._upkeep is not None:
            return
        app = self._app
        registration = Registration(
            id=self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=self._queues,
            tasks=app.task_facts(),
            strategy=self.strategy,
            concurrency=self._concurrency,
            lease=app.lease,
        )
        self._worker = app.store.register(registration)
        self._upkeep = Upkeep(app.store, lease=app.lease, keep=app.retention)
        self._upkeep_at = 0.0
        if self._own_heartbeat:
            self._heartbeat = Heartbeat(
                app.store,
                worker=lambda: self.worker_id,
                strategy=lambda: self.strategy,
                lease=app.lease,
                on_death=self._register_anew,
            )
            self._heartbeat.start()

    def forget_incarnation(self) -> None:
        """After this worker was declared dead: the next exchange registers under a new id."""
        log.warning(
            "worker %s was declared dead; it registers anew and its old claims are dropped", self._worker
        )
        self._upkeep = None
        self._worker = None
        self._held = 0

    # -- inside ----------------------------------------------------------------------------------

    def _register_anew(self) -> None:
        self.forget_incarnation()
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def _settle(self, outcome: Outcome) -> bool:
        self._held = max(0, self._held - 1)
        got = self._app.store.exchange(self.worker_id, [outcome])
        if got.lost:
            log.warning(
                "job %d (%s): claim %d was lost, its outcome %s is dropped",
                outcome.id,
                outcome.task,
                outcome.claim,
                outcome.ending,
            )
        return not got.lost

    def _changed(self) -> bool:
        try:
            return self._app.store.change() != self._seen
        except StoreError:
            return False

    def _count_busy(self, error: StoreBusy) -> None:
        self.polls_total += 1
        self.polls_empty += 1
        self.polls_busy += 1
        self.consecutive_empty += 1
        if not self._complained:
            log.warning("the database is busy, polling goes on: %s", error)
        self._complained = True
