"""One slot of a process pool: a thread that keeps a child process, sends it runs and reads its messages.

Only this thread talks with the child; other threads wake it, or kill the child.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import wait

from rowlock.claim_outcomes import ended
from rowlock.endings import Event
from rowlock.execution.context import current
from rowlock.execution.execute import finished
from rowlock.job import Outcome
from rowlock.pools.base import Run, Runs
from rowlock.pools.process import log_forwarding, messages
from rowlock.pools.process.spawn import Child, ChildEnded, why_not_ready

log = logging.getLogger("rowlock.process")

STOP_SECONDS = 2.0  # that a run may take to stop after it was told that it is cancelled or lost
SHUTDOWN_SECONDS = 5.0  # that a child may take to end: residents are torn down
_LOOK_SECONDS = 0.5  # between looks at whether the run is lost or late, and its child lives
_FIRST_RESTART_SECONDS, _LONGEST_RESTART_SECONDS = 1.0, 30.0  # between attempts to start a child
START_ATTEMPTS = 3  # after so many of them a slot counts as stuck


class CannotStart(Exception):
    """A child could not get ready; the message says why, and `trace` where."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


class ChildSupervisor:
    """Takes the runs that wait, one after the other; `run` and `_child` change under its lock."""

    def __init__(
        self,
        number: int,
        runs: Runs,
        next_waiting: Callable[[], Run | None],
        closed: threading.Event,
        max_jobs: float,
    ) -> None:
        self._name = f"rowlock-child-{number}"
        self._runs = runs
        self._next_waiting = next_waiting
        self._closed = closed
        self._max_jobs = max_jobs
        self._lock = threading.Lock()
        self.run: Run | None = None  # what the child is in
        self._child: Child | None = None
        self.ready: Future[dict[str, float]] = Future()  # the residents of the first child
        self.failing = 0  # attempts to start a child, since the last that went well
        self._kill_at: float | None = None  # when the child is killed, if it has not stopped as it was told
        self._stack: Future[str] = Future()  # of the run, when somebody has asked
        self._stack_asked = False  # and the child was not told yet
        self._wake_sent = False
        self._wake_signal, self._wake_pipe = multiprocessing.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._keep_child, name=self._name, daemon=True)

    # -- for other threads -------------------------------------------------------------------------

    def start(self, plan: messages.ChildPlan) -> None:
        """Start the first child; `ready` tells how that went."""
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

    def ask_stack(self) -> Future[str]:
        """Ask the child for the stack of its run; if its interpreter is held, no answer comes."""
        asked = self._stack = Future[str]()
        self._stack_asked = True
        self.ring()
        return asked

    def kill(self, run: Run | None = None) -> None:
        """End the child at once, whatever it does; or only if it is in this very run."""
        with self._lock:
            if self._child is not None and (run is None or run is self.run):
                self._child.kill()

    # -- the supervisor's thread --------------------------------------------------------------------

    def _keep_child(self) -> None:
        try:
            self.ready.set_result(self._start_child())
        except BaseException as error:
            self.ready.set_exception(error)
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
            self._child = child
        try:
            while True:
                message = self._next_message(child)
                if self._closed.is_set():
                    child.kill()
                    raise CannotStart("told to end before it was ready")
                if isinstance(message, messages.Ready):
                    return message.residents
                if isinstance(message, messages.StartFailed):
                    raise CannotStart(message.reason, message.trace)
                self._handle(child, message)
        except ChildEnded:
            raise CannotStart(why_not_ready(self._reap(child))) from None
        except CannotStart:
            self._reap(child)
            raise

    def _reap(self, child: Child) -> str:
        """How it ended; nobody can kill it any more."""
        with self._lock:
            self._child = None
        return child.reap()

    def _serve(self) -> None:
        """Send runs to the child and read its messages, until it has ended."""
        child = self._child
        assert child is not None
        self._kill_at = None
        try:
            while True:
                if self._closed.is_set() and self.run is not None:  # the worker has given it back
                    child.kill()
                    return
                self._send_messages(child)
                self._handle(child, self._next_message(child))
        except ChildEnded:
            pass  # `_after_exit` finds out how it ended, and what that costs
        finally:
            self._after_exit(child)

    def _next_message(self, child: Child) -> messages.ToParent | None:
        """The child's next message, or None if time is up or it was woken; raises `ChildEnded`."""
        ready = wait([child.incoming, child.process.sentinel, self._wake_signal], _LOOK_SECONDS)
        if self._wake_signal in ready:
            with self._lock:
                self._wake_signal.recv_bytes()
                self._wake_sent = False
        if child.incoming in ready:
            return child.receive()
        if not child.process.is_alive():  # its pipe may still be open: what it forked holds the other end
            raise ChildEnded
        return None

    # -- messages to the child ---------------------------------------------------------------------

    def _send_messages(self, child: Child) -> None:
        """Tell the child what is new: a run to begin, or that it has to stop."""
        if self._stack_asked:
            self._stack_asked = False
            child.send(messages.AskStack())
        if self._kill_at is not None:
            self._kill_if_late(child, self._kill_at)
        elif (run := self.run) is not None:
            if run.context.cancelled or run.context.lost:
                self._kill_at = time.monotonic() + STOP_SECONDS
                child.send(messages.ClaimChanged(run.context.lost))
        elif self._closed.is_set() or child.served >= self._max_jobs:
            self._kill_at = time.monotonic() + SHUTDOWN_SECONDS
            child.send(messages.Shutdown())
        else:
            self._send_run(child)

    def _send_run(self, child: Child) -> None:
        """Send the next run that may begin, if there is one."""
        while (run := self._next_waiting()) is not None:
            if (outcome := self._runs.ended_before_start(run)) is not None:
                self._runs.settle(run, outcome)
                continue
            with self._lock:
                self.run = run
            child.served += 1
            run.context.began_at(time.monotonic())
            child.send(messages.RunJob(run.claim))
            return

    def _kill_if_late(self, child: Child, deadline: float) -> None:
        """Kill the child if it, or its run, has not stopped in time."""
        if time.monotonic() < deadline:
            return
        run = self.run
        who, seconds = (self._name, SHUTDOWN_SECONDS) if run is None else (run.claim.title, STOP_SECONDS)
        log.warning("%s did not stop within %g s: process %s is killed", who, seconds, child.process.pid)
        self._kill_at = math.inf  # it takes a moment to die: say it once
        child.kill()

    # -- messages of the child ---------------------------------------------------------------------

    def _handle(self, child: Child, message: messages.ToParent | None) -> None:
        run = self.run
        if isinstance(message, messages.LogRecord):
            token = current.set(run.context if run is not None and message.of_run else None)
            with suppress(Exception):  # of somebody's filter: no reason to stop
                log_forwarding.receive(message.record)
            current.reset(token)
        elif isinstance(message, messages.StackReply):
            if not self._stack.done():
                self._stack.set_result(message.text)
        elif run is None:
            return
        elif isinstance(message, messages.RunEnded):
            if message.report is not None:
                run.context.add_report(message.report)
            self._end_run(run, message.outcome)
        elif isinstance(message, messages.Reported):
            run.context.add_report(message.report)
        elif isinstance(message, messages.AskUnwrittenReport):
            child.send(messages.UnwrittenReport(run.context.unwritten()))

    def _end_run(self, run: Run, outcome: Outcome) -> None:
        with self._lock:
            self.run = None
        self._kill_at = None
        if not run.settled:  # an abandoned run has been decided on
            self._runs.settle(run, outcome)

    # -- when the child has ended --------------------------------------------------------------------

    def _after_exit(self, child: Child) -> None:
        """Read what the child sent before it died, and charge the run that it was in."""
        with suppress(ChildEnded, OSError):  # everything was read
            while child.incoming.poll(0):
                self._handle(child, child.receive())
        how = self._reap(child)
        if (run := self.run) is not None:
            asked, lost = run.context.cancelled, run.context.lost
            outcome = ended(run.claim, Event.CHILD_DIED, run.retry, how, cancel_requested=asked, lost=lost)
            self._end_run(run, outcome if run.settled else finished(run.context, outcome))
