"""The exchanges of a worker or a poller with its store: outcomes go out, claims come in.

Keeps what could not be written, and gives back claims whose answer was lost. One call at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from rowlock.claim_outcomes import given_back
from rowlock.errors import StoreError, WorkerGone
from rowlock.job import ClaimKey, ClaimRequest, ExchangeResult, Outcome
from rowlock.stores.sql.store import Store
from rowlock.worker.counts import Counts
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.lost_claims import LostClaims
from rowlock.worker.poll_timing import PollTiming
from rowlock.worker.unwritten_outcomes import Batch, Unwritten

log = logging.getLogger("rowlock.worker")


class Exchanger:
    """One worker's exchanges with its store."""

    def __init__(
        self,
        store: Store,
        heartbeat: Heartbeat,
        polls: PollTiming,
        unwritten: Unwritten,
        counts: Counts | None = None,
    ) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._polls = polls
        self._unwritten = unwritten
        self._counts = counts
        self._last_queue = ""
        self._unsure = False  # the last outcomes may have been written, or not
        self.lost_claims = LostClaims(store, heartbeat, unwritten)

    # -- the exchange ----------------------------------------------------------------------------

    def prepare(self, flush: bool = False) -> Batch:
        """What has to be written now; with `flush`, also what could wait."""
        counts = self._counts
        return self._unwritten.take(counts.minutes(self._heartbeat.id, flush) if counts else ())

    def exchange(self, batch: Batch, request: ClaimRequest | None = None) -> ExchangeResult:
        """Write the batch and take the claims that are asked for; counts as a poll."""
        self._heartbeat.ensure()
        if request is not None:
            self._polls.before_claim()
            request = msgspec.structs.replace(request, after=self._last_queue)
        try:
            got = self._call(batch.outcomes, request, batch.reports, batch.minutes, resent=self._unsure)
        except WorkerGone:
            raise
        except StoreError:  # some of it may be written all the same, and claims may be ours that we never saw
            self._unsure = True
            self.lost_claims.expect()
            raise
        self._unsure = False
        self._delivered(batch, got)
        if request is not None:
            claims = got.claims
            if claims:
                self._last_queue = got.last_queue
            # One that runs alone leaves no slot for more.
            full = len(claims) >= request.count or bool(claims and claims[0].isolate)
            self._polls.claimed(len(claims), leaves_some=full or bool(request.unknown))
        return got

    def write(self, outcome: Outcome) -> bool:
        """Write one outcome at once, and nothing else; False if nothing of it is kept."""
        got = self._call([outcome])
        _log_lost(got.lost)
        return not (got.lost or got.refused)

    def keep(self, outcome: Outcome) -> None:
        """Write this with the next exchange: it is not known whether it was written at once."""
        self._unwritten.add(outcome)
        self._unsure = True

    def release_lost_claims(self, in_flight: Collection[ClaimKey]) -> int:
        """Give back the claims whose answer was lost, free of charge; returns how many."""
        titles = self.lost_claims.look(in_flight)
        if not titles:
            return 0
        got = self._call([given_back(job, claim) for job, claim in titles])
        for late in (*got.lost, *got.refused):  # it ended while we looked
            del titles[late.id, late.claim]
        if titles:
            log.warning(
                "%d claims were made, but the database's answer was lost: given back, free of charge: %s",
                len(titles),
                "; ".join(titles.values()),
            )
        return len(titles)

    def count_written(self) -> list[Outcome]:
        """Count the runs that were written by their own transactions; returns them."""
        written = self._unwritten.take_written()
        if self._counts is not None:
            self._counts.tally.lost += sum(outcome.lost for outcome in written)
            self._counts.add(outcome for outcome in written if not outcome.lost)
        return written

    def _call(self, *given: Any, **named: Any) -> ExchangeResult:
        got = self._store.exchange(self._heartbeat.id, *given, **named)
        if got.was_split:  # something was refused: some of what was to be claimed with it may be ours
            self.lost_claims.expect(kept=got.unwritable)
        return got

    def _delivered(self, batch: Batch, got: ExchangeResult) -> None:
        """The batch is durable, but for the outcomes whose claims were lost; refused ones failed."""
        self._unwritten.delivered()
        _log_lost(got.lost)
        counts = self._counts
        if counts is None:
            return
        if batch.minutes:
            counts.minutes_written()
        kept = batch.outcomes
        if got.lost or got.refused:
            counts.tally.lost += len(got.lost)
            lost = {(outcome.id, outcome.claim) for outcome in got.lost}
            failed = {(outcome.id, outcome.claim): outcome for outcome in got.refused}
            kept = [failed.get(key, one) for one in kept if (key := (one.id, one.claim)) not in lost]
        counts.add(kept)


def _log_lost(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        log.warning(
            "%s: claim %d was lost, its outcome %s is dropped",
            outcome.title,
            outcome.claim,
            outcome.ending,
        )
