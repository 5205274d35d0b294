"""A pool of threads: the default, for tasks that wait or release the interpreter.

Daemon threads of its own, not an executor's: one that hangs can be abandoned and does not hold the exit.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Sequence

from rowlock.execution.execute import execute
from rowlock.execution.residents import Residents
from rowlock.execution.stacks import stack_of
from rowlock.pools.base import Done, Host, Run

_WORTH_A_THREAD = 0.005  # seconds of short runs; for less, waking another thread costs more than it gains


def _helpful(runs: Sequence[Run]) -> int:
    """How many threads these runs are worth: one for each slow one, fewer for quick ones."""
    quick = [run.cost for run in runs if run.cost < math.inf]
    return len(runs) - len(quick) + (1 + int(sum(quick) / _WORTH_A_THREAD) if quick else 0)


class ThreadPool:
    """As many threads as runs at once; they are started when first needed.

    Threads take one run after the other from a shared line, so that nothing waits behind a slow run while
    another thread is idle; taking one costs less than a microsecond, waking a thread 30.
    """

    may_wait = True

    def __init__(self, size: int, app: Host, done: Done, residents: Residents) -> None:
        self._size = size
        self._residents = residents
        self._app = app
        self._done = done
        self._lock = threading.Lock()
        self._line: deque[Run] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._idle = self._threads = self._names = 0
        self._closed = False
        self._process = os.getpid()
        self._begun: dict[Run, int] = {}  # and the thread it runs in
        self._abandoned: set[Run] = set()

    @property
    def stuck(self) -> int:
        """How many abandoned runs still hold a thread."""
        return len(self._abandoned)

    def start(self) -> None:
        """Threads are started when they are needed."""

    def submit(self, runs: Sequence[Run]) -> None:
        with self._lock:
            self._line.extend(runs)
            needed = min(len(self._line), _helpful(runs)) if runs else len(self._line)
            awake = min(self._idle, needed)
            self._idle -= awake
            new = max(0, min(needed - awake, self._size - self._threads))
            self._threads += new
        for _ in range(awake):
            self._bell.put(None)
        for _ in range(new):
            self._names += 1
            threading.Thread(target=self._loop, name=f"rowlock-run-{self._names}", daemon=True).start()

    def take_back(self) -> list[Run]:
        with self._lock:
            waiting = list(self._line)
            self._line.clear()
        return waiting

    def cancel(self, run: Run) -> None:
        """A thread cannot be stopped from outside: the task asks its context."""

    def abandon(self, run: Run) -> None:
        with self._lock:
            if run not in self._begun:
                return
            del self._begun[run]
            self._abandoned.add(run)
            self._threads -= 1  # its thread no longer counts: another may be started
        self.submit(())

    def where(self) -> dict[Run, str]:
        frames = sys._current_frames()
        with self._lock:
            begun = dict(self._begun)
        return {run: stack_of(frames[thread]) for run, thread in begun.items() if thread in frames}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._bell.put(None)

    def _next(self) -> Run | None:
        """The next in line; waits for one. None: this thread is not needed any more."""
        while True:
            with self._lock:
                if self._line:
                    run = self._line.popleft()
                    self._begun[run] = threading.get_ident()
                    return run
                if self._closed:
                    return None
                self._idle += 1
            self._bell.get()

    def _loop(self) -> None:
        app = self._app
        while (run := self._next()) is not None:
            outcome = execute(
                run.claim, run.task, run.context, app.hooks, app.max_payload_bytes, self._residents
            )
            if os.getpid() != self._process:  # a task forked, and its child came back: no business here
                os._exit(0)
            with self._lock:
                if run not in self._begun:  # abandoned: another thread has its place
                    self._abandoned.discard(run)
                    return
                del self._begun[run]
            self._done([(run, outcome)])
