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
    Broken,
    Ended,
    HandIn,
    Hush,
    Jobs,
    Leave,
    Logged,
    Plan,
    Ready,
    Said,
    Stack,
    Tell,
    ToParent,
    Unwritten,
    Where,
    encode,
    for_child,
)
from rowlock.pools.process.shared_status import SharedStatus

_PR_SET_PDEATHSIG = 1
_SPEAK_EVERY = 0.02
_LOOK_FOR_PARENT = 5.0
_REPORT_TIMEOUT_SECONDS = (
    30.0  # seconds to wait for what the parent has not written; it may be waiting for the database
)


def main(incoming: Connection, outgoing: Connection, status: SharedStatus, plan: Plan) -> None:
    """The whole life of a child."""
    _leave_signals_to_the_parent()
    _die_with_the_parent(plan.parent)
    sender = MessageSender(outgoing)
    runs = ChildRuns(sender, status, plan.together)
    threading.Thread(
        target=_listen, args=(incoming, runs, plan.parent), name="rowlock-ear", daemon=True
    ).start()
    residents = Residents()
    try:
        app = _import_app(plan)
        log_forwarding.forward(runs.log, plan.levels)
        tasks = [task for name in plan.tasks if (task := app.find_task(name)) is not None]
        residents.load(tasks)
    except BaseException as error:
        sender.say(Broken(storable(_in_short(error)), storable(describe(error))))
        return
    sender.say(Ready(residents.seconds))
    threading.Thread(target=runs.speak, name="rowlock-mouth", daemon=True).start()
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
            signal.signal(getattr(signal, name), lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):  # blocked from before this process began
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _die_with_the_parent(parent: int) -> None:
    """Linux kills it with its parent, also while something holds the interpreter; elsewhere its ear does."""
    if sys.platform == "linux":
        with suppress(Exception):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)


def _import_app(plan: Plan) -> Any:
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


def _listen(incoming: Connection, runs: ChildRuns, parent: int) -> None:
    """Hear what the parent says; without a parent there is nothing to live for."""
    try:
        while True:
            while not incoming.poll(_LOOK_FOR_PARENT):
                if sys.platform != "win32" and os.getppid() != parent:
                    os._exit(1)  # somebody who inherited the pipe's other end keeps it open
            frame = incoming.recv_bytes()
            if not runs.hear(for_child.decode(frame)):
                return
    except (EOFError, OSError):
        os._exit(1)


class MessageSender:
    """Sends to the parent, from any thread; what a signal's function says in between comes after."""

    def __init__(self, outgoing: Connection) -> None:
        self._outgoing = outgoing
        self._lock = threading.RLock()
        self._line: deque[ToParent] = deque()
        self._speaking = False

    def say(self, message: ToParent) -> None:
        with self._lock:
            self._line.append(message)
            if self._speaking:
                return
            self._speaking = True
            try:
                while self._line:
                    self._outgoing.send_bytes(encode(self._line.popleft()))
            except OSError:  # the parent is gone
                os._exit(1)
            finally:
                self._speaking = False


