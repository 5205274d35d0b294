"""A child process of a process pool: runs what its parent hands it, one job at a time, and reports.

It touches the queue only through a task's own `ctx.transaction()`; all else is the parent's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import math
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

from rowlock.errors import ConfigurationError
from rowlock.execution.context import JobContext, current
from rowlock.execution.execute import execute
from rowlock.execution.residents import Residents
from rowlock.execution.stacks import stack_of
from rowlock.headline import describe, storable
from rowlock.job import Claim
from rowlock.pools.process import log_forwarding
from rowlock.pools.process.messages import (
    AskStack,
    AskUnwrittenReport,
    ChildPlan,
    ClaimChanged,
    EndedRun,
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
    encode,
    for_child,
)
from rowlock.pools.process.shared_status import SharedStatus

_PR_SET_PDEATHSIG = 1
_REPORT_INTERVAL_SECONDS = 0.02
_PARENT_CHECK_SECONDS = 5.0
_REPORT_TIMEOUT_SECONDS = (
    30.0  # seconds to wait for what the parent has not written; it may be waiting for the database
)


def main(incoming: Connection, outgoing: Connection, status: SharedStatus, plan: ChildPlan) -> None:
    """Import the app, load residents, run what the parent sends, and end."""
    _leave_signals_to_the_parent()
    _die_with_the_parent(plan.parent)
    sender = MessageSender(outgoing)
    runs = ChildRuns(sender, status, plan.send_interval)
    threading.Thread(
        target=_receive_messages, args=(incoming, runs, plan.parent), name="rowlock-receive", daemon=True
    ).start()
    residents = Residents()
    try:
        app = _import_app(plan)
        log_forwarding.forward(runs.log, plan.levels)
        tasks = [task for name in plan.tasks if (task := app.find_task(name)) is not None]
        residents.load(tasks)
    except BaseException as error:
        sender.send(StartFailed(storable(_in_short(error)), storable(describe(error))))
        return
    sender.send(Ready(residents.seconds))
    threading.Thread(target=runs.send_reports, name="rowlock-report", daemon=True).start()
    runs.work(app, residents)
    residents.close()
    app.close()


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
            signal.signal(getattr(signal, name), lambda number, batch: None)
    if hasattr(signal, "pthread_sigmask"):  # blocked from before this process began
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _die_with_the_parent(parent: int) -> None:
    """Linux kills it with its parent, even while the interpreter is held; elsewhere a thread notices."""
    if sys.platform == "linux":
        with suppress(Exception):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)


def _import_app(plan: ChildPlan) -> Any:
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
    if plan.consumer is not None:
        app = app.consumer_host(plan.consumer)
    missing = [task for task in plan.tasks if app.find_task(task) is None]
    if missing:
        raise ConfigurationError(
            f"a child process that imports {plan.app} does not find the tasks {', '.join(missing)}: name the "
            "modules that register them in include=[...]"
        )
    return app


def _receive_messages(incoming: Connection, runs: ChildRuns, parent: int) -> None:
    """Receive the parent's messages; end the process when the parent is gone."""
    try:
        while True:
            while not incoming.poll(_PARENT_CHECK_SECONDS):
                if sys.platform != "win32" and os.getppid() != parent:
                    os._exit(1)  # somebody who inherited the pipe's other end keeps it open
            batch = incoming.recv_bytes()
            if not runs.receive(for_child.decode(batch)):
                return
    except (EOFError, OSError):
        os._exit(1)


class MessageSender:
    """Sends to the parent, from any thread; what a signal handler sends meanwhile is sent after."""

    def __init__(self, outgoing: Connection) -> None:
        self._outgoing = outgoing
        self._lock = threading.RLock()
        self._unsent: deque[ToParent] = deque()
        self._is_sending = False

    def send(self, message: ToParent) -> None:
        with self._lock:
            self._unsent.append(message)
            if self._is_sending:
                return
            self._is_sending = True
            try:
                while self._unsent:
                    self._outgoing.send_bytes(encode(self._unsent.popleft()))
            except OSError:  # the parent is gone
                os._exit(1)
            finally:
                self._is_sending = False


