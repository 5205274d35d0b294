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
from rowlock.pools.process.spawn import Child, why_not_ready

log = logging.getLogger("rowlock.process")

STOP_SECONDS = 2.0  # that a run may take to stop after it was told that it is cancelled or lost
SHUTDOWN_SECONDS = 5.0  # that a child may take to end: residents are torn down
_LOOK_SECONDS = 0.5  # between looks at whether the run is lost or late, and its child lives
_FIRST_RESTART_SECONDS, _LONGEST_RESTART_SECONDS = 1.0, 30.0  # between attempts to start a child
START_ATTEMPTS = 3  # after so many of them a slot counts as stuck


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
        self.ready: Future[messages.Ready | messages.StartFailed] = Future()  # what the first child says
        self.failing = 0  # attempts to start a child, since the last that went well
        self._kill_at: float | None = None  # when the child is killed, if it has not stopped as it was told
        self._stack: Future[str] = Future()  # of the run, when somebody has asked
        self._stack_asked = False  # and the child was not told yet
        self._wake_sent = False
        self._wake_signal, self._wake_pipe = multiprocessing.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._keep_children, name=self._name, daemon=True)

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

    def _keep_children(self) -> None:
        """One child after the other; if the first cannot get ready, none follows."""
        reason = "told to end before it was ready"
        try:
            while not self._closed.is_set():
                failure = self._keep_one()
                if failure is None or self._closed.is_set():
                    continue
                if not self.ready.done():
                    self.ready.set_result(failure)
                    return
                self._pause_after(failure)
        except BaseException as error:
            log.exception("the thread that keeps %s cannot go on", self._name)
            self.failing = START_ATTEMPTS
            reason = f"{type(error).__name__}: {error}"
        finally:
            self.kill()
            if not self.ready.done():
                self.ready.set_result(messages.StartFailed(reason))

    def _pause_after(self, failure: messages.StartFailed) -> None:
        self.failing += 1
        pause = min(_LONGEST_RESTART_SECONDS, _FIRST_RESTART_SECONDS * 2.0 ** (self.failing - 1))
        said = "\n".join(filter(None, (failure.reason, failure.trace)))
        log.error("no child process can be started, again in %g s: %s", pause, said)
        self._closed.wait(pause)

    def _keep_one(self) -> messages.StartFailed | None:
        """Start a child, send it runs and read its messages until it has ended.

        Returns what kept it from getting ready, if anything did.
        """
        try:
            child = Child(self._plan, self._name)
        except Exception as error:
            return messages.StartFailed(f"{type(error).__name__}: {error}")
        with self._lock:
            self._child = child
        self._kill_at = None
        try:
            while not isinstance(child.started, messages.StartFailed):
                # What it is in, the worker has given back.
                if self._closed.is_set() and (child.started is None or self.run is not None):
                    child.kill()
                    break
                if child.started is not None:
                    self._send_messages(child)
                self._handle(child, self._next_message(child))
        except EOFError:
            pass  # `_after_exit` finds out how it ended, and what that costs
        finally:
            how = self._after_exit(child)
        if child.started is None:
            return messages.StartFailed(why_not_ready(how))
        return child.started if isinstance(child.started, messages.StartFailed) else None

    def _next_message(self, child: Child) -> messages.ToParent | None:
        """The child's next message; None: time is up, or it was woken. Raises `EOFError` at its end."""
        ready = wait([child.incoming, child.process.sentinel, self._wake_signal], _LOOK_SECONDS)
        if self._wake_signal in ready:
            with self._lock:
                self._wake_signal.recv_bytes()
                self._wake_sent = False
        if child.incoming in ready:
            return child.receive()
        if not child.process.is_alive():  # its pipe may still be open: what it forked holds the other end
            raise EOFError
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
        if isinstance(message, messages.StartFailed):
            child.started = message
        elif isinstance(message, messages.Ready):
            child.started = message
            self.failing = 0
            if not self.ready.done():
                self.ready.set_result(message)
        elif isinstance(message, messages.LogRecord):
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

    def _after_exit(self, child: Child) -> str:
        """Read what the child sent before it died, and charge its run; returns how it ended."""
        with suppress(EOFError, OSError):  # everything was read
            while child.incoming.poll(0):
                self._handle(child, child.receive())
        with self._lock:
            self._child = None  # nobody can kill it any more
        how = child.reap()
        if (run := self.run) is not None:
            asked, lost = run.context.cancelled, run.context.lost
            outcome = ended(run.claim, Event.CHILD_DIED, run.retry, how, cancel_requested=asked, lost=lost)
            self._end_run(run, outcome if run.settled else finished(run.context, outcome))
        return how
