"""What a worker does while its store cannot be used: says so once, and tries less and less often."""

from __future__ import annotations

import logging
import time

from rowlock.errors import StoreBusy, StoreError, StoreUnreachable
from rowlock.outage import Outage, backoff

log = logging.getLogger("rowlock.worker")

FIRST_SECONDS, MOST_SECONDS = 0.1, 4.0  # it goes on within five when the cause is gone
LONGEST_HELD_SECONDS = 10.0


class StoreBackoff:
    """Failed attempts in a row."""

    def __init__(self, outage: Outage, in_callers_thread: bool = False) -> None:
        self._outage = outage
        outage.ends()  # whoever spoke of the last one may have ended before it was over
        self._in_callers_thread = in_callers_thread  # of `run()`: nothing else happens there until it returns
        self.failing = 0
        self._held: object = None
        self._held_since = 0.0

    def held_for(self, error: StoreError, now: float) -> float:
        """For how many seconds the same transaction of this process has been open on the locked store."""
        held = error.own_transaction if isinstance(error, StoreBusy) else None
        if held is None or held != self._held:
            self._held, self._held_since = held, now
        return now - self._held_since

    def failed(self, error: StoreError, is_registered: bool = True) -> float:
        """The store could not be used; returns how many seconds to wait."""
        self._refuse_to_wait_for_caller(error, is_registered)
        # Once for each cause; a server that goes away is told by each connection in other words.
        if self._outage.is_new("unreachable" if isinstance(error, StoreUnreachable) else str(error)):
            log.error("the store cannot be used, the worker keeps what it has and goes on trying: %s", error)
        self.failing += 1
        return backoff(self.failing, FIRST_SECONDS, MOST_SECONDS)

    def _refuse_to_wait_for_caller(self, error: StoreError, is_registered: bool) -> None:
        """Raise if the thread that called `run()` seems to hold the lock that `run()` waits for.

        Before the worker is registered, no task of its own can be the holder. A connection does not tell
        which thread uses it, but another thread would end its transaction, or go on writing in it, meanwhile.
        """
        seconds = self.held_for(error, time.monotonic())
        if self._in_callers_thread and not is_registered and seconds >= LONGEST_HELD_SECONDS:
            raise StoreBusy(
                f"the worker ends before its first claim: for {seconds:.0f} s the database was locked, "
                "and the same transaction of this program was open on it and wrote nothing. If the caller of "
                "`run()` has opened it, it stays open until that returns: commit or close it before the call"
            ) from error

    def succeeded(self) -> None:
        """The store answered."""
        if self.failing and self._outage.ends():
            log.info("the store can be used again")
        self.failing, self._held = 0, None
