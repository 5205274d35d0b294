"""One slot of a process pool: a thread that keeps a child process, sends it runs and reads its messages.

Only this thread talks with the child; other threads wake it, or kill the child.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import queue
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import wait

from rowlock.claim_outcomes import ended
from rowlock.endings import Event
from rowlock.error_text import describe
from rowlock.execution.context import current
from rowlock.execution.execute import finished
from rowlock.job import Outcome
from rowlock.pools.base import Run, Runs
from rowlock.pools.process import log_forwarding, messages
from rowlock.pools.process.spawn import Child, ChildEnded, why_not_ready

log = logging.getLogger("rowlock.process")

STOP_SECONDS = 2.0  # that a run may take to stop after it was told that it is cancelled or lost
SHUTDOWN_SECONDS = 5.0  # that a child may take to end: residents are torn down
_CHANGED_SECONDS, _RUNNING_SECONDS, _IDLE_SECONDS = 0.05, 0.5, 5.0  # the longest waits between two looks
_FIRST_RESTART_SECONDS, _LONGEST_RESTART_SECONDS = 1.0, 30.0  # between attempts to start a child
START_ATTEMPTS = 3  # after so many of them a slot counts as stuck


class CannotStart(Exception):
    """A child could not get ready; the message says why, and `trace` where."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


Started = dict[str, float] | CannotStart  # the first child's residents, or why there is none


