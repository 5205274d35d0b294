"""The runs that wait for a thread, and which thread is in which: the default pool.

The threads themselves are the worker's (`worker/runner.py`): the last to end makes the exchange.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from rowlock.execution.stacks import stack_of
from rowlock.pools.base import Run

_WORTH_MORE_THREADS = 0.005  # seconds of quick runs; for less, waking other threads costs more than it gains
_GOING_ON_SECONDS = 0.005  # a thread that is in its run for longer does not go on with what waits for now
_ENOUGH_RUNS = 8  # of one thread alone, to say how long quick runs take
_TRUST_SECONDS = 0.5  # for which that is believed


class ThreadPool:
    """Up to as many threads as it has slots.

    They take one run after the other, so that nothing waits behind a slow run while another thread is idle;
    taking one costs less than a microsecond, waking a thread 30. Quick runs are left to a single thread
    while they are worth no more: several take the interpreter from each other with each system call.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._waiting: deque[Run] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._idle = self._threads = self._missing = 0
        self._closed = False
        self._begun: dict[Run, tuple[int, float, bool]] = {}  # its thread, since when, whether it began alone
        self._abandoned: set[Run] = set()
        self._slow_waiting = 0
        # Runs that began alone, and their seconds: beside others, runs wait for the interpreter.
        self._alone, self._alone_seconds, self._alone_until = 0, 0.0, 0.0

    @property
    def stuck(self) -> int:
        """How many abandoned runs still hold a thread."""
        return len(self._abandoned)

    def start(self) -> None:
        """Nothing to do: threads are started when they are needed."""

    def submit(self, runs: Sequence[Run]) -> None:
        moment = time.monotonic()
        with self._lock:
            self._waiting.extend(runs)
            self._slow_waiting += sum(math.isinf(run.cost) for run in runs)
            if moment > self._alone_until:
                self._alone, self._alone_seconds, self._alone_until = 0, 0.0, moment + _TRUST_SECONDS
            needed = len(self._waiting)
            if needed and self._one_is_enough():
                # One that is in no run, and makes the exchange that brought these, goes on by itself.
                is_awake = bool(runs) and self._threads - self._idle > len(self._begun)
                if is_awake or self._somebody_goes_on(moment):
                    needed = 0
                elif not (self._begun and self._are_slower_now(moment)):
                    needed = 1
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
            self._threads -= 1  # its thread no longer counts: another may be started
        self.submit(())

    def where(self) -> dict[Run, str]:
        frames = sys._current_frames()
        with self._lock:
            begun = dict(self._begun)
        return {run: stack_of(frames[thread]) for run, (thread, *_) in begun.items() if thread in frames}

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
                alone = not self._begun
                if self._waiting and (alone or not self._left_to_another(moment)):
                    run = self._waiting.popleft()
                    self._slow_waiting -= math.isinf(run.cost)
                    self._begun[run] = threading.get_ident(), moment, alone
                    return run
                if self._closed:
                    return None
                self._idle += 1
            self._bell.get()

    def ended(self, run: Run, seconds: float | None = None) -> bool:
        """A run is over; False if it was abandoned, and another thread has its slot.

        `seconds` is how long it took, if nothing but other runs may have kept it waiting.
        """
        with self._lock:
            if run not in self._begun:
                self._abandoned.discard(run)
                return False
            *_, alone = self._begun.pop(run)
            if alone and seconds is not None:
                self._alone += 1
                self._alone_seconds += seconds
            return True

    def is_alone(self) -> bool:
        """For a thread that is in no run: whether no other goes on with what waits."""
        if not self._begun:
            return True
        with self._lock:
            return not self._somebody_goes_on(time.monotonic())

    def _left_to_another(self, moment: float) -> bool:
        return self._one_is_enough() and self._somebody_goes_on(moment)

    def _somebody_goes_on(self, moment: float) -> bool:
        return any(moment - since < _GOING_ON_SECONDS for _, since, _ in self._begun.values())

    def _are_slower_now(self, moment: float) -> bool:
        """What waits is held up by runs that were thought to be quick: whether it needs all threads now."""
        self._alone = max(self._alone + 1, _ENOUGH_RUNS)
        self._alone_seconds += max(moment - since for _, since, _ in self._begun.values())
        return not self._one_is_enough()

    def _one_is_enough(self) -> bool:
        """Whether what waits is left to one thread: it is quick, or not known well enough yet."""
        if self._slow_waiting:
            return False
        runs = self._alone
        return runs < _ENOUGH_RUNS or len(self._waiting) * self._alone_seconds < _WORTH_MORE_THREADS * runs
