"""One event loop, in a thread of its own or the caller's, for `async def` tasks: thousands wait at once.

Cancel and timeout cancel the coroutine. What blocks the loop blocks them all, and is named in the log.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from rowlock.execution.execute import Executor
from rowlock.execution.stacks import awaits_of, stack_of
from rowlock.pools.base import Run, Runs

log = logging.getLogger("rowlock.async")

BLOCKED = 0.1  # seconds after which a blocked loop is worth a line
_LOOK_EVERY = 0.02
_AT_ONCE = 100  # coroutines that are begun before the loop gets to others
_AFTER_DEADLINE = 0.001


class AsyncPool:
    """Runs as many coroutines at once as it has slots; what was prefetched waits for one of them."""

    def __init__(
        self, size: int, runs: Runs, executor: Executor, callers_loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self._size = size
        self._is_callers = callers_loop is not None
        self._runs = runs
        self._executor = executor
        self._loop = callers_loop
        self._loop_thread = 0
        self._watcher = threading.Thread(target=self._watch, name="rowlock-async-watch", daemon=True)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._waiting: deque[Run] = deque()
        self._coroutines: dict[Run, asyncio.Task[None]] = {}
        self._abandoned: set[Run] = set()

    @property
    def stuck(self) -> int:
        """How many abandoned coroutines go on all the same."""
        return len(self._abandoned)

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_live, args=(self._loop,), name="rowlock-async", daemon=True).start()
        self._watcher.start()

    def submit(self, runs: Sequence[Run]) -> None:
        with self._lock:
            self._waiting.extend(runs)
        self._call(self._begin)

    def take_back(self) -> list[Run]:
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def cancel(self, run: Run) -> None:
        self._call(self._cancel, run)

    def abandon(self, run: Run) -> None:
        with self._lock:
            if run not in self._coroutines:
                return
            self._abandoned.add(run)
        self._call(self._cancel, run)
        self._call(self._begin)  # its slot is free

    def where(self) -> dict[Run, str]:
        return {run: awaits_of(task.get_coro()) for run, task in list(self._coroutines.items())}

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._call(self._cancel_all)

    def _call(self, function: Callable[..., object], *values: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function, *values)

    # -- in the loop's thread --------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin those that wait, while there is a free slot; abandoned runs hold none."""
        loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        for _ in range(_AT_ONCE):
            with self._lock:
                if not self._waiting or len(self._coroutines) - len(self._abandoned) >= self._size:
                    return
                run = self._waiting.popleft()
                self._coroutines[run] = loop.create_task(self._drive(run))
        loop.call_soon(self._begin)

    async def _drive(self, run: Run) -> None:
        outcome = self._runs.ended_before_start(run)
        if outcome is None:
            timeout, bell = run.context.timeout, None
            if timeout is not None:
                loop = asyncio.get_running_loop()
                bell = loop.call_later(timeout + _AFTER_DEADLINE, self._cancel, run)
            outcome = await self._executor.execute_async(run.task, run.context)
            if bell is not None:
                bell.cancel()
        with self._lock:
            del self._coroutines[run]
            abandoned = run in self._abandoned
            self._abandoned.discard(run)
        if self._waiting:
            self._begin()
        if not abandoned:
            self._runs.settle(run, outcome)
        self._stop_if_left()

    def _cancel(self, run: Run) -> None:
        # One that has not begun looks for itself; cancelled before its first step, it would never report.
        if (task := self._coroutines.get(run)) is not None and run.context.began is not None:
            task.cancel()

    def _cancel_all(self) -> None:
        """The worker is leaving: what is still there is cancelled, and the loop lives until it has ended."""
        self.take_back()
        for run in list(self._coroutines):
            self._cancel(run)
        self._stop_if_left()

    def _stop_if_left(self) -> None:
        if self._closed.is_set() and not self._coroutines and not self._is_callers:
            asyncio.get_running_loop().stop()

    # -- in the watcher's thread -----------------------------------------------------------------

    def _watch(self) -> None:
        """Ask the loop for an answer, again and again: what blocks it is what runs while none comes."""
        while not self._closed.wait(_LOOK_EVERY if self._coroutines else BLOCKED):
            if not self._coroutines:
                continue
            asked_at, answered = time.monotonic(), threading.Event()
            self._call(answered.set)
            suspect, told = None, False
            while not (answered.wait(_LOOK_EVERY) or self._closed.is_set()):
                # Thousands of short steps take their time, too: one that blocks is still the same one later.
                current, late = asyncio.current_task(self._loop), time.monotonic() - asked_at
                if late >= BLOCKED and current is suspect and not told:
                    told = True
                    self._log_blocked(current, late)
                suspect = current

    def _log_blocked(self, current: asyncio.Task[None] | None, seconds: float) -> None:
        running, frame = list(self._coroutines.items()), sys._current_frames().get(self._loop_thread)
        log.warning(
            "%s blocks the event loop, and all that runs on it, for %.0f ms so far:\n%s",
            next((run.claim.title for run, task in running if task is current), "something"),
            seconds * 1000,
            "" if frame is None else stack_of(frame),
        )


def _live(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
