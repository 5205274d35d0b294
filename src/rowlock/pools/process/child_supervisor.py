"""One slot of a process pool: a thread that keeps a child process, sends it runs and reads its messages.

Only this thread talks with the child; other threads wake it, or kill the child.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Protocol

import msgspec

from rowlock.endings import Event, budget, ended
from rowlock.execution.context import current
from rowlock.headline import describe
from rowlock.job import Ending, Outcome
from rowlock.pools.base import Ended, Run
from rowlock.pools.process import log_forwarding
from rowlock.pools.process.messages import (
    AskStack,
    AskUnwrittenReport,
    ChildPlan,
    ClaimChanged,
    LogRecord,
    Ready,
    Reported,
    RunJobs,
    RunsEnded,
    Shutdown,
    StackReply,
    StartFailed,
    ToParent,
    UnwrittenReport,
)
from rowlock.pools.process.spawn import Child, ChildEnded, why_not_ready
from rowlock.retry import DEFAULT, Retry

log = logging.getLogger("rowlock.process")

STOP_SECONDS = 2.0  # seconds that a run may take to stop after it was told that it is cancelled or lost
SHUTDOWN_SECONDS = 5.0  # seconds that a child may take to end: residents are torn down
WAIT_BEHIND_SECONDS = 0.05  # seconds that quick runs may wait behind one that proves slow
_UNSURE_SECONDS, _RUNNING_SECONDS, _IDLE_SECONDS = 0.05, 0.5, 5.0  # the longest waits between two looks
_FIRST_RESTART_SECONDS, _LONGEST_RESTART_SECONDS = 1.0, 30.0  # seconds between attempts to start a child
START_ATTEMPTS = 3  # after so many of them a slot counts as stuck


class CannotStart(Exception):
    """A child could not get ready; the message says why, and `trace` where."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


class Pool(Protocol):
    """What a supervisor asks of its pool."""

    plan: ChildPlan
    max_jobs: float
    lock: threading.Lock
    closed: threading.Event

    def take(self, supervisor: ChildSupervisor) -> list[Run]:
        """The next runs for this supervisor, which are then in its `runs`."""
        ...

    def put_back(self, runs: Sequence[Run]) -> None:
        """Runs that go to another child, ahead of those that wait."""
        ...

    def done(self, ended: Ended) -> None:
        """Runs have ended, each with its outcome."""
        ...

    def ready(self, residents: dict[str, float], error: CannotStart | None) -> None:
        """A supervisor's first child is ready, or will never be."""
        ...


