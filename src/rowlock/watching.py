"""How callers learn what becomes of a job: `app.result` waits for its end, `app.watch` tells of each change.

Who waits for a result looks for itself; for all who watch, one thread looks, from the first to the last of
them. Both only read.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from rowlock.errors import TRANSIENT, JobCancelled, JobFailed, JobNotFound, RowlockError, StoreError
from rowlock.job import Job, State
from rowlock.outage import backoff
from rowlock.stores.base import Bell, Wake
from rowlock.stores.sql.store import Store

log = logging.getLogger("rowlock.watch")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # seconds between looks of who waits for a result

# Seconds between looks where no commit is noticed. A look at a few jobs takes PostgreSQL 0.3 ms.
_LOOK_EVERY = 0.1
_LOOK_AT_LEAST_EVERY = 1.0  # where commits are noticed
_SHORTEST_PAUSE = 0.02  # a busy queue commits hundreds of times a second
_PAUSE_PER_LOOK = 4.0  # a look that takes 50 ms (DuckDB, by turns) is made five times a second at most
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 4.0
_CHECK_EVERY = 1.0  # a blocking wait wakes up so often, so that Ctrl-C ends it on Windows, too


class Waiting:
    """One wait for a result; the pauses between its looks grow."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pause = _FIRST_PAUSE

    def pause(self, job: Job) -> float:
        """Seconds until the next look at a job that has not ended; raises TimeoutError at the deadline."""
        pause, self._pause = self._pause, min(self._pause * 1.5, _LONGEST_PAUSE)
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"job {job.id} ({job.task}) is still {job.state} after {self._timeout:g} s")
        return min(pause, left)


def result_of(job: Job) -> Any:
    """The result of a job that has ended; raises JobFailed or JobCancelled."""
    if job.state is State.FAILED:
        raise JobFailed(job)
    if job.state is State.CANCELLED:
        raise JobCancelled(job)
    return job.result


