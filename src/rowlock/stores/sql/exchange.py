"""The exchange: outcomes go out and claims come in, in one transaction, whatever the source of work.

Reports come first, then outcomes, minutes and claims; what the database refuses is written apart afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import msgspec

from rowlock.errors import DataRefused, WorkerGone
from rowlock.job import Claim, ClaimKey, ClaimRequest, Ending, Exchange, ExchangeResult, Outcome, Report
from rowlock.monitoring import Minute
from rowlock.stores.source import Source
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.refusals import Refusals, key_of
from rowlock.stores.sql.session import Session


class Exchanges:
    """The exchanges of one source."""

    def __init__(self, database: Database, source: Source, refusals: Refusals) -> None:
        self._database = database
        self._source = source
        self._refusals = refusals
        self._with_retries = database.retried(self._attempt)
        # The last claim found something: the next need not look before it asks for the lock.
        self._found = False

    def exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        request: ClaimRequest | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        resent: bool = False,
    ) -> ExchangeResult:
        """Hand back outcomes and take new claims, in one transaction.

        `resent` says that these outcomes may have been written already: the last call ended in
        `OutcomeUnknown`. Those that were are not counted as lost.
        """
        asked = Exchange(
            worker=worker,
            outcomes=outcomes,
            request=request,
            reports=reports,
            minutes=minutes,
            now=now,
            resent=resent,
        )
        return self._made(asked)

    def hand_over(self, worker: str, request: ClaimRequest, now: float | None = None) -> ExchangeResult:
        """Take claims for a relay: others begin them, by `start`."""
        return self._made(Exchange(worker=worker, request=request, now=now, hand_over=True))

    def start(
        self, worker: str, claim: ClaimKey, queues: tuple[str, ...] = (), **written: Any
    ) -> ExchangeResult:
        """Begin a claim that was handed over, if it is of these queues (none named: of any).

        In place of a new claim: `written` is what `exchange` writes.
        """
        return self._made(Exchange(worker=worker, start=claim, start_queues=queues, **written))

    def held(self, worker: str) -> list[tuple[int, int, bool]]:
        """The claims of this worker: (id, claim, whether somebody asked to cancel it)."""
        with self._database.read() as db:
            return self._source.held(db, worker)

    def _made(self, asked: Exchange) -> ExchangeResult:
        if asked.request is not None and not (asked.request.count > 0 and self._source.may_claim()):
            asked = msgspec.structs.replace(asked, request=None)
        try:
            return self._with_retries(asked)
        except DataRefused:
            return self._apart(asked)

    def _attempt(self, asked: Exchange) -> ExchangeResult:
        """By one statement if the source has one for this; what that leaves unclaimed is attempted again."""
        done = self._source.in_one_statement(asked)
        if done is None:
            return self._in_transaction(asked)
        got, rest = done
        if rest is None:
            return got
        try:
            more = self._attempt(rest)
        except (WorkerGone, DataRefused):  # what was finished is kept; the next claim says the same
            if not (asked.outcomes or got.claims):
                raise
            return got
        return ExchangeResult(got.claims + more.claims, got.lost)

    def _in_transaction(self, asked: Exchange) -> ExchangeResult:
        """All of it or nothing, in one transaction."""
        source, worker, request = self._source, asked.worker, asked.request
        if not (asked.writes or asked.start or self._found or self._has_work(asked)):
            return ExchangeResult()  # a read told it: an empty queue costs no write transaction
        with self._database.write(asked.now) as tx:
            source.report(tx, asked.reports)
            lost = not_written = self._finish(tx, asked)
            if asked.resent:
                lost = [outcome for outcome in not_written if not source.was_written(tx, outcome)]
            source.announce(tx, [one for one in asked.outcomes if one.ending is Ending.RELEASED])
            if asked.minutes:
                tx.each("add_minute", [msgspec.structs.asdict(minute) for minute in asked.minutes])
            claims: list[Claim] = []
            try:
                claims = self._claim(tx, asked)
            except WorkerGone:  # what was finished is kept; its death is heard of at the next beat
                if not asked.writes:
                    raise
            self._leave_trace(tx, asked, not_written, claims)
        if claims:
            self._database.got_up(worker)
        again = source.look_again_in(worker, request) if request else math.inf
        return ExchangeResult(claims, lost, look_again_in=again)

    def _has_work(self, asked: Exchange) -> bool:
        return asked.request is not None and self._source.has_work(asked.worker, asked.request, asked.now)

    def _claim(self, tx: Session, asked: Exchange) -> list[Claim]:
        if asked.start is not None:
            begun = self._source.start(tx, asked.worker, asked.start, asked.start_queues)
            return [begun] if begun else []
        if asked.request is None:
            return []
        claims = self._source.pick(tx, asked.worker, asked.request, begins=not asked.hand_over)
        self._found = bool(claims)
        return claims

    def _finish(self, tx: Session, asked: Exchange) -> list[Outcome]:
        """Write the outcomes; returns those whose claims were lost.

        A worker's jobs are taken from it as it is declared dead; a user's rows later, by rescue, which
        decides what they cost: until then such a worker gives none back.
        """
        released = [one for one in asked.outcomes if one.ending is Ending.RELEASED]
        rows = not self._source.is_jobs
        if released and rows and tx.row("worker_lives", worker=asked.worker) is None:
            others = [one for one in asked.outcomes if one.ending is not Ending.RELEASED]
            return [*released, *self._source.finish(tx, asked.worker, others)]
        return self._source.finish(tx, asked.worker, asked.outcomes)

    def _leave_trace(
        self, tx: Session, asked: Exchange, not_written: Sequence[Outcome], claims: Sequence[Claim]
    ) -> None:
        """One claim or outcome is enough to see later that this was committed: all are written, or none.

        Not an outcome that was there before, when it is given again: it says nothing about this transaction.
        """
        source, worker = self._source, asked.worker
        written = next((outcome for outcome in asked.outcomes if outcome not in not_written), None)
        if claims:
            first = (claims[0].id, claims[0].claim)
            tx.witness = lambda db: any(one[:2] == first for one in source.held(db, worker))
        elif written is not None:
            tx.witness = lambda db: source.took_effect(db, written)

    # -- after a refusal -------------------------------------------------------------------------

    def _apart(self, asked: Exchange) -> ExchangeResult:
        self._refusals.report(asked.reports, asked.now)
        with self._database.read(asked.now) as db:
            parts = self._source.parts(db, asked.worker, asked.outcomes)

        def write(some: Sequence[Outcome]) -> list[Outcome]:
            # Some may have been written before the refusal: where each statement commits by itself.
            return self._with_retries(_only(asked, outcomes=some, resent=True)).lost

        singles = [one for each in parts for one in each]
        written = self._refusals.write_apart(asked.worker, singles, write, asked.now)
        if asked.minutes:
            self._with_retries(_only(asked, minutes=asked.minutes))
        claimed = self._claim_after(asked) if asked.request or asked.start else ExchangeResult()
        lost = {key_of(one) for one in written.lost}
        refused = {key_of(one): one for one in written.refused}
        return ExchangeResult(
            claims=claimed.claims,
            lost=[whole for whole, each in zip(asked.outcomes, parts, strict=True) if _all_in(each, lost)],
            # A run of several rows has failed if all of them were refused.
            refused=[
                msgspec.structs.replace(refused[key_of(each[0])], id=whole.id, claim=whole.claim)
                for whole, each in zip(asked.outcomes, parts, strict=True)
                if _all_in(each, refused)
            ],
            unwritable=[*written.unwritable, *claimed.unwritable],
            was_split=True,
        )

    def _claim_after(self, asked: Exchange) -> ExchangeResult:
        """The claims of an exchange whose outcomes are written."""
        try:
            try:
                return self._with_retries(asked.claims_only())
            except DataRefused:
                claimed = self._claim_apart(asked)
                if claimed is None:
                    raise
                return claimed
        except (DataRefused, WorkerGone):  # what was finished is kept; the next claim says the same
            if not (asked.outcomes or asked.reports):
                raise
            return ExchangeResult()

    def _claim_apart(self, asked: Exchange) -> ExchangeResult | None:
        if asked.request is None:  # a start: the claim stays with the relay, which takes it back
            return ExchangeResult()
        picked = self._source.pick_apart(asked.worker, asked.request, not asked.hand_over, asked.now)
        if picked is None:
            return None
        claims, refused = picked
        for outcome, error in refused:
            self._refusals.keep(asked.worker, outcome, error, asked.now)
        if claims:
            self._database.got_up(asked.worker)
        return ExchangeResult(claims, unwritable=[key_of(one) for one, _ in refused])


def _only(asked: Exchange, **parts: Any) -> Exchange:
    """An exchange of the same worker, of these parts alone."""
    return Exchange(worker=asked.worker, now=asked.now, **parts)


def _all_in(outcomes: Sequence[Outcome], keys: Container[ClaimKey]) -> bool:
    return all(key_of(one) in keys for one in outcomes)
