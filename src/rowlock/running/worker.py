"""A worker: exchanges outcomes for claims, hands them to its pool, and ends in good order.

One loop owns all claiming and finishing; runs happen in the pool, beats in the heartbeat's thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from rowlock.errors import (
    ConfigurationError,
    RunTimedOut,
    StoreBusy,
    StoreError,
    StoreUnreachable,
    WorkerGone,
)
from rowlock.job import Claim, Ending, Outcome
from rowlock.options import check_name, check_seconds
from rowlock.polling.poller import Host as PollerHost
from rowlock.polling.poller import Poller, check_queues
from rowlock.polling.presence import Presence
from rowlock.polling.strays import Strays
from rowlock.retry import DEFAULT, after_error
from rowlock.running.context import JobContext
from rowlock.running.execute import Hook, execute
from rowlock.running.finisher import Finisher, Tally
from rowlock.running.pools.base import Done, Execute, Pool, Run
from rowlock.running.pools.thread import ThreadPool
from rowlock.running.probation import Probation
from rowlock.running.signals import told_by_signals
from rowlock.task import Task

log = logging.getLogger("rowlock.worker")

TIMEOUT_GRACE = 2.0  # seconds after its timeout that a run may take to notice
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 5.0
_LAST_TRIES = 3
_LOOK_AROUND = 1.0  # seconds; the longest wait while anything runs
_POOLS: dict[str, Callable[[int, Execute, Done], Pool]] = {"thread": ThreadPool}


class Host(PollerHost, Protocol):
    """What a worker needs of its app."""

    @property
    def hooks(self) -> Sequence[Hook]:
        """The generators around every run."""
        ...

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The task of that name or alias."""
        ...

    def load_tasks(self) -> None:
        """Import the modules that register tasks."""
        ...


