"""A worker: its public API, the loop that keeps it going, and its end in good order.

The loop makes one cycle after the other (`cycle.py`); runs happen in pools, beats in the heartbeat's thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager

from rowlock.errors import RowlockError, StoreError
from rowlock.execution.execute import Executor
from rowlock.execution.residents import Residents
from rowlock.liveness import Lease, Liveness
from rowlock.options import check_seconds
from rowlock.stores.base import Bell
from rowlock.worker.counts import Counts, Tally
from rowlock.worker.cycle import Cycle
from rowlock.worker.demand import Demand
from rowlock.worker.exchanger import Exchanger
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.maintenance_schedule import MaintenanceSchedule
from rowlock.worker.next_cycle import NextCycle
from rowlock.worker.options import STOP_GRACE, TIMEOUT_GRACE
from rowlock.worker.poll_timing import PollTiming
from rowlock.worker.pools import Pools, check_number
from rowlock.worker.profile import Profile
from rowlock.worker.progress_reports import ProgressReports
from rowlock.worker.runner import Runner
from rowlock.worker.runs import Runs
from rowlock.worker.signals import told_by_signals
from rowlock.worker.unwritten_outcomes import Unwritten
from rowlock.workload import App, Workload

log = logging.getLogger("rowlock.worker")

_LAST_TRIES = 3


class Worker:
    """Claims and runs a workload; `run()` in the foreground, `background()` inside another program."""

    def __init__(
        self,
        app: App,
        workload: Workload,
        *,
        strategy: str = "PRIORITY",
        concurrency: int | None = None,
        pool: str = "thread",
        poll_interval: float = 1.0,
        worker_id: str | None = None,
        grace: float = STOP_GRACE,
        timeout_grace: float = TIMEOUT_GRACE,
        prefetch: int | None = None,
        max_jobs_per_child: int | None = None,
    ) -> None:
        check_number("prefetch", prefetch, 0)
        self._app = app
        self._workload = workload
        self._prefetch = prefetch
        self._grace = check_seconds("grace", grace) or 0.0
        self._profile = Profile(worker_id, workload.queues, strategy, poll_interval)
        self._bell: Bell = queue.SimpleQueue()  # ends the loop's wait, from any thread or signal handler
        self._residents = Residents()
        self._counts = Counts()
        self._unwritten = Unwritten()
        # From here on, each is given those above it and calls nothing but them; the threads of a thread pool
        # do what the runner says.
        self.runs = Runs(self._unwritten, self._bell, check_seconds("timeout_grace", timeout_grace) or 0.0)
        self._executor = Executor(app.hooks, app.settings.max_payload_bytes, self._residents)
        self._pools = Pools(app, workload, self.runs, self._executor, pool, concurrency, max_jobs_per_child)
        liveness = Liveness(Lease(app.settings.lease))
        self._demand = Demand(workload, self._profile, liveness, self.runs)
        self._reports = ProgressReports(workload.store, self.runs, self._pools, self._demand, self._residents)
        self._heartbeat = Heartbeat(workload, self._profile, liveness, self._bell, self._reports)
        maintenance = MaintenanceSchedule(app, workload, self._heartbeat)
        self.polls = PollTiming(workload, self._profile, self._heartbeat, maintenance, self._bell)
        self._exchanger = Exchanger(
            workload.store, self._heartbeat, self.polls, self._unwritten, self._counts
        )
        self.cycle = Cycle(
            workload,
            self._profile,
            self._unwritten,
            self.runs,
            self._pools,
            self._demand,
            self._heartbeat,
            self.polls,
            self._exchanger,
        )
        self._next_cycle = NextCycle(self.cycle, self.runs, self._unwritten, self._pools, self._bell)
        self._runner = Runner(self.runs, self._executor, self._next_cycle)
        self._stop_now = self._show_stacks = False
        self._stop_at: float | None = None
        self.ended = ""  # how the last run ended: finished, grace, now, stuck
        self.failed: BaseException | None = None  # what ended it in the background; for health checks
        self.stopped_by: int | None = None  # the number of the last signal

    # -- what users call -------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many jobs run at once: in the worker's own pool, or in the one that all of its tasks need."""
        return self._pools.concurrency

    @property
    def strategy(self) -> str:
        """The order of claiming; may be changed while the worker runs."""
        return self._profile.strategy

    @strategy.setter
    def strategy(self, name: str) -> None:
        self._profile.check_strategy(name)
        self._profile.strategy = name
        self.cycle.take_back()  # what was prefetched came in the old order
        self._bell.put(None)

    @property
    def id(self) -> str:
        """The id of this incarnation."""
        return self._heartbeat.id

    @property
    def tally(self) -> Tally:
        """What it has done so far, in this run."""
        return self._counts.tally

    def run(self, until_empty: bool = False) -> Tally:
        """Work until stopped, or until nothing is due or running; returns what was done."""
        with told_by_signals(self.stop_by_signal, self.show_stacks):
            return self._work(until_empty, in_callers_thread=True)

    @contextmanager
    def background(self) -> Iterator[Worker]:
        """Work in a thread of this program while the block runs; no signal handlers."""
        ended = self._start_thread()
        try:
            yield self
        finally:
            self.stop()
            wait([ended])
        ended.result()

    @asynccontextmanager
    async def abackground(self) -> AsyncIterator[Worker]:
        """The same for async programs: async tasks run on the caller's own event loop while the block runs.

        So they may share with the program what belongs to one event loop, such as an asyncpg engine.
        """
        self._pools.callers_loop = asyncio.get_running_loop()
        over = asyncio.wrap_future(self._start_thread())
        cancelled: asyncio.CancelledError | None = None
        try:
            yield self
        finally:
            self.stop()
            while not over.done():  # what runs is on this loop, and has to be let end
                try:
                    await asyncio.wait({over})
                except asyncio.CancelledError as error:
                    cancelled = error
                    self.stop(now=True)
            self._pools.callers_loop = None
        over.result()
        if cancelled is not None:
            raise cancelled

    def _start_thread(self) -> Future[None]:
        """Work in a thread; what is returned ends with it."""
        ended: Future[None] = Future()
        self.failed = None

        def work() -> None:
            try:
                self._work(until_empty=False)
            except BaseException as error:
                self.failed = error
                log.critical(
                    "the worker %s in the background stopped on an error; it claims no more jobs",
                    self.id,
                    exc_info=True,
                )
                ended.set_exception(error)
            else:
                if self.ended == "stuck":
                    self.failed = RowlockError("all of its slots are held by runs that do not stop")
                ended.set_result(None)

        threading.Thread(target=work, name="rowlock-worker", daemon=True).start()
        return ended

    def stop(self, now: bool = False) -> None:
        """Finish what runs (for as long as the grace) and end; with `now`, give it back and end at once."""
        self.cycle.stopping = True
        self._stop_now = self._stop_now or now
        self._bell.put(None)

    def stop_by_signal(self, number: int, second: bool) -> None:
        """Stop, as a signal asks for it: the second one at once."""
        self.stopped_by = number
        self.stop(now=second)

    def register(self) -> str:
        """Register this incarnation now rather than with the first claim; returns its id."""
        self._profile.concurrency = self.concurrency
        self._heartbeat.ensure()
        return self.id

    def show_stacks(self) -> None:
        """Write to the log where every run stands; safe from a signal handler."""
        self._show_stacks = True
        self._bell.put(None)

    def stacks(self) -> str:
        """Where every run stands."""
        return self._reports.stacks()

    # -- the loop --------------------------------------------------------------------------------

    def _work(self, until_empty: bool, in_callers_thread: bool = False) -> Tally:
        self._app.load_tasks()
        self._stop_at, self.ended = None, ""
        self._counts.reset()
        self.cycle.reset(in_callers_thread)
        self._next_cycle.reset()
        self._pools.make(self._runner.work)
        self._demand.reset(self._pools.slots, self._prefetch)
        try:
            self._pools.start()
            self._profile.concurrency = self.concurrency
            self.polls.running = True
            queues = ", ".join(self._profile.queues) or "all queues"
            log.debug("worker %s takes jobs from %s", self.id, queues)
            while not self.ended:
                self._pause(self.run_once(until_empty))
        finally:
            self._end()
        return self.tally

    def run_once(self, until_empty: bool = False) -> float:
        """A cycle, unless a runner sees to that; returns how long to wait."""
        self._pools.go_on()
        with self._next_cycle.by_the_loop() as make:
            if make is None:
                return self._next_cycle.until_a_look()
            seconds = make()
            return 0.0 if self._finished(until_empty) else seconds

    def _pause(self, seconds: float) -> None:
        if self.ended:
            return
        seconds, idle = self._next_cycle.pause(seconds)
        if seconds > 0:
            for_jobs = idle and self._demand.may_claim()
            self.polls.wait(min(seconds, self._grace_left()), for_jobs=for_jobs)
        for run in self.runs.give_up_late_ones():
            self._pools.abandon(run)
            run.context.revoke()
        if self._show_stacks:
            self._show_stacks = False
            log.warning("worker %s:\n%s", self.id, self.stacks())

    def _finished(self, until_empty: bool) -> bool:
        if self._stop_now:
            self.ended = "now"
        elif self._pools.is_stuck:
            self.ended = "stuck"
            log.error(
                "worker %s ends: all of its slots are held by runs that do not stop; start it anew", self.id
            )
        elif self.runs.in_flight or self._unwritten:
            if self._grace_left() <= 0:
                self.ended = "grace"
                log.warning(
                    "worker %s ends: the grace of %g s is over, what runs is given back", self.id, self._grace
                )
        elif self.cycle.stopping or (until_empty and self._nothing_left()):
            self.ended = "finished"
        return bool(self.ended)

    def _nothing_left(self) -> bool:
        if self.polls.consecutive_empty == 0 or self.cycle.backoff.failing:
            return False
        try:
            return self._workload.store.idle(self._profile.queues, tasks=self._workload.registry.facts())
        except StoreError:
            return False

    def _grace_left(self) -> float:
        """For how many seconds it waits for what runs; that it does, when it was told to stop, is logged."""
        if not self.cycle.stopping:
            return math.inf
        moment = time.monotonic()
        if self._stop_at is None:
            self._stop_at = moment + self._grace
            if running := len(self.runs.in_flight):
                log.info(
                    "worker %s stops: it waits up to %g s for what runs (%d); "
                    "tell it again to end it at once",
                    *(self.id, self._grace, running),
                )
        return max(0.0, self._stop_at - moment)

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """Give back what still runs, write what is left, retire."""
        self._next_cycle.close()
        self.cycle.take_back()
        self.runs.give_back_all()
        self._pools.close()  # after that: what a pool breaks off has been decided on
        written = any(self._write_the_rest() for _ in range(_LAST_TRIES))
        self.cycle.stopping = self._stop_now = False  # it may run again
        self.polls.running = False
        self.polls.close()
        # With outcomes unwritten it does not retire: finished jobs would be requeued at once.
        self._heartbeat.leave(retire=written)
        self._residents.close()
        log.debug("worker ended: %s", self.tally)

    def _write_the_rest(self) -> bool:
        """Write all outcomes that are left; False if the store cannot be used now."""
        try:
            self._exchanger.count_written()
            while batch := self._exchanger.prepare(flush=True):
                self._exchanger.exchange(batch)
        except StoreError as error:
            log.error("the last outcomes could not be written: %s", error)  # noqa: TRY400
            return False
        return True
