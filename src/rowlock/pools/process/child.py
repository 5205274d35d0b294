"""A child process of a process pool: runs what its parent sends, one job at a time, and reports.

It touches the queue only through a task's own `ctx.transaction()`; all else is the parent's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

from rowlock.error_text import describe, storable
from rowlock.errors import ConfigurationError
from rowlock.execution.context import JobContext, current
from rowlock.execution.execute import Executor
from rowlock.execution.residents import Residents
from rowlock.execution.stacks import stack_of
from rowlock.job import Claim
from rowlock.pools.process import log_forwarding, messages
from rowlock.stores import base
from rowlock.workload import App, Workload

_PR_SET_PDEATHSIG = 1
_REPORT_INTERVAL_SECONDS = 0.02
_PARENT_CHECK_SECONDS = 5.0


def main(incoming: Connection, outgoing: Connection, plan: messages.ChildPlan) -> None:
    """Import the app, load residents, run what the parent sends, and end."""
    base.in_pool_child = True
    _leave_signals_to_the_parent()
    _die_with_the_parent(plan.parent)
    sender = MessageSender(outgoing)
    runs = ChildRuns(sender)
    threading.Thread(
        target=_receive_messages, args=(incoming, runs, plan.parent), name="rowlock-receive", daemon=True
    ).start()
    residents = Residents()
    try:
        runs.app = app = _import_app(plan)
        runs.workload = _workload_of(app, plan)
        log_forwarding.forward(runs.log, plan.levels)
        residents.load([task for name in plan.tasks if (task := runs.workload.registry.find(name))])
    except BaseException as error:
        sender.send(messages.StartFailed(storable(_in_short(error)), storable(describe(error))))
        return
    sender.send(messages.Ready(residents.seconds))
    reporting = threading.Thread(target=runs.send_reports, name="rowlock-report", daemon=True)
    reporting.start()
    runs.work(residents)
    residents.close()
    app.close()
    reporting.join()  # what a thread still holds when the process ends, DuckDB 2.0 lists on stderr as leaked


def _in_short(error: BaseException) -> str:
    return str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"


def _leave_signals_to_the_parent() -> None:
    """Ctrl-C and a supervisor's SIGTERM reach the whole group, and it is for the parent to say what ends.

    Handlers that do nothing, rather than SIG_IGN, which programs that a task starts would inherit.
    """
    with suppress(Exception):  # no stderr
        faulthandler.enable(all_threads=False)  # says where a SIGSEGV struck
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):  # blocked from before this process began
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _die_with_the_parent(parent: int) -> None:
    """Linux kills it with its parent, even while the interpreter is held; elsewhere a thread notices."""
    if sys.platform == "linux":
        with suppress(Exception):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)


def _import_app(plan: messages.ChildPlan) -> Any:
    name, _, attribute = plan.app.partition(":")
    with suppress(OSError):  # as it was when the worker's own app was made
        os.chdir(plan.home)
    module = importlib.import_module(name)
    try:
        app: Any = attrgetter(attribute)(module)
    except AttributeError:
        raise ConfigurationError(f"{name} has no {attribute!r} when a child process imports it") from None
    app.load_tasks()
    with suppress(OSError):
        os.chdir(plan.folder)
    if app.store.url != plan.database:
        raise ConfigurationError(
            f"{plan.app} uses {plan.database} in the worker but {app.store.url} when a child process imports "
            "it: its URL must not depend on what the worker's program does first"
        )
    return app


def _workload_of(app: Any, plan: messages.ChildPlan) -> Workload:
    workload: Workload = app.workload(consumer=plan.consumer)
    missing = [task for task in plan.tasks if workload.registry.find(task) is None]
    if missing:
        raise ConfigurationError(
            f"a child process that imports {plan.app} does not find the tasks {', '.join(missing)}: name the "
            "modules that register them in include=[...]"
        )
    return workload


def _receive_messages(incoming: Connection, runs: ChildRuns, parent: int) -> None:
    """Receive the parent's messages; end the process when the parent is gone."""
    try:
        while True:
            while not incoming.poll(_PARENT_CHECK_SECONDS):
                if sys.platform != "win32" and os.getppid() != parent:
                    os._exit(1)  # somebody who inherited the pipe's other end keeps it open
            if not runs.receive(messages.for_child.decode(incoming.recv_bytes())):
                return
    except (EOFError, OSError):
        os._exit(1)