class Worker:
    """Claims and runs an app's jobs; `run()` in the foreground, `background()` inside another program."""

    def __init__(
        self,
        app: Host,
        *,
        queues: Sequence[str] = (),
        strategy: str = "PRIORITY",
        concurrency: int = 4,
        pool: str = "thread",
        poll_interval: float = 1.0,
        worker_id: str | None = None,
        timeout_grace: float = TIMEOUT_GRACE,
    ) -> None:
        if pool not in _POOLS:
            raise ConfigurationError(f"pool={pool!r}: must be one of {', '.join(_POOLS)}")
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigurationError(f"concurrency={concurrency!r}: must be a whole number >= 1")
        self._app = app
        self.concurrency = concurrency
        self._grace = check_seconds("timeout_grace", timeout_grace) or 0.0
        self._queues = check_queues(queues)
        self._presence = Presence(
            app,
            name=None if worker_id is None else check_name("worker_id", worker_id),
            queues=self._queues,
            concurrency=concurrency,
            strategy=lambda: self.strategy,
            on_death=self._ring,
            on_renewal=self._lose_claims,
            on_tick=self._tick,
            running=lambda: [run.claim.task for run in list(self._runs.values())],
        )
        self.poller = Poller(
            app, strategy=strategy, poll_interval=poll_interval, queues=self._queues, presence=self._presence
        )
        self._strays = self.poller.strays = Strays(lambda: app.store, self._known)
        self._exchanging = False  # claims may be on their way that are in no list of ours yet
        self._probation = Probation(app.store)
        self._make_pool = _POOLS[pool]
        self._pool: Pool | None = None
        self._finisher = Finisher()
        self._runs: dict[tuple[int, int], Run] = {}
        self._settling = threading.Lock()
        self._reporting = threading.Lock()
        self._stop = self._stop_now = False
        self.stopped_now = False  # True after a run that was told to end at once
        self.stopped_by: int | None = None  # the number of the last signal
        self._said = False
        self._failing = 0
        self._trouble = ""

    # -- what users call -------------------------------------------------------------------------

    @property
    def strategy(self) -> str:
        """The order of claiming; may be changed while the worker runs."""
        return self.poller.strategy

    @strategy.setter
    def strategy(self, name: str) -> None:
        self.poller.strategy = name

    @property
    def id(self) -> str:
        """The id of this incarnation."""
        return self.poller.worker_id

    def run(self, until_empty: bool = False) -> Tally:
        """Work until stopped, or until nothing is due or running; returns what was done."""
        with told_by_signals(self._stop_by_signal):
            return self._work(until_empty)

    @contextmanager
    def background(self) -> Iterator[Worker]:
        """Work in a thread of this program while the block runs; no signal handlers."""
        failure: list[BaseException] = []

        def work() -> None:
            try:
                self._work(until_empty=False)
            except BaseException as error:
                log.exception("the worker in the background ended with an error")
                failure.append(error)

        thread = threading.Thread(target=work, name="rowlock-worker", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join()
        if failure:
            raise failure[0]

    def stop(self, now: bool = False) -> None:
        """Finish what runs and end; with `now`, give back what runs and end at once."""
        self._stop = True
        self._stop_now = self._stop_now or now
        self.poller.ring()

    def register(self) -> str:
        """Register this incarnation now rather than with the first claim; returns its id."""
        self._presence.ensure()
        return self.id

    # -- the loop --------------------------------------------------------------------------------

    def _work(self, until_empty: bool) -> Tally:
        self._app.load_tasks()
        self._finisher = Finisher()
        self._pool = self._make_pool(self.concurrency, self._execute, self._done)
        with suppress(StoreBusy, StoreUnreachable):  # the loop goes on trying, and says so
            self.register()
        self.poller.running = True
        log.debug("worker %s takes jobs from %s", self.id, ", ".join(self._queues) or "all queues")
        try:
            wait = self.run_once()
            while not self._finished(until_empty):
                self._pause(wait)
                wait = self.run_once()
        finally:
            self._pool.close()
            self._end()
        return self._finisher.tally

    def run_once(self) -> float:
        """One exchange: write the outcomes, claim for the free places; returns how long to wait."""
        try:
            self._presence.ensure()
            if not self._stop:
                self.poller.keep_up()
            runs = list(self._runs.values())
            free = 0 if self._stop or self._probation.blocks(runs) else self.concurrency - len(runs)
            batch = self._finisher.take(self.id, flush=self._stop)
            if not (free or batch.outcomes or batch.reports or batch.minutes):
                self._finisher.delivered(())
                return self._time_to_next_deadline()
            self._exchanging = True
            got = self.poller.exchange(
                free, batch.outcomes, batch.reports, batch.minutes, alone=self._probation.may_start(runs)
            )
        except WorkerGone:
            self._exchanging = False
            self._presence.declared_dead(self.id)
            return 0.0
        except StoreError as error:
            if isinstance(error, StoreBusy):
                self.poller.count_busy()
            self._exchanging = False
            return self._back_off(error)
        self._recover()
        for outcome in got.lost:
            log.warning(
                "job %d (%s): claim %d was lost, its outcome %s is dropped",
                outcome.id,
                outcome.task,
                outcome.claim,
                outcome.ending,
            )
        self._finisher.delivered(got.lost)
        for claim in got.claims:
            self._start(claim)
        self._exchanging = False
        if len(got.claims) >= free:  # every place is taken (short runs may have ended by now)
            return self._time_to_next_deadline()
        return min(self.poller.idle_wait(), self._time_to_next_deadline())

    def _pause(self, seconds: float) -> None:
        if self._failing or not self._finisher.waiting:
            free = len(self._runs) < self.concurrency and not self._stop and not self._failing
            self.poller.wait(seconds, for_jobs=free)
        self._give_up_on_stuck_runs()

    def _finished(self, until_empty: bool) -> bool:
        if self._stop_now:
            return True
        if self._runs or self._finisher.waiting:
            self._say_that_it_stops()
            return False
        if self._stop:
            return True
        if not until_empty or self.poller.consecutive_empty == 0 or self._failing:
            return False
        try:
            return self._app.store.idle(self._queues)
        except StoreError:
            return False

    def _say_that_it_stops(self) -> None:
        if self._stop and not self._said:
            self._said = True
            log.info(
                "worker %s stops: it finishes what runs (%d); tell it again to end it at once",
                self.id,
                len(self._runs),
            )

    # -- one run ---------------------------------------------------------------------------------

    def _start(self, claim: Claim) -> None:
        task = self._app.find_task(claim.task)
        timeout = task.timeout if task else None
        context = JobContext(claim, timeout, store=self._app.store, reporting=self._reporting)
        run = Run(claim, task, context)
        self._runs[claim.id, claim.claim] = run
        if self._pool is not None:
            self._pool.submit(run)

    def _execute(self, run: Run) -> Outcome:
        return execute(run.claim, run.task, run.context, self._app.hooks, self._app.max_payload_bytes)

    def _done(self, run: Run, outcome: Outcome) -> None:
        with self._settling:
            if run.settled:
                log.warning("job %d (%s) ended after it was given up; dropped", run.claim.id, run.claim.task)
                return
            run.settled = True
        self._settle(run, outcome)

    def _settle(self, run: Run, outcome: Outcome) -> None:
        with self._reporting:  # what the heartbeat has in hand is written before the claim ends
            report = run.context.take_report()
        self._finisher.add(outcome, report)
        self._runs.pop((run.claim.id, run.claim.claim), None)
        self.poller.ring()

    def _give_up_on_stuck_runs(self) -> None:
        moment = time.monotonic()
        for run in list(self._runs.values()):
            deadline = run.context.deadline
            if deadline is None or moment < deadline + self._grace or self._pool is None:
                continue
            with self._settling:
                if run.settled:
                    continue
                run.settled = True
            error = RunTimedOut(
                f"it ran longer than its timeout of {run.context.timeout:g} s and did not stop when told to"
            )
            log.error("job %d (%s): %s; its thread is abandoned", run.claim.id, run.claim.task, error)
            self._pool.abandon(run)
            run.context.revoke()
            outcome = after_error(run.claim, error, run.task.retry if run.task else DEFAULT)
            self._settle(run, outcome)

    def _time_to_next_deadline(self) -> float:
        deadlines = [
            run.context.deadline for run in list(self._runs.values()) if run.context.deadline is not None
        ]
        if not deadlines:
            return _LOOK_AROUND
        return min(_LOOK_AROUND, max(0.01, min(deadlines) + self._grace - time.monotonic()))

    # -- in the heartbeat's thread ---------------------------------------------------------------

    def _tick(self) -> None:
        runs = list(self._runs.values())
        suspected = self._strays.suspected and not self._exchanging
        if not runs and not suspected:
            return
        with self._reporting:
            taken = [(run.context, report) for run in runs if (report := run.context.take_report())]
            try:
                self._app.store.report([report for _, report in taken])
            except StoreError:
                for context, report in taken:
                    context.give_back(report)
                raise
        worker = self.poller.worker_id
        held = self._app.store.held(worker)
        for job, claim, cancelled in held:
            run = self._runs.get((job, claim))
            if run is not None and cancelled:
                run.context.cancelled = True
        if suspected and not self._exchanging:
            self._strays.run_once(worker, [(job, claim) for job, claim, _ in held])

    def _known(self) -> set[tuple[int, int]]:
        """The claims that are running here, or ended and not written yet."""
        return {*self._runs, *self._finisher.keys}

    def _stop_by_signal(self, number: int, again: bool) -> None:
        self.stopped_by = number
        self.stop(now=again)

    # -- trouble and the end ---------------------------------------------------------------------

    def _write_the_rest(self) -> bool:
        """Write all outcomes that are left; False if the store cannot be used now."""
        try:
            while True:
                batch = self._finisher.take(self.id, flush=True)
                if not (batch.outcomes or batch.reports or batch.minutes):
                    return True
                got = self.poller.exchange(0, batch.outcomes, batch.reports, batch.minutes)
                self._finisher.delivered(got.lost)
        except StoreError as error:
            log.error("the last outcomes could not be written: %s", error)  # noqa: TRY400
            return False

    def _given_back(self, run: Run) -> Outcome:
        """The outcome of a run that is left behind: free of charge, unless it may be run only once."""
        budget = run.claim.max_attempts or (run.task.retry.max_attempts if run.task else 0)
        if budget == 1:
            error = "its worker was told to end at once while it ran, and it is run at most once"
            return run.claim.ended(Ending.FAILED, error=error, error_kind="worker_stopped")
        return run.claim.ended(Ending.RELEASED)

    def _ring(self) -> None:
        self.poller.ring()

    def _lose_claims(self) -> None:
        """This worker was declared dead: its runs are told, and what they come to will be refused."""
        for run in list(self._runs.values()):
            run.context.lost = True

    def _back_off(self, error: StoreError) -> float:
        if str(error) != self._trouble:  # once for each kind of trouble
            log.error("the store cannot be used, the worker keeps what it has and goes on trying: %s", error)
        self._trouble = str(error)
        self._failing += 1
        wait = min(_BACKOFF_MOST, _BACKOFF_FIRST * 2.0 ** min(self._failing, 10))
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the workers, hides nothing

    def _recover(self) -> None:
        if self._failing:
            log.info("the store can be used again")
            self._trouble = ""
        self._failing = 0

    def _end(self) -> None:
        """Write what is left, give back what still runs, say goodbye."""
        for run in list(self._runs.values()):
            with self._settling:
                if run.settled:
                    continue
                run.settled = True
            run.context.lost = True  # it may still be running: it is told at its next call
            self._settle(run, self._given_back(run))
        written = any(self._write_the_rest() for _ in range(_LAST_TRIES))
        self.stopped_now, self._stop, self._stop_now = self._stop_now, False, False  # it may run again
        self.poller.running = False
        self.poller.deafen()
        self._presence.leave(retire=written)  # else retiring would give back what is done: better the lease
        log.debug("worker ended: %s", self._finisher.tally)
