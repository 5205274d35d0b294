"""A worker: exchanges outcomes for claims, and ends in good order.

One loop owns all claiming and finishing; runs happen in pools (`hand.py`), beats in the heartbeat's thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from rowlock.endings import Event, ended, put_off
from rowlock.errors import TRANSIENT, StoreBusy, StoreError, WorkerGone
from rowlock.execution.execute import Hook
from rowlock.execution.residents import Residents
from rowlock.job import Claim, ExchangeResult, Outcome
from rowlock.options import check_name, check_seconds, check_strategy_applies
from rowlock.pools.base import CallersLoop
from rowlock.retry import DEFAULT
from rowlock.stores.base import Store
from rowlock.task import Task
from rowlock.worker.finisher import Finisher, Tally
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.isolation import Isolation
from rowlock.worker.lost_claims import LostClaims
from rowlock.worker.poller import Host as PollerHost
from rowlock.worker.poller import Poller, check_queues
from rowlock.worker.pool_plan import PoolPlan
from rowlock.worker.runs import Runs
from rowlock.worker.signals import told_by_signals
from rowlock.worker.store_backoff import StoreBackoff

log = logging.getLogger("rowlock.worker")

TIMEOUT_GRACE = 2.0  # seconds after its timeout that a run may take to notice
STOP_GRACE = 25.0  # seconds that runs may take to end; most supervisors kill after 30
_LAST_TRIES = 3
_MOST_UNKNOWN = 500  # names of tasks that are left out of a claim
_LOOK_AROUND = 1.0  # seconds; the longest wait while anything runs
_SOON = 0.05
_LONGEST_HELD = 10.0  # seconds


class Host(PollerHost, Protocol):
    """What a worker needs of its app."""

    @property
    def hooks(self) -> Sequence[Hook]:
        """The generators around every run."""
        ...

    @property
    def tasks(self) -> Any:
        """The registered tasks by name."""
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
        concurrency: int | None = None,
        pool: str = "thread",
        poll_interval: float = 1.0,
        worker_id: str | None = None,
        grace: float = STOP_GRACE,
        timeout_grace: float = TIMEOUT_GRACE,
        prefetch: int | None = None,
        max_jobs_per_child: int | None = None,
    ) -> None:
        self._app = app
        self._pool_plan = PoolPlan(app, pool, concurrency, prefetch, max_jobs_per_child)
        self._grace = check_seconds("grace", grace) or 0.0
        self._timeout_grace = check_seconds("timeout_grace", timeout_grace) or 0.0
        self._queues = check_queues(queues)
        self._finisher = Finisher()
        self._residents = Residents()
        self._runs = self._new_runs()
        self._asked = self._answered = 0  # exchanges; between the two, claims are on their way to our lists
        self.lost_claims = LostClaims(
            lambda: app.store, self._known, asked=lambda: self._asked, answered=lambda: self._answered
        )
        self._heartbeat = Heartbeat(
            app,
            name=None if worker_id is None else check_name("worker_id", worker_id),
            queues=self._queues,
            concurrency=lambda: self.concurrency,
            strategy=lambda: self.strategy,
            ring=self._ring,
            runs=lambda: self._runs,
            facts=self.facts,
            lost_claims=self.lost_claims,
        )
        self.poller = Poller(
            app,
            strategy=strategy,
            poll_interval=poll_interval,
            queues=self._queues,
            heartbeat=self._heartbeat,
        )
        self.poller.lost_claims = self.lost_claims
        self._unknown: set[str] = set()  # tasks of others that it has met
        self._isolation = Isolation(app.store, self._queues, self._soon_over, self._left_out)
        self._backoff = StoreBackoff()
        self._stop = self._stop_now = self._show_stacks = False
        self._stop_at: float | None = None
        self.ended = ""  # how the last run ended: finished, grace, now, stuck
        self.stopped_by: int | None = None  # the number of the last signal
        self._said = False
        self._turn = threading.Lock()  # who holds it makes the exchange: the loop, or the thread of a pool
        self._over = False  # no pool's thread has to make one any more
        self._in_callers_thread = False  # of `run()`: nothing else can happen there before it returns
        self._failure: BaseException | None = None  # what went wrong in the thread of a pool

    # -- what users call -------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many jobs run at once: in the worker's own pool, or in the one that all of its tasks need."""
        return self._pool_plan.concurrency

    @property
    def strategy(self) -> str:
        """The order of claiming; may be changed while the worker runs."""
        return self.poller.strategy

    @strategy.setter
    def strategy(self, name: str) -> None:
        for queue in self._queues:
            check_strategy_applies(queue, name)
        self.poller.strategy = name
        self._runs.take_back_silently()  # what was claimed ahead came in the old order
        self.poller.ring()

    @property
    def id(self) -> str:
        """The id of this incarnation."""
        return self.poller.worker_id

    @property
    def tally(self) -> Tally:
        """What it has done so far, in this run."""
        return self._finisher.tally

    @property
    def stopped_now(self) -> bool:
        """True after a run that was told to end at once."""
        return self.ended == "now"

    def run(self, until_empty: bool = False) -> Tally:
        """Work until stopped, or until nothing is due or running; returns what was done."""
        with told_by_signals(self._stop_by_signal, self.show_stacks):
            return self._work(until_empty, in_callers_thread=True)

    @contextmanager
    def background(self) -> Iterator[Worker]:
        """Work in a thread of this program while the block runs; no signal handlers."""
        ended: Future[None] = Future()
        self._start_thread(ended)
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
        ended: Future[None] = Future()
        self._pool_plan.callers_loop = CallersLoop(asyncio.get_running_loop(), threading.get_ident())
        self._start_thread(ended)
        over = asyncio.wrap_future(ended)
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
            self._pool_plan.callers_loop = None
        over.result()
        if cancelled is not None:
            raise cancelled

    def _start_thread(self, ended: Future[None]) -> None:
        def work() -> None:
            try:
                self._work(until_empty=False)
            except BaseException as error:
                log.exception("the worker in the background ended with an error")
                ended.set_exception(error)
            else:
                ended.set_result(None)

        threading.Thread(target=work, name="rowlock-worker", daemon=True).start()

    def stop(self, now: bool = False) -> None:
        """Finish what runs (for as long as the grace) and end; with `now`, give it back and end at once."""
        self._stop = True
        self._stop_now = self._stop_now or now
        self.poller.ring()

    def register(self) -> str:
        """Register this incarnation now rather than with the first claim; returns its id."""
        self._heartbeat.ensure()
        return self.id

    def show_stacks(self) -> None:
        """Write to the log where every run stands; safe from a signal handler."""
        self._show_stacks = True
        self.poller.ring()

    # -- the loop --------------------------------------------------------------------------------

    def _work(self, until_empty: bool, in_callers_thread: bool = False) -> Tally:
        self._app.load_tasks()
        self._in_callers_thread = in_callers_thread
        self._finisher = Finisher()
        self._stop_at, self._said, self.ended = None, False, ""
        self._over, self._failure = False, None
        self._backoff = StoreBackoff()
        self._unknown.clear()
        self._runs = self._new_runs()
        self._runs.pool_states = self._pool_plan.pool_states(self._runs.done, self._residents)
        try:
            self._residents.load(self._pool_plan.tasks_here())
            self._runs.open()
            try:
                self.register()
            except TRANSIENT as error:  # the loop goes on trying, and says so
                self._backoff.held_for(error, time.monotonic())
            self.poller.running = True
            log.debug("worker %s takes jobs from %s", self.id, ", ".join(self._queues) or "all queues")
            while not self.ended:
                self._pause(self._take_turn(until_empty))
        finally:
            self._end()
        return self._finisher.tally

    def _take_turn(self, until_empty: bool) -> float:
        """An exchange, unless the thread of a pool makes one just now; returns how long to wait."""
        if not self._turn.acquire(blocking=self._stop):
            return _SOON
        try:
            if self._failure is not None:
                raise self._failure
            wait = self.run_once()
            return 0.0 if self._finished(until_empty) else wait
        finally:
            self._turn.release()

    def run_once(self) -> float:
        """One exchange: write the outcomes, claim for the free places; returns how long to wait."""
        runs = self._runs
        try:
            self._heartbeat.ensure()
            if self._stop:
                runs.take_back_silently()
            else:
                if self.poller.maintain():
                    self._isolation.look()
                self._leave(runs.leave_what_waits_too_long())
            runs.learn(self._finisher.count_written())
            active = runs.all_runs()
            isolate = self._isolation.may_start(active)
            asleep = (
                not self._heartbeat.liveness.may_claim()
            )  # frozen a moment ago: it beats before it claims
            blocked = self._stop or asleep or self._isolation.blocks(active)
            wanted = 0 if blocked else runs.wanted()
            batch = self._finisher.take(self.id, flush=self._stop)
            writes = batch.outcomes or batch.reports or batch.minutes
            if not writes and not (wanted and runs.is_short()):
                self._finisher.delivered(())
                return runs.time_to_next_deadline(_SOON if asleep else _LOOK_AROUND)
            self._asked, strategy = self._asked + 1, self.strategy
            got = self.poller.exchange(
                *(wanted, batch.outcomes, batch.reports, batch.minutes),
                isolate=isolate,
                unknown=self._left_out() if self._unknown else (),
            )
        except WorkerGone:
            self._answered = self._asked
            self._heartbeat.declared_dead(self.id)
            return 0.0
        except StoreError as error:
            if not (self._heartbeat.liveness.is_registered or isinstance(error, TRANSIENT)):
                raise  # it has nothing to lose yet, and this does not pass
            self._refuse_to_wait_for_caller(error)
            if isinstance(error, StoreBusy):
                self.poller.count_busy()
            self._answered = self._asked
            return self._backoff.met(error)
        self._backoff.over()
        runs.learn(batch.outcomes)
        self._finisher.delivered(got.lost, got.refused)
        if isolate and wanted:
            self._isolation.took(got.claims)
        self._take(got, wanted, still_in_order=self.strategy == strategy)
        runs.pausing.difference_update(one.queue for one in batch.outcomes if one.pause)
        self._answered = self._asked
        if len(got.claims) >= wanted:
            return 0.0 if runs.is_short() else runs.time_to_next_deadline(_LOOK_AROUND)
        idle = self.poller.idle_wait()
        return min(idle, runs.time_to_next_deadline(_LOOK_AROUND)) if runs.in_flight else idle

    def _refuse_to_wait_for_caller(self, error: StoreError) -> None:
        """End with an error if the thread that called `run()` seems to hold the lock that `run()` waits for.

        Before the worker is registered, no task of its own can be the holder. A connection does not tell
        which thread uses it, but another thread would end its transaction, or go on writing in it, meanwhile.
        """
        seconds = self._backoff.held_for(error, time.monotonic())
        if (
            self._in_callers_thread
            and not self._heartbeat.liveness.is_registered
            and seconds >= _LONGEST_HELD
        ):
            raise StoreBusy(
                f"the worker ends before its first claim: for {seconds:.0f} s the database was locked, "
                "and the same transaction of this program was open on it and wrote nothing. If the caller of "
                "`run()` has opened it, it stays open until that returns: commit or close it before the call"
            ) from error

    def _take(self, got: ExchangeResult, wanted: int, still_in_order: bool) -> None:
        for outcome in got.lost:
            log.warning(
                "%s: claim %d was lost, its outcome %s is dropped",
                outcome.title,
                outcome.claim,
                outcome.ending,
            )
        claims = self._give_back_unknown(got.claims)
        self._leave(self._runs.take(claims, wanted) if still_in_order else claims)

    def _give_back_unknown(self, claims: list[Claim]) -> list[Claim]:
        """The claims of tasks that are known here; the others go back, and are left to other workers."""
        unknown = {name for name in {claim.task for claim in claims} if self._app.find_task(name) is None}
        if not unknown:
            return claims
        for name in sorted(unknown - self._unknown)[: _MOST_UNKNOWN - len(self._unknown)]:
            log.warning("worker %s knows no task %r; from now on it leaves its jobs to others", self.id, name)
            self._unknown.add(name)
        for claim in claims:
            if (
                claim.task in unknown
            ):  # one that it cannot leave out has to wait, or it would come back at once
                self._finisher.add(put_off(claim, unless_known=claim.task in self._unknown), None)
        return [claim for claim in claims if claim.task not in unknown]

    def _left_out(self) -> tuple[str, ...]:
        """The tasks that it has met and does not know; one that was registered since is known."""
        self._unknown = {name for name in self._unknown if self._app.find_task(name) is None}
        return tuple(sorted(self._unknown))

    def _leave(self, left: Sequence[Claim]) -> None:
        if left:
            log.debug("%d jobs are left to other workers: they would have to wait here", len(left))
        for claim in left:
            self._finisher.add(ended(claim, Event.RELEASED, DEFAULT), None)

    def _pause(self, seconds: float) -> None:
        if self.ended:
            return
        elsewhere = self._turn.locked()  # the thread of a pool makes an exchange, and rings if it needs us
        if self._backoff.failing or elsewhere or not self._finisher.waiting:
            idle = not (self._stop or self._backoff.failing or elsewhere)
            for_jobs = idle and self._runs.wanted() > 0 and not self._isolation.blocks(self._runs.all_runs())
            self.poller.wait(self._until_grace_ends(seconds), for_jobs=for_jobs)
        self._runs.give_up_on_stuck_runs()
        if self._show_stacks:
            self._show_stacks = False
            log.warning("worker %s:\n%s", self.id, self._runs.stacks())

    def _finished(self, until_empty: bool) -> bool:
        if self._stop_now:
            self.ended = "now"
        elif self._runs.stuck:
            self.ended = "stuck"
            log.error(
                "worker %s ends: all of its places are held by runs that do not stop; start it anew", self.id
            )
        elif self._runs.in_flight or self._finisher.waiting:
            if self._stop and self._until_grace_ends(1.0) <= 0:
                self.ended = "grace"
                log.warning(
                    "worker %s ends: the grace of %g s is over, what runs is given back", self.id, self._grace
                )
            else:
                self._say_that_it_stops()
        elif self._stop or (until_empty and self._nothing_left()):
            self.ended = "finished"
        return bool(self.ended)

    def _nothing_left(self) -> bool:
        if self.poller.consecutive_empty == 0 or self._backoff.failing:
            return False
        try:
            return self._app.store.idle(self._queues, tasks=self._app.task_facts())
        except StoreError:
            return False

    def _until_grace_ends(self, seconds: float) -> float:
        if not self._stop:
            return seconds
        moment = time.monotonic()
        if self._stop_at is None:
            self._stop_at = moment + self._grace
        return max(0.0, min(seconds, self._stop_at - moment))

    def _say_that_it_stops(self) -> None:
        if self._stop and not self._said:
            self._said = True
            log.info(
                "worker %s stops: it waits up to %g s for what runs (%d); tell it again to end it at once",
                self.id,
                self._grace,
                len(self._runs.in_flight),
            )

    def _stop_by_signal(self, number: int, again: bool) -> None:
        self.stopped_by = number
        self.stop(now=again)

    # -- its rooms -------------------------------------------------------------------------------

    def _new_runs(self) -> Runs:
        return Runs(self._app, self._pool_plan.kind_of, self._ended, self._look, self._timeout_grace)

    def _ended(self, outcome: Outcome, report: Any) -> None:
        self._finisher.add(outcome, report)

    def _look(self, here: bool) -> None:
        """A run has ended by itself; `here` is true if its thread may be used for an exchange.

        If it was the only one, its thread makes the exchange and goes on with what comes: to wake the loop's
        thread and to be woken by it takes longer than many a job (650 against 780 us, one job at a time).
        """
        isolate = here and not (self._runs.in_flight or self._stop or self._backoff.failing)
        if isolate and self._turn.acquire(blocking=False):
            try:
                if not self._over:
                    self.run_once()
            except BaseException as error:
                self._failure = error
            finally:
                self._turn.release()
            if self._runs.in_flight and not self._finisher.waiting and self._failure is None:
                return
        self.poller.ring()

    def _ring(self) -> None:
        self.poller.ring()

    def _soon_over(self) -> bool:
        return self._runs.soon_over()

    def _known(self) -> set[tuple[int, int]]:
        """The claims that are running here, or ended and not written yet, or cannot be written."""
        return {*self._runs.in_flight, *self._finisher.keys, *self.poller.unwritten}

    @property
    def runs(self) -> Runs:
        """What it has in hand."""
        return self._runs

    @property
    def store(self) -> Store:
        """The store that holds its jobs."""
        return self._app.store

    def facts(self) -> dict[str, Any]:
        """How it works, for `rowlock workers`."""
        facts = {"pools": self._runs.facts()}
        return facts | ({"residents": self._residents.seconds} if self._residents.seconds else {})

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """Give back what still runs, write what is left, say goodbye."""
        with self._turn:
            self._over = True
        self._runs.give_back()
        self._runs.close()  # after that: what a pool cuts off has no say any more
        written = any(self._write_the_rest() for _ in range(_LAST_TRIES))
        self._stop = self._stop_now = False  # it may run again
        self.poller.running = False
        self.poller.deafen()
        self._heartbeat.leave(retire=written)  # else retiring would give back what is done: better the lease
        self._residents.close()
        log.debug("worker ended: %s", self._finisher.tally)

    def _write_the_rest(self) -> bool:
        """Write all outcomes that are left; False if the store cannot be used now."""
        try:
            self._finisher.count_written()
            while True:
                batch = self._finisher.take(self.id, flush=True)
                if not (batch.outcomes or batch.reports or batch.minutes):
                    return True
                got = self.poller.exchange(0, batch.outcomes, batch.reports, batch.minutes)
                self._finisher.delivered(got.lost, got.refused)
        except StoreError as error:
            log.error("the last outcomes could not be written: %s", error)  # noqa: TRY400
            return False