class Watch(Iterator[Job], AsyncIterator[Job]):
    """One job as it changes, for `for` and for `async for`; ends after its final state.

    It gives the job at once, then whenever its progress or state has changed. Who is slow misses what was in
    between, never the end. `close()` (or leaving a `with` block) ends it early, and so does forgetting it.
    """

    def __init__(self, watcher: Watcher, job: int) -> None:
        self.job_id = job
        self.is_new = True  # it was given nothing yet
        self._watcher = watcher
        self._arrived = threading.Event()
        self._on_arrival: Callable[[], object] | None = None
        self._news: deque[Job | RowlockError] = deque(maxlen=1)  # only the latest
        self._ended = False

    # -- for those who watch ---------------------------------------------------------------------

    def __next__(self) -> Job:
        job = self.wait()
        if job is None:
            raise StopIteration
        return job

    async def __anext__(self) -> Job:
        import asyncio

        loop = asyncio.get_running_loop()
        while True:
            arrived = asyncio.Event()
            # Set before the look: what is delivered after that look is heard.
            self._on_arrival = lambda arrived=arrived: loop.call_soon_threadsafe(arrived.set)
            job = self._take()
            if job is not None:
                return job
            if self._ended:
                raise StopAsyncIteration
            await arrived.wait()

    def wait(self, seconds: float | None = None) -> Job | None:
        """The job when it has changed; None if it has not within so many seconds, or if this has ended."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            self._arrived.clear()
            job = self._take()
            if job is not None or self._ended:
                return job
            left = _CHECK_EVERY if deadline is None else min(_CHECK_EVERY, deadline - time.monotonic())
            if left <= 0:
                return None
            self._arrived.wait(left)

    def close(self) -> None:
        """End it; whoever waits for the next change is told so."""
        self._ended = True
        self._watcher.remove(self)
        self._tell()

    async def aclose(self) -> None:
        """`close` for async callers, such as `contextlib.aclosing`."""
        self.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def _take(self) -> Job | None:
        """What has arrived since the last time; raises if that is an error."""
        if not self._ended and self._watcher.process != os.getpid():
            raise RowlockError("this watch was made before a fork, and lives in the parent: make another")
        try:
            news = self._news.popleft()
        except IndexError:
            return None
        if isinstance(news, RowlockError):
            self._ended = True
            raise news
        self._ended = self._ended or news.state.final
        return news

    # -- for the watcher -------------------------------------------------------------------------

    def first_look(self) -> None:
        """Wait for the first look; raises if there is no such job, or the store cannot be read."""
        while not self._arrived.wait(_CHECK_EVERY):
            pass
        if self._news and isinstance(self._news[0], RowlockError):
            self._take()

    def deliver(self, news: Job | RowlockError) -> None:
        """Put this in the place of what was not taken yet."""
        self.is_new = False
        self._news.append(news)
        self._tell()

    def _tell(self) -> None:
        self._arrived.set()
        if self._on_arrival is not None:
            with suppress(RuntimeError):  # its event loop is closed
                self._on_arrival()


class Watcher:
    """The watches of one app in one process, and the thread that looks for them."""

    def __init__(self, store: Store) -> None:
        self.process = os.getpid()
        self._store = store
        self._lock = threading.Lock()
        self._watches: WeakSet[Watch] = WeakSet()
        self._seen: dict[int, Job | None] = {}
        self._thread: threading.Thread | None = None
        self._bell: Bell = queue.SimpleQueue()

    def watch(self, job: int) -> Watch:
        """Begin to watch a job; on an event loop, which must not be held up, its first step waits."""
        watch = Watch(self, job)
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="rowlock-watch", daemon=True)
                self._thread.start()
        self.ring()
        if not _on_an_event_loop():
            watch.first_look()
        return watch

    def remove(self, watch: Watch) -> None:
        """Look for this one no more."""
        with self._lock:
            self._watches.discard(watch)
        self.ring()

    def ring(self) -> None:
        """End the pause between two looks; safe from any thread."""
        self._bell.put(None)

    # -- in the thread ---------------------------------------------------------------------------

    def _loop(self) -> None:
        notices = self._store.database.sees_every_commit
        wake = self._store.wake(lambda: "", self.ring) if notices else Wake()
        failures = 0
        while self._anybody():
            began = time.monotonic()
            try:
                wake.before_claim(idle=True)
                self.run_once()
                failures = 0
            except TRANSIENT as error:
                failures += 1
                if failures == 1:
                    log.warning("watched jobs cannot be looked at, this goes on trying: %s", error)
                self._fail(error, only_new=True)
            except Exception as error:
                told = error if isinstance(error, StoreError) else _unexpected(error)
                self._fail(told, only_new=False)
            if not len(self._watches):
                continue
            if failures:
                self._pause(Wake(), backoff(failures, _BACKOFF_FIRST, _BACKOFF_MOST))
            else:
                took = time.monotonic() - began
                time.sleep(max(_SHORTEST_PAUSE, took * _PAUSE_PER_LOOK))
                self._pause(wake, _LOOK_AT_LEAST_EVERY if notices else _LOOK_EVERY)
        wake.close()

    def _anybody(self) -> bool:
        """Whether somebody still watches; if not, the next one to come starts a thread of its own."""
        with self._lock:
            if len(self._watches):
                return True
            self._thread = None
            self._seen.clear()
            return False

    def run_once(self) -> None:
        """Look once at all watched jobs, and deliver what has changed."""
        with self._lock:
            watches = list(self._watches)
        ids = {watch.job_id for watch in watches}
        self._seen = {job: self._seen.get(job) for job in ids}
        changed = self._store.changed(self._seen)
        self._seen |= changed
        for watch in watches:
            if watch.job_id not in changed and not watch.is_new:
                continue
            job = self._seen[watch.job_id]
            if job is None or job.state.final:
                with self._lock:
                    self._watches.discard(watch)
            told = job if job is not None else _not_there(watch.job_id, pruned=not watch.is_new)
            watch.deliver(told)

    def _fail(self, error: RowlockError, only_new: bool) -> None:
        """Tell those who have seen nothing yet, or all of them, that they will not."""
        with self._lock:
            failed = [watch for watch in self._watches if watch.is_new or not only_new]
            self._watches.difference_update(failed)
        for watch in failed:
            watch.deliver(error)

    def _pause(self, wake: Wake, seconds: float) -> None:
        spread = random.uniform(0.75, 1.0)  # noqa: S311 - parts the looks of several processes
        wake.wait(self._bell, seconds * spread, lively=True)
        while not self._bell.empty():
            self._bell.get()


def _not_there(job: int, pruned: bool) -> JobNotFound:
    if pruned:
        return JobNotFound(f"job {job} is gone: it was pruned or deleted while it was watched")
    return JobNotFound(f"there is no job {job}; it may have been pruned")


def _unexpected(error: Exception) -> RowlockError:
    log.error("watching jobs failed", exc_info=error)
    told = RowlockError(f"watching jobs failed: {error!r}")
    told.__cause__ = error
    return told


def _on_an_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # who runs a loop has imported it
    return asyncio is not None and asyncio._get_running_loop() is not None
