"""The runs that wait for a thread, and which thread is in which: the default pool.

The threads themselves are the worker's (`worker/runner.py`): the last to end makes the exchange.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
from collections import deque
from collections.abc import Sequence

from rowlock.execution.stacks import stack_of
from rowlock.pools.base import Run

_WORTH_A_THREAD = 0.005  # seconds of short runs; for less, waking another thread costs more than it gains


def _helpful(runs: Sequence[Run]) -> int:
    """How many threads these runs are worth: one for each slow one, fewer for quick ones."""
    quick = [run.cost for run in runs if run.cost < math.inf]
    return len(runs) - len(quick) + (1 + int(sum(quick) / _WORTH_A_THREAD) if quick else 0)


class ThreadPool:
    """Up to as many threads as it has slots.

    They take one run after the other, so that nothing waits behind a slow run while another thread is idle;
    taking one costs less than a microsecond, waking a thread 30.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._waiting: deque[Run] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._idle = self._threads = self._missing = 0
        self._closed = False
        self._begun: dict[Run, int] = {}  # and the thread it runs in
        self._abandoned: set[Run] = set()

    @property
    def stuck(self) -> int:
        """How many abandoned runs still hold a thread."""
        return len(self._abandoned)

    def start(self) -> None:
        """Nothing to do: threads are started when they are needed."""

    def submit(self, runs: Sequence[Run]) -> None:
        with self._lock:
            self._waiting.extend(runs)
            needed = min(len(self._waiting), _helpful(runs)) if runs else len(self._waiting)
            awake = min(self._idle, needed)
            self._idle -= awake
            self._missing = min(max(self._missing, needed - awake), self._size - self._threads)
        for _ in range(awake):
            self._bell.put(None)

    def take_missing(self) -> int:
        """How many threads the caller has to start, so that what waits is run."""
        if not self._missing:
            return 0
        with self._lock:
            missing, self._missing = self._missing, 0
            self._threads += missing
        return missing

    def take_back(self) -> list[Run]:
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
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

    # -- for its threads -------------------------------------------------------------------------

    def next(self) -> Run | None:
        """The next run, which counts as begun; waits for one. None: this thread is not needed any more."""
        while True:
            with self._lock:
                if self._waiting:
                    run = self._waiting.popleft()
                    self._begun[run] = threading.get_ident()
                    return run
                if self._closed:
                    return None
                self._idle += 1
            self._bell.get()

    def ended(self, run: Run) -> bool:
        """A run is over; False if it was abandoned, and another thread has its slot."""
        with self._lock:
            if run not in self._begun:
                self._abandoned.discard(run)
                return False
            del self._begun[run]
            return True
