"""The default pool: the runs that wait for a thread, and how many threads come for them.

What a thread does with its runs is the worker's (`worker/runner.py`).
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rowlock.execution.stacks import stack_of
from rowlock.pools.base import Run

TINY_SECONDS = 0.0003  # runs that are known to take no longer are left to one thread
_SHORT_SECONDS = 0.002  # outcomes of runs that take longer do not wait for the end of the line
_GOING_ON_SECONDS = 0.005  # a thread that is in its run for longer does not go on with what waits for now
_ALL_THREADS_SECONDS = 0.5  # for which every thread comes, after a run that was thought to be tiny was not


class ThreadPool:
    """Up to as many threads as it has slots; `work` is what each of them does, until `next` returns None.

    They take one run after the other, so that nothing waits behind a slow run while another thread is idle;
    taking one costs less than a microsecond, waking a thread 30. Tiny runs are left to a single thread:
    several take the interpreter from each other with each system call. If one of these runs turns out to
    be slow, the others come.

    Daemon threads, not an executor's: one that hangs can be abandoned and does not hold the exit.
    """

    def __init__(self, size: int, work: Callable[[ThreadPool], None]) -> None:
        self._size = size
        self._work = work
        self._lock = threading.Lock()
        self._waiting: deque[Run] = deque()
        self._slow_waiting = 0
        self._begun: dict[Run, tuple[int, float]] = {}  # its thread, and since when
        self._abandoned: set[Run] = set()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.threads = self._idle = 0  # those of abandoned runs do not count
        self._names = (f"rowlock-run-{number}" for number in itertools.count(1))
        self._all_threads_until = 0.0
        self._closed = False

    @property
    def stuck(self) -> int:
        """How many abandoned runs still hold a thread."""
        return len(self._abandoned)

    def start(self) -> None:
        """Nothing to do: threads are started when they are needed."""

    def submit(self, runs: Sequence[Run]) -> None:
        with self._lock:
            self._waiting.extend(runs)
            self._slow_waiting += sum(not run.is_quick for run in runs)
            needed = self._threads_needed(time.monotonic(), are_new=bool(runs))
            woken = min(needed, self._idle)
            started = min(needed - woken, self._size - self.threads)
            self._idle -= woken
            self.threads += started
        for _ in range(woken):
            self._bell.put(None)
        for name in itertools.islice(self._names, started):
            threading.Thread(target=self._work, args=(self,), name=name, daemon=True).start()

    def take_back(self) -> list[Run]:
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._slow_waiting = 0
        return waiting

    def cancel(self, run: Run) -> None:
        """A thread cannot be stopped from outside: the task asks its context."""

    def abandon(self, run: Run) -> None:
        with self._lock:
            if run not in self._begun:
                return
            del self._begun[run]
            self._abandoned.add(run)
            self.threads -= 1  # its thread no longer counts: another may be started
        self.submit(())

    def where(self) -> dict[Run, str]:
        frames = sys._current_frames()
        with self._lock:
            begun = dict(self._begun)
        return {run: stack_of(frames[thread]) for run, (thread, _) in begun.items() if thread in frames}

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
            moment = time.monotonic()
            with self._lock:
                if self._waiting and not (self._another_goes_on(moment) and self._one_is_enough(moment)):
                    run = self._waiting.popleft()
                    self._slow_waiting -= not run.is_quick
                    self._begun[run] = threading.get_ident(), moment
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

    def is_alone(self) -> bool:
        """For a thread that is in no run: whether no other goes on with what waits."""
        with self._lock:
            return not self._another_goes_on(time.monotonic())

    def one_is_enough(self) -> bool:
        """Whether a single thread soon gets through what waits now."""
        with self._lock:
            if self._size > 1:
                return not self._waiting or self._one_is_enough(time.monotonic())
            return not self._waiting or self._waiting[0].cost <= _SHORT_SECONDS

    # -- how many threads, with the lock held ----------------------------------------------------

    def _threads_needed(self, moment: float, are_new: bool) -> int:
        """How many threads that are not at work have to come for what waits."""
        if not self._waiting or not self._one_is_enough(moment):
            return len(self._waiting)
        # One that is in no run has made the exchange that brought what is new, and goes on with it.
        between_runs = self.threads - self._idle - len(self._begun)
        if (are_new and between_runs) or self._another_goes_on(moment):
            return 0
        if not self._begun:
            return 1
        self._all_threads_until = moment + _ALL_THREADS_SECONDS
        return len(self._waiting)

    def _one_is_enough(self, moment: float) -> bool:
        """Whether what waits is left to one thread."""
        if self._slow_waiting or moment < self._all_threads_until:
            return False
        return self._waiting[0].cost <= TINY_SECONDS

    def _another_goes_on(self, moment: float) -> bool:
        """Whether a thread is in a run that it has just begun."""
        if not self._begun:  # as a rule, for a thread that asks before each tiny run
            return False
        return any(moment - since < _GOING_ON_SECONDS for _, since in self._begun.values())
