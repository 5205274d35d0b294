"""Who makes a worker's next cycle, its loop or a runner, and when it is due. One is made at a time.

What a cycle does is in `cycle.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rowlock.stores.base import Bell
from rowlock.worker.cycle import SOON_SECONDS, Cycle
from rowlock.worker.pools import Pools
from rowlock.worker.prefetch import HORIZON
from rowlock.worker.runs import Runs
from rowlock.worker.unwritten_outcomes import Unwritten

_LOOK_AT_QUICK_RUNS_SECONDS = 0.01  # for one that turns out to be slow while others wait for its thread


class NextCycle:
    """The turns of one worker's loop and its runners: the bell is rung for what is left to the loop."""

    def __init__(self, cycle: Cycle, runs: Runs, unwritten: Unwritten, pools: Pools, bell: Bell) -> None:
        self._cycle = cycle
        self._in_flight = runs.in_flight
        self._thread_load = runs.load["thread"]
        self._unwritten = unwritten
        self._pools = pools
        self._bell = bell
        self._lock = threading.Lock()  # held by whoever makes a cycle
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a worker does with each of its runs."""
        self._closed = False
        self._failure: BaseException | None = None  # what went wrong in a runner's thread
        self._enough = 0  # while more quick runs than these are left, outcomes wait for others,
        self._due_at = 0.0  # but not longer than until then
        self._loop_is_back_at = 0.0  # if nobody rings

    def close(self) -> None:
        """The worker ends: when this returns, no runner makes a cycle any more."""
        with self._lock:
            self._closed = True

    # -- when ------------------------------------------------------------------------------------

    def due_in(self) -> float:
        """In how many seconds what has ended is to be written: at once, unless enough quick runs are left.

        Sharing an exchange cuts the processor time per job to 40 % (1 ms sleeps in four threads).
        """
        return max(0.0, self._due_at - time.monotonic()) if self._enough_left() else 0.0

    def _enough_left(self) -> bool:
        load = self._thread_load
        return load.quick > self._enough and not load.slow

    def _make(self) -> float:
        wait = self._cycle.run()
        # With half of them left, other threads go on during an exchange. None are kept where one thread does
        # it all, and after the end of the queue.
        none_goes_on = self._cycle.found_nothing or self._pools.one_thread_is_enough()
        half = 0 if none_goes_on else self._thread_load.quick // 2
        self._enough = max(half, self._pools.slots.get("thread", 1) - 1)
        self._due_at = time.monotonic() + HORIZON
        return max(wait, self.due_in())  # while enough is left, a runner makes the next one, or rings

    # -- for the loop ----------------------------------------------------------------------------

    @contextmanager
    def by_the_loop(self) -> Iterator[Callable[[], float] | None]:
        """For the block, what makes a cycle and returns how long to wait; None: it is not the loop's turn."""
        stopping = self._cycle.stopping
        if not stopping and self.due_in():
            yield None
        elif self._lock.acquire(blocking=stopping):
            try:
                if self._failure is not None:
                    raise self._failure
                yield self._make
            finally:
                self._lock.release()
        else:
            yield None

    def until_a_look(self) -> float:
        """How long the loop waits when it was not its turn."""
        return min(self.due_in() or SOON_SECONDS, _LOOK_AT_QUICK_RUNS_SECONDS)

    def pause(self, seconds: float) -> tuple[float, bool]:
        """How long of these seconds the loop may wait, and whether new jobs are to end that."""
        seconds, for_jobs = self._pause(seconds)
        self._loop_is_back_at = time.monotonic() + seconds
        return seconds, for_jobs

    def _pause(self, seconds: float) -> tuple[float, bool]:
        failing = self._cycle.backoff.failing
        if self._lock.locked():  # a runner makes a cycle, and may not ring: then look again soon
            return min(seconds, SOON_SECONDS), False
        due_in = self.due_in()
        if self._unwritten and not failing:
            seconds = min(seconds, due_in)
        return seconds, not (self._cycle.stopping or failing or due_in)

    # -- for runners -----------------------------------------------------------------------------

    def after_run(self, is_alone: Callable[[], bool]) -> None:
        """A runner's run has ended, and is settled: make a cycle if it is due, or leave it to the loop."""
        # While enough is left, the loop sees to it by itself that outcomes do not wait for too long.
        if not (self._enough_left() or self._by_runner(is_alone)):
            self._bell.put(None)

    def _by_runner(self, is_alone: Callable[[], bool]) -> bool:
        """Whether this runner, or who makes a cycle just now, has seen to what is left."""
        # Beside other runners the loop makes it: its thread can wait for the disk while they run.
        if self._thread_load.slow or not is_alone() or self._cycle.stopping or self._cycle.backoff.failing:
            return False
        if not self._lock.acquire(blocking=False):
            return bool(self._in_flight)  # whoever makes one looks again afterwards
        wait = 0.0
        try:
            if not self._closed:
                wait = self._make()
        except BaseException as error:
            self._failure = error
        finally:
            self._lock.release()
        if self._failure is not None or not self._in_flight or (self._unwritten and not self.due_in()):
            return False
        # Beside a slow run the loop sleeps for longer than quick ones may wait.
        return self._loop_is_back_at <= time.monotonic() + max(wait, HORIZON) + _LOOK_AT_QUICK_RUNS_SECONDS