class MessageSender:
    """Sends to the parent, from any thread; what a signal handler sends meanwhile is sent after."""

    def __init__(self, outgoing: Connection) -> None:
        self._outgoing = outgoing
        self._lock = threading.RLock()
        self._unsent: deque[messages.ToParent] = deque()
        self._is_sending = False

    def send(self, message: messages.ToParent) -> None:
        with self._lock:
            self._unsent.append(message)
            if self._is_sending:
                return
            self._is_sending = True
            try:
                while self._unsent:
                    self._outgoing.send_bytes(messages.encode(self._unsent.popleft()))
            except OSError:  # the parent is gone
                os._exit(1)
            finally:
                self._is_sending = False


class ChildRuns:
    """The job that this child runs; it gets the next when the parent has the outcome.

    Entered by the run's context while a transaction of it opens: no report is sent meanwhile.
    """

    def __init__(self, sender: MessageSender) -> None:
        self._sender = sender
        self._process = os.getpid()
        self._main = threading.get_ident()
        self._jobs: queue.SimpleQueue[JobContext | None] = queue.SimpleQueue()
        self.app: App  # once it is imported
        self.workload: Workload
        self._current: JobContext | None = None
        self._busy = threading.Event()
        self._ended = False  # nothing more will come
        self._reports = threading.Lock()  # held while a report is taken and sent
        self._asked: deque[threading.Event] = deque()  # for unwritten reports; answered in the same order

    # -- in the main thread ----------------------------------------------------------------------

    def work(self, residents: Residents) -> None:
        """Run what the parent sends until it says that nothing more will come."""
        executor = Executor(self.app.hooks, self.app.settings.max_payload_bytes, residents)
        while (context := self._jobs.get()) is not None:
            self._busy.set()
            outcome = executor.execute(self.workload.registry.find(context.task), context)
            if os.getpid() != self._process:  # a task forked, and its child returned from the task
                os._exit(0)
            self._busy.clear()
            with self._reports:  # none is sent after the outcome
                self._current = None
                if report := context.take_report():
                    self._sender.send(messages.Reported(report))
            self._sender.send(messages.RunEnded(outcome))
        self._ended = True
        self._busy.set()

    # -- in the reporting thread --------------------------------------------------------------------

    def send_reports(self) -> None:
        """While a job runs, send its progress and log lines; ends when nothing more will come."""
        while self._busy.wait() and not self._ended:
            time.sleep(_REPORT_INTERVAL_SECONDS)
            with self._reports:
                if self._current is not None and (report := self._current.take_report()):
                    self._sender.send(messages.Reported(report))

    # -- in the receiving thread -------------------------------------------------------------------

    def receive(self, message: object) -> bool:
        """Act on a message of the parent; False if it was the last."""
        context = self._current
        if isinstance(message, messages.RunJob):
            self._begin(message.claim)
        elif isinstance(message, messages.ClaimChanged) and context is not None:
            context.lost = context.lost or message.lost
            context.cancelled = context.cancelled or not message.lost
        elif isinstance(message, messages.UnwrittenReport):
            if message.report is not None and context is not None:
                context.give_back(message.report)
            self._asked.popleft().set()
        elif isinstance(message, messages.AskStack):
            # In a thread of its own: the receiving thread must not wait for the parent to read.
            threading.Thread(target=self._send_stack, name="rowlock-stack", daemon=True).start()
        elif isinstance(message, messages.Shutdown):
            self._jobs.put(None)
            return False
        return True

    def _begin(self, claim: Claim) -> None:
        """Here rather than in the main thread: what the parent says next is about this run."""
        task = self.workload.registry.find(claim.task)
        timeout = None if task is None else task.timeout
        context = JobContext(claim, timeout, store=self.workload.store, reporting=self)
        self._current = context
        self._jobs.put(context)

    def _send_stack(self) -> None:
        frame = sys._current_frames().get(self._main)
        self._sender.send(messages.StackReply("" if frame is None else storable(stack_of(frame))))

    # -- in any thread -----------------------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        """A log record, and whether it belongs to the run."""
        context = current.get()
        self._sender.send(messages.LogRecord(context is not None and context is self._current, record))

    def __enter__(self) -> None:
        """A run's transaction opens: all that it has reported so far is to commit with it.

        What the parent has not written yet is given back. It answers as long as it knows of this run.
        """
        self._reports.acquire()
        try:
            if self._current is not None and self._current.has_report:
                given_back = threading.Event()
                self._asked.append(given_back)
                self._sender.send(messages.AskUnwrittenReport())
                given_back.wait()
        except BaseException:  # of a signal handler of the task's
            self._reports.release()
            raise

    def __exit__(self, *_: object) -> None:
        """The transaction is open."""
        self._reports.release()
