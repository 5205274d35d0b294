"""What the database refuses about one outcome ends that one and holds up no other: for jobs and for rows.

What belongs together is written together first; only after a refusal it is taken apart.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from typing import TypeVar

import msgspec

from rowlock.endings import Event, Facts, settled
from rowlock.errors import DataRefused, WorkerGone
from rowlock.headline import headline, storable
from rowlock.job import ClaimRequest, ExchangeResult, Key, Minute, Outcome, Report
from rowlock.retry import DEFAULT

log = logging.getLogger("rowlock.refused")

REFUSED = (
    "refused"  # the error kind of such a run; and what is noted of a claim that nothing can be written for
)
AGAIN_EVERY = 60.0  # seconds between tries to take back from a dead worker what was refused before
_MOST_REMEMBERED = 10_000

T = TypeVar("T")
R = TypeVar("R")


def apart(
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
    return apart(write, items[:middle], refused) + apart(write, items[middle:], refused)


def failure(outcome: Outcome, error: DataRefused) -> Outcome:
    """What a run comes to whose outcome is refused."""
    return settled(outcome, Event.REFUSED, Facts(), DEFAULT, error.said)


class Written(msgspec.Struct):
    """What became of outcomes that were written apart."""

    lost: list[Outcome] = []
    refused: list[Outcome] = []  # as the failures that they are now
    unwritten: list[Key] = []  # of these not even the failure could be written


class RefusedOutcomes(ABC):
    """`exchange` and `report`, in which what the database refuses about one claim holds up no other."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped: set[Key] = set()  # claims of which a report was refused, and this was said

    # -- what each kind of store has -------------------------------------------------------------

    @abstractmethod
    def _exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        request: ClaimRequest | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        again: bool = False,
    ) -> ExchangeResult:
        """The exchange, all of it or nothing."""

    @abstractmethod
    def _report_all(self, reports: Sequence[Report], now: float | None) -> None:
        """Write progress and log lines in one transaction."""

    @abstractmethod
    def _note_refused(self, worker: str, outcome: Outcome, said: str, now: float | None) -> bool:
        """Note that the outcome of this claim cannot be written; False if that was known already."""

    @abstractmethod
    def titles(self, held: Sequence[Key]) -> list[str]:
        """How these claims are called in log lines."""

    def _members(self, worker: str, outcomes: Sequence[Outcome], now: float | None) -> list[list[Outcome]]:
        """For each outcome those of which it is made up: of several rows, each has its own."""
        return [[outcome] for outcome in outcomes]

    def _claim_apart(self, worker: str, request: ClaimRequest, now: float | None) -> ExchangeResult | None:
        """Claim one by one, where a claim itself may be refused; None if it cannot be."""
        return None

    # -- the verbs -------------------------------------------------------------------------------

    def exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        request: ClaimRequest | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        again: bool = False,
    ) -> ExchangeResult:
        """Hand back outcomes and take new claims, in one transaction, or apart if something is refused."""
        try:
            return self._exchange(worker, outcomes, request, reports, minutes, now, again)
        except DataRefused:
            return self._exchange_apart(worker, outcomes, request, reports, minutes, now)

    def report(self, reports: Sequence[Report], now: float | None = None) -> None:
        """Write progress and log lines of claims that still hold; what is refused is dropped."""

        def write(some: Sequence[Report]) -> list[None]:
            self._report_all(some, now)
            return []

        apart(write, reports, self._drop)

    def _drop(self, report: Report, error: DataRefused) -> list[None]:
        key = (report.id, report.claim)
        if key not in self._dropped:  # once for each run, which may report twice a second
            if len(self._dropped) > _MOST_REMEMBERED:
                self._dropped.clear()
            self._dropped.add(key)
            (title,) = self.titles([key])
            log.warning("%s: the database refused its progress or log lines: %s", title, error.said)
        return []

    # -- after a refusal -------------------------------------------------------------------------

    def _exchange_apart(
        self,
        worker: str,
        outcomes: Sequence[Outcome],
        request: ClaimRequest | None,
        reports: Sequence[Report],
        minutes: Sequence[Minute],
        now: float | None,
    ) -> ExchangeResult:
        self.report(reports, now)
        members = self._members(worker, outcomes, now)

        def write(some: Sequence[Outcome]) -> list[Outcome]:
            # Some may have been written before the refusal: where each statement commits by itself.
            return self._exchange(worker, some, now=now, again=True).lost

        written = self.write_apart(worker, [one for each in members for one in each], write, now)
        if minutes:
            self._exchange(worker, minutes=minutes, now=now)
        claimed = ExchangeResult()
        if request is not None:
            claimed = self._claim_after(worker, request, now, only=not (outcomes or reports))
        lost = {_key(one) for one in written.lost}
        refused = {_key(one): one for one in written.refused}
        return ExchangeResult(
            claims=claimed.claims,
            lost=[whole for whole, each in zip(outcomes, members, strict=True) if _all_in(each, lost)],
            last_queue=claimed.last_queue,
            # A run of several rows has failed if all of them were refused.
            refused=[
                msgspec.structs.replace(refused[_key(each[0])], id=whole.id, claim=whole.claim)
                for whole, each in zip(outcomes, members, strict=True)
                if _all_in(each, refused)
            ],
            unwritten=[*written.unwritten, *claimed.unwritten],
            apart=True,
        )

    def _claim_after(
        self, worker: str, request: ClaimRequest, now: float | None, only: bool
    ) -> ExchangeResult:
        """The claims of an exchange whose outcomes are written; `only`: there were none, and it may raise."""
        try:
            try:
                return self._exchange(worker, request=request, now=now)
            except DataRefused:
                claimed = self._claim_apart(worker, request, now)
                if claimed is None:
                    raise
                return claimed
        except (DataRefused, WorkerGone):  # what was finished is kept; the next claim says the same
            if only:
                raise
            return ExchangeResult()

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
            failed, title = failure(outcome, error), self._title_of(outcome)
            try:
                if write([failed]):
                    return [outcome]
            except DataRefused as again:
                self.keep_refused(worker, failed, title, again, now)
                written.unwritten.append(_key(outcome))
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

        written.lost = apart(write, outcomes, refused)
        return written

    def keep_refused(
        self, worker: str, outcome: Outcome, title: str, error: DataRefused, now: float | None
    ) -> None:
        """Nothing can be written for this claim: it stays where it is, and is known for that."""
        try:
            is_new = self._note_refused(worker, outcome, storable(error.said), now)
        except DataRefused:
            is_new = True
        if is_new:
            log.error(
                "%s: the database refuses whatever is written about it, so it stays claimed until its worker "
                "ends; `rowlock doctor` lists it: %s",
                title,
                error.said,
            )

    def _title_of(self, outcome: Outcome) -> str:
        return outcome.title if outcome.task else self.titles([_key(outcome)])[0]


def _key(outcome: Outcome) -> Key:
    return (outcome.id, outcome.claim)


def _all_in(outcomes: Sequence[Outcome], keys: Container[Key]) -> bool:
    return all(_key(one) in keys for one in outcomes)
