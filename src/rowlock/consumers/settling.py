"""Writes a run's outcome to its row and its claim, inside the caller's transaction.

Every statement names the claim and the worker that holds it; a claim that was lost changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rowlock.codec import json_text
from rowlock.consumers.batches import Member, taken_apart
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.forms.base import reason
from rowlock.consumers.row import key_text, own_budget
from rowlock.consumers.table import Table
from rowlock.job import Ending, Outcome
from rowlock.stores.sql.finishing import pause
from rowlock.stores.sql.session import Session

log = logging.getLogger("rowlock.consumer")

_LASTING = (Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED)


class Settled(NamedTuple):
    """What became of outcomes."""

    lost: list[Outcome]  # their claims were lost, and nothing was written
    unmarked: list[Any]  # the keys of rows that were gone, or that others had changed


class RowSettling:
    """The outcomes of one consumer."""

    def __init__(self, consumer: Consumer, table: Callable[[], Table]) -> None:
        self._consumer = consumer
        self._table = table

    def settle(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> Settled:
        """Write the outcomes, each row of a batch on its own."""
        parts = self.parts(tx, worker, outcomes)
        singles = [single for each in parts for single in each]
        lasting = [one for one in singles if one.ending in _LASTING]
        passing = [one for one in singles if one.ending not in _LASTING]
        ended, unmarked = self._end(tx, worker, lasting)
        settled = ended | self._give_back(tx, worker, passing)
        lost = [
            whole
            for whole, each in zip(outcomes, parts, strict=True)
            if not any(single.claim in settled for single in each)
        ]
        return Settled(lost, unmarked)

    def parts(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
        """The outcomes of the rows of each batch; an outcome of a single row stays as it is."""
        if self._consumer.batch is None:
            return [[outcome] for outcome in outcomes]
        members: dict[int, list[Member]] = {}
        ids = json_text([outcome.claim for outcome in outcomes if not outcome.single])
        for batch, claim, failures, key, budget in tx.rows("members", ids=ids, worker=worker):
            member = Member(claim, failures, key_text(key), own_budget(budget))
            members.setdefault(batch, []).append(member)
        retry = self._consumer.retry
        return [
            [one] if one.single else taken_apart(one, members.get(one.claim, []), retry) for one in outcomes
        ]

    def _end(self, tx: Session, worker: str, outcomes: list[Outcome]) -> tuple[set[int], list[Any]]:
        """Returns the claims that this has ended, and the keys of rows that could not be marked."""
        if not outcomes:
            return set(), []
        form, ids = self._consumer.form, json_text([outcome.claim for outcome in outcomes])
        ended = {
            claim: (key, failures) for claim, key, failures in tx.rows("end_claims", ids=ids, worker=worker)
        }
        kept = [(one, *ended[one.claim]) for one in outcomes if one.claim in ended]
        marks = [(key, form.mark_values(one, failures)) for one, key, failures in kept]
        unmarked = self._mark(tx, [(key, values) for key, values in marks if values is not None])
        for key in unmarked:
            log.warning(
                "consumer %s: row %s was deleted while it was worked on, or somebody else has changed its "
                "state: there is nothing to mark",
                self._consumer.name,
                key,
            )
        if form.keeps_failures:
            self._keep_failures(tx, kept, unmarked)
        return set(ended), unmarked

    def _keep_failures(
        self, tx: Session, outcomes: list[tuple[Outcome, Any, int]], unmarked: list[Any]
    ) -> None:
        """Record in rowlock's own table which rows have failed: they are due again only after `retry`."""
        if self._consumer.form.shows_failures:  # the row was reset by its user: forget the failure
            done = [{"row_key": key} for one, key, _ in outcomes if one.ending is Ending.COMPLETED]
            tx.each("forget_failure", done)
        failed = [
            {"row_key": key, "failures": failures + one.charge, "error": reason(one.error)}
            for one, key, failures in outcomes
            if one.ending is not Ending.COMPLETED and key not in unmarked
        ]
        tx.each("keep_failure", failed)

    def _mark(self, tx: Session, marks: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
        """Write the outcomes into the rows; returns the keys of rows that could not be marked."""
        unmarked: list[Any] = []
        single = marks
        if "mark_all" in self._table().statements:  # most rows get the same values: one round trip for these
            alike: dict[str, list[tuple[Any, dict[str, Any]]]] = {}
            for key, values in marks:
                alike.setdefault(json_text(values), []).append((key, values))
            single = [group[0] for group in alike.values() if len(group) == 1]
            for group in alike.values():
                if len(group) > 1:
                    keys = [key for key, _ in group]
                    there = {row[0] for row in tx.rows("mark_all", ids=json_text(keys), **group[0][1])}
                    unmarked += [key for key in keys if key not in there]
        given = [{"row_key": key, **values} for key, values in single]
        counts = tx.each("mark", given)
        return unmarked + [one["row_key"] for one, count in zip(given, counts, strict=True) if not count]

    def _give_back(self, tx: Session, worker: str, outcomes: list[Outcome]) -> set[int]:
        """Retries keep their claims until they are due; the claim of a row that was never tried is deleted.

        Returns the claims that were given back.
        """
        if outcomes and self._consumer.form.holds:
            tx.rows("lock_rows", ids=json_text([one.claim for one in outcomes]), worker=worker)
            for charge in sorted({outcome.charge for outcome in outcomes}):
                alike = json_text([outcome.claim for outcome in outcomes if outcome.charge == charge])
                tx.run("give_rows_back", ids=alike, worker=worker, charge=charge)
        given = [
            {
                "claim_number": one.claim,
                "worker": worker,
                "delay": one.delay or 0.0,
                "charge": one.charge,
                "event": str(one.ending),
                "isolate": one.isolate,
                "error": one.error,
                "error_kind": one.error_kind,
            }
            for one in outcomes
        ]
        counts = tx.each("return_claim", given)
        returned = [one for one, count in zip(outcomes, counts, strict=True) if count]
        untried = [one.claim for one in returned if one.ending is Ending.RELEASED and one.delay is None]
        if untried:
            tx.run("forget_claims", ids=json_text(untried))
        pause(tx, returned, self._consumer.queue)
        return {one.claim for one in returned}