class ChildSupervisor:
    """`runs` and `child` belong to whoever holds the pool's lock; the rest to the supervisor's thread."""

    def __init__(self, number: int, pool: Pool) -> None:
        self.name = f"rowlock-child-{number}"
        self._pool = pool
        self.runs: dict[int, Run] = {}  # what the child has, by number, in this order
        self.child: Child | None = None
        self.idle = False  # its child waits for work
        self.has_slow_run = False  # its child is in a run that turned out slow: nothing should wait behind it
        self.failing = 0  # attempts to start a child, since the last that went well
        self._next = 1
        self._served = 0  # how many runs this child was given
        self._abandoned: set[Run] = set()
        self._changed: dict[int, float] = {}  # when a run was told that it is cancelled or lost
        self._stack_asked = False
        self.stacks: dict[Run, str] = {}
        self.answered = threading.Event()
        self._wake_sent = False
        self._wake_signal, self._wake_pipe = multiprocessing.Pipe(duplex=False)
        self.thread = threading.Thread(target=self._keep_child, name=self.name, daemon=True)

    # -- for others, with the pool's lock held -----------------------------------------------------

    @property
    def room(self) -> float:
        """How many more runs this child may be given before it is replaced."""
        return self._pool.max_jobs - self._served if self.child is not None else 0

    def add(self, run: Run) -> None:
        """A run for the child; the supervisor's thread sends it."""
        self.runs[self._next] = run
        self._next += 1
        self._served += 1

    def take_back(self) -> list[Run]:
        """The runs that the child has not begun; it will not."""
        if self.child is None or not self.runs:
            return []
        begun = self.child.status.take_back(self._next)
        taken = [number for number in self.runs if number > begun]
        self._served -= len(taken)
        return [self.runs.pop(number) for number in taken]

    def ring(self) -> None:
        """Wake the supervisor's thread."""
        if not self._wake_sent:
            self._wake_sent = True
            self._wake_pipe.send_bytes(b".")

    def ask_stack(self) -> None:
        """Ask the child for the stack of its run; `answered` is set when it has come."""
        self.stacks.clear()
        self.answered.clear()
        self._stack_asked = True
        self.ring()

    def abandon(self, number: int) -> list[Run]:
        """Somebody else has decided on this run: its child has to go; returns what waited behind it."""
        self._abandoned.add(self.runs[number])
        return self.stop(number)

    def stop(self, number: int) -> list[Run]:
        """Kill the child if it is in this very run; returns what waited behind it."""
        waiting = self.take_back()  # so that it cannot be in another run by the time it is killed
        if self.child is not None and self.child.status.look()[0] == number:
            self.child.kill()
        return waiting

    def kill(self) -> None:
        """End the child at once, whatever it does."""
        if self.child is not None:
            self.child.kill()

    # -- the supervisor's thread --------------------------------------------------------------------

    def _keep_child(self) -> None:
        try:
            self._pool.ready(self._start_child(), None)
        except BaseException as error:
            cannot = error if isinstance(error, CannotStart) else CannotStart(repr(error), describe(error))
            self._pool.ready({}, cannot)
            return
        try:
            self._serve()
            while not self._pool.closed.is_set():
                try:
                    self._start_child()
                except CannotStart as error:
                    self._log_start_failure(error)
                else:
                    self.failing = 0
                    self._serve()
        except BaseException:
            log.exception("the thread that keeps %s cannot go on", self.name)
            self.failing = START_ATTEMPTS
        finally:
            self.kill()

    def _log_start_failure(self, error: CannotStart) -> None:
        if self._pool.closed.is_set():
            return
        self.failing += 1
        pause = min(_LONGEST_RESTART_SECONDS, _FIRST_RESTART_SECONDS * 2.0 ** (self.failing - 1))
        log.error(
            "no child process can be started, again in %g s: %s%s",
            pause,
            error,
            f"\n{error.trace}" if error.trace else "",
        )
        self._pool.closed.wait(pause)

    def _start_child(self) -> dict[str, float]:
        """Start a child and wait until it is ready."""
        try:
            child = Child(self._pool.plan, self.name)
        except Exception as error:
            raise CannotStart(f"{type(error).__name__}: {error}") from error
        with self._pool.lock:
            self.child, self._served = child, 0
        try:
            while True:
                message = self._next_message(child, _IDLE_SECONDS)
                if self._pool.closed.is_set():
                    child.kill()
                    raise CannotStart("told to end before it was ready")
                if isinstance(message, Ready):
                    return message.residents
                if isinstance(message, StartFailed):
                    raise CannotStart(message.reason, message.trace)
                self._handle(child, message)
        except (ChildEnded, CannotStart) as error:
            with self._pool.lock:
                self.child = None
            how = child.reap()
            if isinstance(error, CannotStart):
                raise
            raise CannotStart(why_not_ready(how)) from None

    def _serve(self) -> None:
        """Send runs to the child and read its messages, until it has ended."""
        child = self.child
        assert child is not None
        try:
            while True:
                if self._pool.closed.is_set() or (not self.runs and self.room <= 0):
                    self._shut_down(child)
                    return
                self._send_runs(child)
                self._send_changes(child)
                self._handle(child, self._next_message(child, self._wait_seconds()))
                self._check_progress(child)
        except ChildEnded:
            pass  # `_after_exit` finds out how it ended, and what that costs
        finally:
            self._after_exit(child)

    def _next_message(self, child: Child, seconds: float) -> ToParent | None:
        """The child's next message, or None if time is up or it was woken; raises `ChildEnded`."""
        ready = wait([child.incoming, child.sentinel, self._wake_signal], seconds)
        if self._wake_signal in ready:
            with self._pool.lock:
                self._wake_signal.recv_bytes()
                self._wake_sent = False
        if child.incoming in ready:
            return child.receive()
        if not child.alive:  # its pipe may still be open: what it forked holds the other end
            raise ChildEnded
        return None

    def _shut_down(self, child: Child) -> None:
        """Let it end in good order, unless it still runs something: then the pool is closed."""
        if self.runs:
            self._check_progress(child)
            child.kill()
            return
        child.send(Shutdown())
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._handle(child, self._next_message(child, min(left, _RUNNING_SECONDS)))
        log.warning(
            "%s (process %s) did not end within %g s; it is killed", self.name, child.pid, SHUTDOWN_SECONDS
        )
        child.kill()

    # -- messages to the child ---------------------------------------------------------------------

    def _send_runs(self, child: Child) -> None:
        first = self._next
        runs = self._pool.take(self)
        if runs:
            child.send(RunJobs(first, [run.claim for run in runs]))

    def _send_changes(self, child: Child) -> None:
        """Tell runs that they are cancelled or lost, and kill the child if they do not stop."""
        moment = time.monotonic()
        for number, run in list(self.runs.items()):
            context = run.context
            if not (context.cancelled or context.lost):
                continue
            if number not in self._changed:
                self._changed[number] = moment
                child.send(ClaimChanged(number, context.lost))
            elif (
                context.began is not None
                and moment > max(self._changed[number], context.began) + STOP_SECONDS
            ):
                log.warning(
                    "%s did not stop within %g s: process %s is killed",
                    *(run.claim.title, STOP_SECONDS, child.pid),
                )
                self._changed[number] = moment  # it takes a moment to die: say it once
                with self._pool.lock:
                    waiting = self.stop(number)
                self._pool.put_back(waiting)
        if self._stack_asked:
            self._stack_asked = False
            child.send(AskStack())

    def _wait_seconds(self) -> float:
        if not self.runs:
            return _IDLE_SECONDS
        number = next(iter(self.runs), 0)
        unsure = len(self.runs) > 1 or number in self._changed
        run = self.runs.get(number)
        return _UNSURE_SECONDS if unsure or run is None or run.context.began is None else _RUNNING_SECONDS

    # -- messages of the child ---------------------------------------------------------------------

    def _handle(self, child: Child, message: ToParent | None) -> None:
        if isinstance(message, RunsEnded):
            self.has_slow_run = False
            child.status.heard = message.ended[-1].number
            with self._pool.lock:
                runs = [self.runs.pop(one.number, None) for one in message.ended]
            ended = []
            for one, run in zip(message.ended, runs, strict=True):
                self._changed.pop(one.number, None)
                if run is None or run in self._abandoned:
                    continue
                if one.report is not None:
                    run.context.hear(one.report)
                ended.append((run, one.outcome))
            self._pool.done(ended)  # all at once: the worker writes them together
        elif isinstance(message, Reported):
            if (run := self.runs.get(message.number)) is not None:
                run.context.hear(message.report)
        elif isinstance(message, AskUnwrittenReport):
            run = self.runs.get(message.number)
            child.send(UnwrittenReport(message.number, None if run is None else run.context.unwritten()))
        elif isinstance(message, LogRecord):
            run = self.runs.get(message.number or 0)
            token = current.set(None if run is None else run.context)
            with suppress(Exception):  # of somebody's filter: no reason to stop
                log_forwarding.receive(message.record)
            current.reset(token)
        elif isinstance(message, StackReply):
            if (run := self.runs.get(message.number)) is not None:
                self.stacks[run] = message.text
            self.answered.set()

    def _check_progress(self, child: Child) -> None:
        """Take note of which run has begun, and free those that wait behind it for too long."""
        number, began = child.status.look()
        run = self.runs.get(number)
        if run is None:
            return
        if run.context.began is None:
            run.context.began_at(began)
        for earlier, one in list(self.runs.items()):
            if earlier < number and one.context.began is not None:
                one.context.began_at(
                    None
                )  # it has ended, and its outcome is on the way: its timeout no longer counts
        if len(self.runs) > 1 and time.monotonic() - began > WAIT_BEHIND_SECONDS:
            with self._pool.lock:
                self.has_slow_run = True
                waiting = self.take_back()
            self._pool.put_back(waiting)

    # -- when the child has ended --------------------------------------------------------------------

    def _after_exit(self, child: Child) -> None:
        """Charge the run that the child was in, and let the others run elsewhere."""
        with self._pool.lock:
            self.idle = self.has_slow_run = False
        try:
            while child.incoming.poll(0):  # what it sent before it died
                self._handle(child, child.receive())
        except ChildEnded:
            pass  # everything was read; how it ended is asked below
        begun, began = child.status.look()
        with self._pool.lock:
            self.child = None
            if self._pool.closed.is_set():  # what it ran is the worker's to give back
                left: dict[int, Run] = {}
            else:
                left, self.runs = self.runs, {}
        how = child.reap()
        self._changed.clear()
        self.answered.set()
        abandoned, self._abandoned = self._abandoned, set()
        again = []
        for number, run in left.items():
            if run in abandoned:
                continue
            if number == begun or (number < begun and _may_run_once(run)):
                run.context.began_at(began)
                self._pool.done([(run, _after_death(run, how))])
            else:
                run.context.began_at(None)
                again.append(run)
        self._pool.put_back(again)


def _may_run_once(run: Run) -> bool:
    return budget(run.claim.max_attempts, _retry(run)) == 1


def _retry(run: Run) -> Retry:
    return run.task.retry if run.task is not None else DEFAULT


def _after_death(run: Run, how: str) -> Outcome:
    """What becomes of the run during which its child died."""
    claim, context = run.claim, run.context
    facts = {"lost": context.lost, "cancel_requested": context.cancelled}
    outcome = ended(claim, Event.CHILD_DIED, _retry(run), how, **facts)
    if outcome.ending is Ending.RETRY:
        log.warning(
            "%s, attempt %d: %s; again in %.1f s",
            *(claim.title, claim.failures + 1, how, outcome.delay or 0.0),
        )
    elif outcome.ending is Ending.FAILED:
        log.error("%s failed: %s", claim.title, outcome.error)
    return msgspec.structs.replace(
        outcome,
        run_seconds=max(0.0, time.monotonic() - (context.began or math.inf)),
        wait_seconds=max(0.0, claim.taken - claim.due),
    )
