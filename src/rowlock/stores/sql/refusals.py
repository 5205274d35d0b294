"""What the database refuses about one outcome ends that one and holds up no other, whatever the source.

What belongs together is written together first; only after a refusal it is taken apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from rowlock.claim_outcomes import decided
from rowlock.endings import Event, Facts
from rowlock.error_text import headline, storable
from rowlock.errors import DataRefused
from rowlock.job import ClaimKey, Outcome, Report
from rowlock.retry import DEFAULT
from rowlock.stores.source import Source
from rowlock.stores.sql.database import Database

log = logging.getLogger("rowlock.refused")

# The error kind of such a run; and what is noted of a claim that nothing can be written for.
REFUSED = "refused"
_MOST_REMEMBERED = 10_000

T = TypeVar("T")
R = TypeVar("R")


class Written(msgspec.Struct):
    """What became of outcomes that were written apart."""

    lost: list[Outcome] = []
    refused: list[Outcome] = []  # as the failures that they are now
    unwritable: list[ClaimKey] = []  # of these not even the failure could be written


class Refusals:
    """Outcomes and reports of one source, written apart."""

    def __init__(self, database: Database, source: Source) -> None:
        self._database = database
        self.source = source
        self._dropped: set[ClaimKey] = set()  # claims of which a report was refused, and this was said

    def report(self, reports: Sequence[Report], now: float | None = None) -> None:
        """Write progress and log lines of claims that still hold; what is refused is dropped."""

        def write(some: Sequence[Report]) -> list[None]:
            with self._database.write(now) as tx:
                self.source.report(tx, some)
            return []

        _apart(write, reports, self._drop)

    def _drop(self, report: Report, error: DataRefused) -> list[None]:
        key = (report.id, report.claim)
        if key not in self._dropped:  # once for each run, which may report twice a second
            if len(self._dropped) > _MOST_REMEMBERED:
                self._dropped.clear()
            self._dropped.add(key)
            (title,) = self.source.titles([key])
            log.warning("%s: the database refused its progress or log lines: %s", title, error.said)
        return []

    def write_apart(
        self,
        worker: str,
        outcomes: Sequence[Outcome],
        write: Callable[[Sequence[Outcome]], list[Outcome]],
        now: float | None,
    ) -> Written:
        """Write outcomes by `write`, which returns the lost ones; a refused one becomes a failure."""
        written = Written([], [], [])

        def refused(outcome: Outcome, error: DataRefused) -> list[Outcome]:
            title = self._title(outcome)  # which cannot be read after its claim has ended
            plain = msgspec.structs.replace(outcome, rescued=False)
            failed = decided(plain, Event.REFUSED, Facts(), DEFAULT, error.said)
            try:
                if write([failed]):
                    return [outcome]
            except DataRefused as again:
                self.keep(worker, failed, again, now)
                written.unwritable.append(key_of(outcome))
            else:
                log.error(
                    "%s: the database refused its outcome %s, so it failed: %s%s",
                    title,
                    outcome.ending,
                    error.said,
                    f" (its own error: {headline(outcome.error)})" if outcome.error else "",
                )
            written.refused.append(failed)
            return []

        written.lost = _apart(write, outcomes, refused)
        return written

    def keep(self, worker: str, outcome: Outcome, error: DataRefused, now: float | None) -> None:
        """Nothing can be written for this claim: it stays held, and its history says so."""
        try:
            with self._database.write(now) as tx:
                is_new = self.source.note_refused(tx, worker, outcome, storable(error.said))
        except DataRefused:
            is_new = True
        if is_new:
            log.error(
                "%s: the database refuses whatever is written about it, so it stays claimed until its worker "
                "ends; `rowlock doctor` lists it: %s",
                self._title(outcome),
                error.said,
            )

    def _title(self, outcome: Outcome) -> str:
        return outcome.title if outcome.task else self.source.titles([key_of(outcome)])[0]


def key_of(outcome: Outcome) -> ClaimKey:
    """Which claim it is the outcome of."""
    return (outcome.id, outcome.claim)


def _apart(
    write: Callable[[Sequence[T]], list[R]], items: Sequence[T], refused: Callable[[T, DataRefused], list[R]]
) -> list[R]:
    """Write them all, in one transaction; after a refusal each half by itself, down to what is refused."""
    if not items:
        return []
    try:
        return write(items)
    except DataRefused as error:
        if len(items) == 1:
            return refused(items[0], error)
    middle = len(items) // 2
    return _apart(write, items[:middle], refused) + _apart(write, items[middle:], refused)