class ChildRuns:
    """The jobs that lie before this child, the one in work, and the outcomes to be handed in."""

    def __init__(self, sender: MessageSender, status: SharedStatus, together: float) -> None:
        self._sender = sender
        self._status = status
        self._process = os.getpid()
        self._main = threading.get_ident()
        self._frames: queue.SimpleQueue[Jobs | None] = queue.SimpleQueue()
        self._told: dict[int, bool] = {}
        self._now: tuple[int, JobContext] | None = None
        self._busy = threading.Event()
        self.speaking = threading.Lock()  # held while reports and outcomes are taken and sent
        self._ended: list[Ended] = []
        self._together = together
        self._handed_in = 0  # the last run whose outcome the parent was sent
        self._handed_in_at = -math.inf
        self._said = 0  # the last run whose words the parent has
        self._answers: queue.SimpleQueue[Unwritten] = queue.SimpleQueue()

    # -- in the main thread ----------------------------------------------------------------------

    def work(self, app: Any, residents: Residents) -> None:
        """Run what comes until there is nothing more to come."""
        while True:
            if self._frames.empty():
                self.hand_in()
                self._busy.clear()
            frame = self._frames.get()
            if frame is None:
                self.hand_in()
                return
            self._busy.set()
            for number, claim in enumerate(frame.claims, frame.first):
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
        self._now = number, context
        if number in self._told:
            self._tell(context, self._told.pop(number))
        outcome = execute(claim, task, context, app.hooks, app.max_payload_bytes, residents)
        if os.getpid() != self._process:  # a task forked, and its child came back: no business here
            os._exit(0)
        with self.speaking:
            self._now = None
            report = context.take_report() if context.spoke else None
            self._ended.append(Ended(number, outcome, report))
        if outcome.written:
            self.hand_in()
        else:
            self.hand_in_what_waited()

    def hand_in_what_waited(self) -> None:
        """Let the parent have what has ended, unless it has not read the last, or had it a moment ago."""
        heard = self._status.heard >= self._handed_in
        if heard and time.monotonic() - self._handed_in_at >= self._together:
            self.hand_in()

    def hand_in(self) -> None:
        """Let the parent have what has ended."""
        with self.speaking:
            if self._ended:
                ended, self._ended = self._ended, []
                self._sender.say(HandIn(ended))
                self._handed_in = ended[-1].number
            self._handed_in_at = time.monotonic()

    def unwritten(self, number: int) -> None:
        """Ask back what the run has said and the parent has not written; `speaking` is held."""
        if self._now is None or self._said != number:
            return
        self._sender.say(Hush(number))
        with suppress(queue.Empty):
            while (answer := self._answers.get(timeout=_REPORT_TIMEOUT_SECONDS)).number != number:
                pass
            if answer.report is not None:
                self._now[1].give_back(answer.report)

    # -- in the thread that speaks -----------------------------------------------------------------

    def speak(self) -> None:
        """While a job runs, tell the parent what it says, and what ended before it."""
        while True:
            self._busy.wait()
            time.sleep(_SPEAK_EVERY)
            self.hand_in_what_waited()
            with self.speaking:
                if self._now is None:
                    continue
                number, context = self._now
                if context.spoke and (report := context.take_report()) is not None:
                    self._said = number
                    self._sender.say(Said(number, report))

    # -- in the thread that listens ----------------------------------------------------------------

    def hear(self, message: object) -> bool:
        """Take in what the parent says; False if that was the last."""
        if isinstance(message, Jobs):
            self._frames.put(message)
        elif isinstance(message, Tell):
            self._told[message.number] = message.lost
            now = self._now
            if now is not None and now[0] == message.number:
                self._tell(now[1], message.lost)
        elif isinstance(message, Unwritten):
            self._answers.put(message)
        elif isinstance(message, Where):
            # In a thread of its own: whoever listens must not wait for the parent to listen.
            threading.Thread(target=self._say_where, name="rowlock-where", daemon=True).start()
        elif isinstance(message, Leave):
            self._frames.put(None)
            return False
        return True

    def _tell(self, context: JobContext, lost: bool) -> None:
        if lost:
            context.lost = True
        else:
            context.cancelled = True

    def _say_where(self) -> None:
        now, frame = self._now, sys._current_frames().get(self._main)
        number = 0 if now is None else now[0]  # 0: nothing runs
        self._sender.say(Stack(number, "" if frame is None else storable(stack_of(frame))))

    # -- in any thread -----------------------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        """A log record, with the run that it belongs to."""
        now, context = self._now, current.get()
        number = now[0] if now is not None and context is not None and now[1] is context else None
        self._sender.say(Logged(number, record))


class _ReportsHeld:
    """What a run holds while its transaction opens: all that it has said so far commits with it."""

    def __init__(self, runs: ChildRuns, number: int) -> None:
        self._runs = runs
        self._number = number

    def __enter__(self) -> None:
        self._runs.speaking.acquire()
        try:
            self._runs.unwritten(self._number)
        except BaseException:
            self._runs.speaking.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._runs.speaking.release()
