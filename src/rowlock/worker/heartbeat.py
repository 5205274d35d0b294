"""Says that a worker lives, from a thread of its own, and runs the small chores of a tick.

Does not decide what death means: it tells whoever asked to be told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from rowlock.errors import StoreError
from rowlock.stores.base import Store

log = logging.getLogger("rowlock.heartbeat")

_TICK = 0.5
# Seconds. On a busy machine, with a lease of 2 s, some of the frozen took longer than its interval to beat.
_UNEASY_AT_LEAST = 1.0


class Heartbeat:
    """One worker's beats; the thread lives from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        *,
        worker: Callable[[], str],
        strategy: Callable[[], str],
        lease: float,
        on_death: Callable[[str], None],
        on_tick: Callable[[], None] = lambda: None,
        running: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._store = store
        self._worker = worker
        self._strategy = strategy
        self._interval = lease / 6
        # More than this between two beats: we were frozen, or the database was. A common pause of 3/4 of the
        # lease can make others look dead; a busy machine with a short lease must not count as one.
        self._long = lease / 2
        self._uneasy = max(self._interval, min(_UNEASY_AT_LEAST, lease / 2))
        self._on_death = on_death
        self._on_tick = on_tick
        self._running = running
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = self._written = time.monotonic()
        self._uneasy_until = 0.0
        self._failing = self._told_late = False

    def start(self) -> None:
        """Begin to beat; the worker's row is fresh at this moment."""
        self._stop.clear()
        self._last = self._written = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="rowlock-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it is gone."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)
        self._thread = None

    def steady(self, moment: float | None = None) -> bool:
        """False if the beats have paused, and for one interval after: others may only have paused, too."""
        moment = time.monotonic() if moment is None else moment
        return self.is_fresh(moment) and moment >= self._uneasy_until

    def is_fresh(self, moment: float | None = None) -> bool:
        """False if the last beat is so old that others may take this worker for dead."""
        moment = time.monotonic() if moment is None else moment
        return moment - self._written <= self._long

    def _loop(self) -> None:
        while not self._stop.wait(min(_TICK, self._interval / 2)):
            self.run_once(time.monotonic())

    def run_once(self, moment: float) -> None:
        """Beat if it is time to, then do the tick's chores; a store that fails is logged once."""
        try:
            if moment - self._last >= self._interval:
                self._beat(moment)
            self._on_tick()
        except StoreError as error:
            if not self._failing:
                log.warning("the heartbeat cannot reach the store, it goes on trying: %s", error)
            self._failing = True
        except Exception:  # a heartbeat that stops would cost the worker all of its claims
            log.exception("the heartbeat goes on after an error")
        else:
            self._failing = False

    def _beat(self, moment: float) -> None:
        late = moment - self._last - self._interval
        if late > self._interval and not self._told_late and not self._failing:
            self._told_late = True
            log.warning(
                "the heartbeat is %.1f s late; something held the interpreter or the database. Running: %s",
                late,
                ", ".join(self._running()) or "nothing",
            )
        worker = self._worker()
        alive = self._store.beat(worker, self._strategy())
        written = max(moment, time.monotonic())
        if written - self._written > self._long:
            # Before `_written`: `steady` must not miss both.
            self._uneasy_until = written + self._uneasy
        self._written = written
        self._last, self._told_late = moment, False
        if not alive:
            self._on_death(worker)