class ChildSupervisor:
    """Takes the runs that wait, one after the other; `run` and `child` change under its lock."""

    def __init__(
        self,
        number: int,
        runs: Runs,
        waiting: deque[Run],
        closed: threading.Event,
        started: queue.SimpleQueue[Started],
        max_jobs: float,
    ) -> None:
        self._name = f"rowlock-child-{number}"
        self._runs = runs
        self._waiting = waiting
        self._closed = closed
        self._started = started
        self._max_jobs = max_jobs
        self._lock = threading.Lock()
        self.run: Run | None = None  # what the child is in
        self._child: Child | None = None
        self.idle = False  # its child waits for work
        self.failing = 0  # attempts to start a child, since the last that went well
        self._served = 0  # how many runs this child was given
        self._changed_at: float | None = None  # when the run was told that it is cancelled or lost
        self._stack_asked = False
        self._stacks: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._wake_sent = False
        self._wake_signal, self._wake_pipe = multiprocessing.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._keep_child, name=self._name, daemon=True)

    # -- for other threads -------------------------------------------------------------------------

    def start(self, plan: messages.ChildPlan) -> None:
        """Start the first child; how that went is put into `started`."""
        self._plan = plan
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the end of its thread."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def ring(self) -> None:
        """Wake the supervisor's thread."""
        with self._lock:
            if not self._wake_sent:
                self._wake_sent = True
                self._wake_pipe.send_bytes(b".")

    def ask_stack(self) -> None:
        """Ask the child for the stack of its run."""
        while not self._stacks.empty():
            self._stacks.get()
        self._stack_asked = True
        self.ring()

    def stack(self, seconds: float) -> str:
        """The answer; empty if none comes in time."""
        with suppress(queue.Empty):
            return self._stacks.get(timeout=seconds)
        return ""

    def kill(self, run: Run | None = None) -> None:
        """End the child at once, whatever it does; or only if it is in this very run."""
        with self._lock:
            if self._child is not None and (run is None or run is self.run):
                self._child.kill()

    # -- the supervisor's thread --------------------------------------------------------------------

    def _keep_child(self) -> None:
        try:
            self._started.put(self._start_child())
        except BaseException as error:
            cannot = error if isinstance(error, CannotStart) else CannotStart(repr(error), describe(error))
            self._started.put(cannot)
            return
        try:
            self._serve()
            while not self._closed.is_set():
                try:
                    self._start_child()
                except CannotStart as error:
                    self._log_start_failure(error)
                else:
                    self.failing = 0
                    self._serve()
        except BaseException:
            log.exception("the thread that keeps %s cannot go on", self._name)
            self.failing = START_ATTEMPTS
        finally:
            self.kill()

    def _log_start_failure(self, error: CannotStart) -> None:
        if self._closed.is_set():
            return
        self.failing += 1
        pause = min(_LONGEST_RESTART_SECONDS, _FIRST_RESTART_SECONDS * 2.0 ** (self.failing - 1))
        log.error(
            "no child process can be started, again in %g s: %s%s",
            pause,
            error,
            f"\n{error.trace}" if error.trace else "",
        )
        self._closed.wait(pause)

    def _start_child(self) -> dict[str, float]:
        """Start a child and wait until it is ready."""
        try:
            child = Child(self._plan, self._name)
        except Exception as error:
            raise CannotStart(f"{type(error).__name__}: {error}") from error
        with self._lock:
            self._child, self._served = child, 0
        try:
            while True:
                message = self._next_message(child, _IDLE_SECONDS)
                if self._closed.is_set():
                    child.kill()
                    raise CannotStart("told to end before it was ready")
                if isinstance(message, messages.Ready):
                    return message.residents
                if isinstance(message, messages.StartFailed):
                    raise CannotStart(message.reason, message.trace)
                self._handle(child, message)
        except (ChildEnded, CannotStart) as error:
            with self._lock:
                self._child = None
            how = child.reap()
            if isinstance(error, CannotStart):
                raise
            raise CannotStart(why_not_ready(how)) from None

    def _serve(self) -> None:
        """Send runs to the child and read its messages, until it has ended."""
        child = self._child
        assert child is not None
        try:
            while True:
                if self.run is None and (self._closed.is_set() or self._served >= self._max_jobs):
                    self._shut_down(child)
                    return
                if self._closed.is_set():  # the worker has given back what it runs
                    child.kill()
                    return
                self._send_run(child)
                self._send_changes(child)
                self._handle(child, self._next_message(child, self._wait_seconds()))
        except ChildEnded:
            pass  # `_after_exit` finds out how it ended, and what that costs
        finally:
            self._after_exit(child)

    def _next_message(self, child: Child, seconds: float) -> messages.ToParent | None:
        """The child's next message, or None if time is up or it was woken; raises `ChildEnded`."""
        ready = wait([child.incoming, child.process.sentinel, self._wake_signal], seconds)
        if self._wake_signal in ready:
            with self._lock:
                self._wake_signal.recv_bytes()
                self._wake_sent = False
        if child.incoming in ready:
            return child.receive()
        if not child.process.is_alive():  # its pipe may still be open: what it forked holds the other end
            raise ChildEnded
        return None

    def _shut_down(self, child: Child) -> None:
        """Let it end in good order."""
        child.send(messages.Shutdown())
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._handle(child, self._next_message(child, min(left, _RUNNING_SECONDS)))
        log.warning(
            "%s (process %s) did not end within %g s; it is killed",
            *(self._name, child.process.pid, SHUTDOWN_SECONDS),
        )
        child.kill()

    # -- messages to the child ---------------------------------------------------------------------

    def _send_run(self, child: Child) -> None:
        """If the child has nothing to do, send it the next run that may begin."""
        while self.run is None:
            self.idle = not self._waiting
            try:
                run = self._waiting.popleft()
            except IndexError:
                self.idle = True
                if self._waiting:  # it came while nobody knew that this child is idle
                    continue
                return
            if (outcome := self._runs.ended_before_start(run)) is not None:
                self._runs.settle(run, outcome)
                continue
            self.idle = False
            with self._lock:
                self.run = run
            self._served += 1
            run.context.began_at(time.monotonic())
            child.send(messages.RunJob(run.claim))

    def _send_changes(self, child: Child) -> None:
        """Tell the run that it is cancelled or lost, and kill the child if it does not stop."""
        run, moment = self.run, time.monotonic()
        if self._stack_asked:
            self._stack_asked = False
            child.send(messages.AskStack())
        if run is None or not (run.context.cancelled or run.context.lost):
            return
        if self._changed_at is None:
            self._changed_at = moment
            child.send(messages.ClaimChanged(run.context.lost))
        elif moment > self._changed_at + STOP_SECONDS:
            log.warning(
                "%s did not stop within %g s: process %s is killed",
                *(run.claim.title, STOP_SECONDS, child.process.pid),
            )
            self._changed_at = math.inf  # it takes a moment to die: say it once
            child.kill()

    def _wait_seconds(self) -> float:
        if self.run is None:
            return _IDLE_SECONDS
        return _RUNNING_SECONDS if self._changed_at is None else _CHANGED_SECONDS

    # -- messages of the child ---------------------------------------------------------------------

    def _handle(self, child: Child, message: messages.ToParent | None) -> None:
        run = self.run
        if isinstance(message, messages.LogRecord):
            token = current.set(run.context if run is not None and message.of_run else None)
            with suppress(Exception):  # of somebody's filter: no reason to stop
                log_forwarding.receive(message.record)
            current.reset(token)
        elif isinstance(message, messages.StackReply):
            self._stacks.put(message.text)
        elif run is None:
            return
        elif isinstance(message, messages.RunEnded):
            self._end_run(message.outcome)
        elif isinstance(message, messages.Reported):
            run.context.add_report(message.report)
        elif isinstance(message, messages.AskUnwrittenReport):
            child.send(messages.UnwrittenReport(run.context.unwritten()))

    def _end_run(self, outcome: Outcome) -> None:
        with self._lock:
            run, self.run = self.run, None
        self._changed_at = None
        if run is not None and not run.settled:  # an abandoned run has been decided on
            self._runs.settle(run, outcome)

    # -- when the child has ended --------------------------------------------------------------------

    def _after_exit(self, child: Child) -> None:
        """Charge the run that the child was in."""
        self.idle = False
        try:
            while child.incoming.poll(0):  # what it sent before it died
                self._handle(child, child.receive())
        except ChildEnded:
            pass  # everything was read; how it ended is asked below
        with self._lock:
            self._child = None
        how = child.reap()
        if (run := self.run) is not None:
            asked, lost = run.context.cancelled, run.context.lost
            outcome = ended(run.claim, Event.CHILD_DIED, run.retry, how, cancel_requested=asked, lost=lost)
            self._end_run(outcome if run.settled else finished(run.context, outcome))
