"""A source of work in a DuckDB file that is not asked again while nobody has written and nothing falls due.

In file mode every question would take a turn with the file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from typing import Any

from rowlock.job import ClaimRequest, Ending, Outcome
from rowlock.stores.duckdb.database import DuckdbDatabase
from rowlock.stores.source import Source
from rowlock.stores.sql.session import Session

_LONGEST = 60.0  # seconds after which it is asked in any case
_COMES_BACK = (Ending.RETRY, Ending.RELEASED)


class QuietSource:
    """Jobs, or a consumer's rows; what is not written here is the source's own."""

    def __init__(self, source: Source, database: DuckdbDatabase) -> None:
        self._source = source
        self._database = database
        self._found_empty: dict[Any, Hashable] = {}  # what was asked for in vain, and what had changed then
        self._needed: tuple[Hashable, str, float | None] = (None, "", None)
        self._asked_at = -math.inf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def is_early(self, now: float | None) -> bool:
        """True if nothing is due yet: one question in place of the many that would look for what is.

        So a job that was just enqueued is claimed after one statement.
        """
        if now is not None or time.monotonic() >= self._asked_at + _LONGEST:
            return False
        needed = self.next_needed(self._needed[1])
        return needed is None or needed > 0.0

    def is_quiet(self, now: float | None) -> bool:
        """True if nothing has fallen due, and nobody has written, since `next_needed` was asked."""
        return now is None and self._is_in_time() and self._needed[0] == self._database.change()

    def _is_in_time(self) -> bool:
        moment, needed_at = time.monotonic(), self._needed[2]
        return moment < self._asked_at + _LONGEST and (needed_at is None or moment < needed_at)

    def has_work(self, worker: str, request: ClaimRequest, now: float | None = None) -> bool:
        """True if there is something to claim; not asked again if it said no and all is quiet since."""
        key, change = (request.queues, request.unknown), self._database.change()
        quiet = self._source.announces_all_work and self.is_quiet(now)
        if quiet and key in self._found_empty and self._found_empty[key] == change:
            return False
        found = self._source.has_work(worker, request, now)
        self._found_empty = {} if found else {**self._found_empty, key: change}
        return found

    def finish(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the outcomes; what comes back by them later is a reason to ask again, though we wrote it."""
        if any(one.ending in _COMES_BACK or one.pause for one in outcomes):
            self._database.hint(tx)
        return self._source.finish(tx, worker, outcomes)

    def promote(self, most: int, now: float | None = None) -> int:
        """Let scheduled work that is due be claimed."""
        return 0 if self.is_early(now) else self._source.promote(most, now)

    def expire(self, most: int, now: float | None = None) -> int:
        """Fail what is past its deadline to start."""
        early = self._source.announces_all_work and self.is_early(now)
        return 0 if early else self._source.expire(most, now)

    def next_needed(self, worker: str, now: float | None = None) -> float | None:
        """Seconds until something is due; the answer holds until somebody writes."""
        if now is not None:
            return self._source.next_needed(worker, now)
        change, moment = self._database.change(), time.monotonic()
        if not (self.is_quiet(now) and self._needed[1] == worker):
            if not self._is_in_time():
                self._found_empty = {}  # a row that has fallen due is there without anybody's write
            needed = self._source.next_needed(worker)
            self._needed = (change, worker, None if needed is None else moment + needed)
            self._asked_at = moment
        needed_at = self._needed[2]
        return None if needed_at is None else max(0.0, needed_at - moment)