class ChildRuns:
    """The jobs that this child was sent, the one that runs, and the outcomes that are not sent yet."""

    def __init__(self, sender: MessageSender, status: SharedStatus, send_interval: float) -> None:
        self._sender = sender
        self._status = status
        self._process = os.getpid()
        self._main = threading.get_ident()
        self._batches: queue.SimpleQueue[RunJobs | None] = queue.SimpleQueue()
        self._changed: dict[int, bool] = {}
        self._current: tuple[int, JobContext] | None = None
        self._busy = threading.Event()
        self.sending = threading.Lock()  # held while reports and outcomes are taken and sent
        self._ended: list[EndedRun] = []
        self._send_interval = send_interval
        self._last_sent = 0  # the last run whose outcome the parent was sent
        self._last_sent_at = -math.inf
        self._last_reported = 0  # the last run that the parent has a report of
        self._answers: queue.SimpleQueue[UnwrittenReport] = queue.SimpleQueue()

    # -- in the main thread ----------------------------------------------------------------------

    def work(self, app: Any, residents: Residents) -> None:
        """Run what the parent sends until it says that nothing more will come."""
        while True:
            if self._batches.empty():
                self.send_ended()
                self._busy.clear()
            batch = self._batches.get()
            if batch is None:
                self.send_ended()
                return
            self._busy.set()
            for number, claim in enumerate(batch.claims, batch.first):
                if self._status.begin(number):
                    self._run(number, claim, app, residents)

    def _run(self, number: int, claim: Claim, app: Any, residents: Residents) -> None:
        task = app.find_task(claim.task)
        context = JobContext(
            claim,
            None if task is None else task.timeout,
            store=app.store,
            reporting=_ReportsHeld(self, number),
        )
        self._current = number, context
        if number in self._changed:
            self._change(context, self._changed.pop(number))
        outcome = execute(claim, task, context, app.hooks, app.max_payload_bytes, residents)
        if (
            os.getpid() != self._process
        ):  # a task forked, and its child returned from the task: it must not go on here
            os._exit(0)
        with self.sending:
            self._current = None
            report = context.take_report() if context.spoke else None
            self._ended.append(EndedRun(number, outcome, report))
        if outcome.written:
            self.send_ended()
        else:
            self.send_ended_if_due()

    def send_ended_if_due(self) -> None:
        """Send what has ended, unless the parent has not read the last message, or got one a moment ago."""
        heard = self._status.heard >= self._last_sent
        if heard and time.monotonic() - self._last_sent_at >= self._send_interval:
            self.send_ended()

    def send_ended(self) -> None:
        """Send the outcomes of the runs that have ended."""
        with self.sending:
            if self._ended:
                ended, self._ended = self._ended, []
                self._sender.send(RunsEnded(ended))
                self._last_sent = ended[-1].number
            self._last_sent_at = time.monotonic()

    def unwritten(self, number: int) -> None:
        """Ask the parent for the run's report that it has not written yet; `sending` is held."""
        if self._current is None or self._last_reported != number:
            return
        self._sender.send(AskUnwrittenReport(number))
        with suppress(queue.Empty):
            while (answer := self._answers.get(timeout=_REPORT_TIMEOUT_SECONDS)).number != number:
                pass
            if answer.report is not None:
                self._current[1].give_back(answer.report)

    # -- in the reporting thread --------------------------------------------------------------------

    def send_reports(self) -> None:
        """While a job runs, send its progress and log lines, and the outcomes of earlier runs."""
        while True:
            self._busy.wait()
            time.sleep(_REPORT_INTERVAL_SECONDS)
            self.send_ended_if_due()
            with self.sending:
                if self._current is None:
                    continue
                number, context = self._current
                if context.spoke and (report := context.take_report()) is not None:
                    self._last_reported = number
                    self._sender.send(Reported(number, report))

    # -- in the receiving thread -------------------------------------------------------------------

    def receive(self, message: object) -> bool:
        """Act on a message of the parent; False if it was the last."""
        if isinstance(message, RunJobs):
            self._batches.put(message)
        elif isinstance(message, ClaimChanged):
            self._changed[message.number] = message.lost
            now = self._current
            if now is not None and now[0] == message.number:
                self._change(now[1], message.lost)
        elif isinstance(message, UnwrittenReport):
            self._answers.put(message)
        elif isinstance(message, AskStack):
            # In a thread of its own: the receiving thread must not wait for the parent to read.
            threading.Thread(target=self._send_stack, name="rowlock-stack", daemon=True).start()
        elif isinstance(message, Shutdown):
            self._batches.put(None)
            return False
        return True

    def _change(self, context: JobContext, lost: bool) -> None:
        if lost:
            context.lost = True
        else:
            context.cancelled = True

    def _send_stack(self) -> None:
        now, batch = self._current, sys._current_frames().get(self._main)
        number = 0 if now is None else now[0]  # 0: nothing runs
        self._sender.send(StackReply(number, "" if batch is None else storable(stack_of(batch))))

    # -- in any thread -----------------------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        """A log record, with the run that it belongs to."""
        now, context = self._current, current.get()
        number = now[0] if now is not None and context is not None and now[1] is context else None
        self._sender.send(LogRecord(number, record))


class _ReportsHeld:
    """Held while a run's transaction opens: all that it has reported so far commits with it."""

    def __init__(self, runs: ChildRuns, number: int) -> None:
        self._runs = runs
        self._number = number

    def __enter__(self) -> None:
        self._runs.sending.acquire()
        try:
            self._runs.unwritten(self._number)
        except BaseException:
            self._runs.sending.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._runs.sending.release()
