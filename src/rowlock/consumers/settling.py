"""Writes a run's outcome to its row and its claim, inside the caller's transaction.

Every statement names the claim and the worker that holds it; a claim that was lost changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

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


class RowSettling:
    """The outcomes of one consumer; `unmarked` are the keys of rows that were gone or changed."""

    def __init__(self, consumer: Consumer, table: Table) -> None:
        self._consumer = consumer
        self._statements = table.statements
        self.unmarked: list[Any] = []

    def settle(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the outcomes, each row of a batch on its own; returns the outcomes whose claims were lost."""
        parts = self.parts(tx, worker, outcomes)
        singles = [single for each in parts for single in each]
        lasting = [one for one in singles if one.ending in _LASTING]
        passing = [one for one in singles if one.ending not in _LASTING]
        lost = {one.claim for one in (*self._end(tx, worker, lasting), *self._give_back(tx, worker, passing))}
        return [
            whole
            for whole, each in zip(outcomes, parts, strict=True)
            if all(single.claim in lost for single in each)
        ]

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

    def _end(self, tx: Session, worker: str, outcomes: list[Outcome]) -> list[Outcome]:
        if not outcomes:
            return []
        form, ids = self._consumer.form, json_text([outcome.claim for outcome in outcomes])
        ended = {
            claim: (key, failures) for claim, key, failures in tx.rows("end_claims", ids=ids, worker=worker)
        }
        kept = [(one, *ended[one.claim]) for one in outcomes if one.claim in ended]
        marks = [(key, form.mark_values(one, failures)) for one, key, failures in kept]
        if form.keeps_failures:
            self._keep_failures(tx, kept, [values.get("mark") if values else None for _, values in marks])
        for key in self._mark(tx, [(key, values) for key, values in marks if values is not None]):
            self.unmarked.append(key)
            log.warning(
                "consumer %s: row %s was deleted while it was worked on, or somebody else has changed its "
                "state: there is nothing to mark",
                self._consumer.name,
                key,
            )
        return [outcome for outcome in outcomes if outcome.claim not in ended]

    def _keep_failures(
        self, tx: Session, outcomes: list[tuple[Outcome, Any, int]], marks: list[str | None]
    ) -> None:
        """Record in rowlock's own table which rows have failed: they are due again only after `retry`."""
        if self._consumer.form.shows_failures:  # the row was reset by its user: forget the failure
            done = [{"row_key": key} for one, key, _ in outcomes if one.ending is Ending.COMPLETED]
            tx.each("forget_failure", done)
        failed = [
            {"row_key": key, "failures": failures + one.charge, "error": reason(one.error), "mark": mark}
            for (one, key, failures), mark in zip(outcomes, marks, strict=True)
            if one.ending is not Ending.COMPLETED
        ]
        tx.each("keep_failure", failed)

    def _mark(self, tx: Session, marks: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
        """Write the outcomes into the rows; returns the keys of rows that could not be marked."""
        missing: list[Any] = []
        single = marks
        if "mark_all" in self._statements:  # most rows get the same values: one round trip for all of these
            alike: dict[str, list[tuple[Any, dict[str, Any]]]] = {}
            for key, values in marks:
                alike.setdefault(json_text(values), []).append((key, values))
            single = [group[0] for group in alike.values() if len(group) == 1]
            for group in alike.values():
                if len(group) > 1:
                    keys = [key for key, _ in group]
                    there = {row[0] for row in tx.rows("mark_all", ids=json_text(keys), **group[0][1])}
                    missing += [key for key in keys if key not in there]
        given = [{"row_key": key, **values} for key, values in single]
        counts = tx.count_each("mark", given)
        return missing + [one["row_key"] for one, changed in zip(given, counts, strict=True) if not changed]

    def _give_back(self, tx: Session, worker: str, outcomes: list[Outcome]) -> list[Outcome]:
        """Retries keep their claims until they are due; a claim that never ran is deleted."""
        if outcomes and self._consumer.form.holds:
            if "lock_rows" in self._statements:
                tx.rows("lock_rows", ids=json_text([one.claim for one in outcomes]), worker=worker)
            for charge in sorted({outcome.charge for outcome in outcomes}):
                alike = json_text([outcome.claim for outcome in outcomes if outcome.charge == charge])
                tx.run("give_rows_back", ids=alike, worker=worker, charge=charge)
        given = {
            one.claim: {
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
        }
        forgettable = [
            given[one.claim]
            for one in outcomes
            if one.ending is Ending.RELEASED and one.delay is None and not one.isolate
        ]
        gone = _changed(tx, "forget_claim", forgettable)
        back = _changed(tx, "return_claim", [given[claim] for claim in given if claim not in gone])
        pause(tx, [one for one in outcomes if one.claim in back], self._consumer.queue)
        return [one for one in outcomes if one.claim not in gone | back]


def _changed(tx: Session, statement: str, given: list[dict[str, Any]]) -> set[int]:
    """Run the statement for each of these claims; returns those that it has changed."""
    counts = tx.count_each(statement, given)
    return {one["claim_number"] for one, changed in zip(given, counts, strict=True) if changed}
