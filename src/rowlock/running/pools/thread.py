"""A pool of threads: the default, for tasks that wait or release the interpreter.

Daemon threads of its own, not an executor's: one that hangs can be abandoned and does not hold the exit.
"""

from __future__ import annotations

import os
import queue
import threading

from rowlock.running.pools.base import Done, Execute, Run


class ThreadPool:
    """As many threads as runs at once; they are started when first needed."""

    def __init__(self, size: int, execute: Execute, done: Done) -> None:
        self._size = size
        self._execute = execute
        self._done = done
        self._inbox: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        self._process = os.getpid()
        self._in_hand: set[Run] = set()

    def submit(self, run: Run) -> None:
        with self._lock:
            self._busy += 1
            self._in_hand.add(run)
            if self._busy > self._threads and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._loop, name=f"rowlock-run-{self._threads}", daemon=True).start()
        self._inbox.put(run)

    def abandon(self, run: Run) -> None:
        with self._lock:
            if run in self._in_hand:  # its thread no longer counts; the next submit starts another
                self._in_hand.discard(run)
                self._busy -= 1
                self._threads -= 1

    def close(self) -> None:
        with self._lock:
            for _ in range(self._threads):
                self._inbox.put(None)

    def _loop(self) -> None:
        while (run := self._inbox.get()) is not None:
            outcome = self._execute(run)
            if (
                os.getpid() != self._process
            ):  # a task forked, and its child came back: it has no business here
                os._exit(0)
            with self._lock:
                if run not in self._in_hand:  # abandoned: another thread has its place
                    return
                self._in_hand.discard(run)
                self._busy -= 1
            self._done(run, outcome)
