"""Writes a run's outcome to its row and its claim, inside the caller's transaction.

Every statement names the claim and the worker that holds it; a claim that was lost changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from rowlock.codec import json_text
from rowlock.consumers.batches import taken_apart
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.forms.base import Form, reason
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


def settle(table: Table, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> Settled:
    """Write the outcomes, each row of a batch on its own."""
    each_of = parts(table.consumer, tx, worker, outcomes)
    singles = [single for each in each_of for single in each]
    lasting = [one for one in singles if one.ending in _LASTING]
    passing = [one for one in singles if one.ending not in _LASTING]
    ended, unmarked = _end(table, tx, worker, lasting)
    settled = ended | _give_back(table.consumer, tx, worker, passing)
    lost = [
        whole
        for whole, each in zip(outcomes, each_of, strict=True)
        if not any(single.claim in settled for single in each)
    ]
    return Settled(lost, unmarked)


def parts(consumer: Consumer, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """The outcomes of the rows of each batch; an outcome of a single row stays as it is."""
    if consumer.batch is None:
        return [[outcome] for outcome in outcomes]
    ids = json_text([outcome.claim for outcome in outcomes if not outcome.single])
    members: dict[int, list[Any]] = {}
    for batch, *member in tx.rows("members", ids=ids, worker=worker):
        members.setdefault(batch, []).append(member)
    # Of a batch that was lost nothing is left.
    return [taken_apart(one, members.get(one.claim, []), consumer.retry) or [one] for one in outcomes]


def _end(table: Table, tx: Session, worker: str, outcomes: list[Outcome]) -> tuple[set[int], list[Any]]:
    """Returns the claims that this has ended, and the keys of rows that could not be marked."""
    if not outcomes:
        return set(), []
    form, ids = table.consumer.form, json_text([outcome.claim for outcome in outcomes])
    ended = {claim: (key, failures) for claim, key, failures in tx.rows("end_claims", ids=ids, worker=worker)}
    kept = [(one, *ended[one.claim]) for one in outcomes if one.claim in ended]
    marks = [(key, form.mark_values(one, failures)) for one, key, failures in kept]
    unmarked = _mark(table, tx, [(key, values) for key, values in marks if values is not None])
    for key in unmarked:
        log.warning(
            "consumer %s: row %s was deleted while it was worked on, or somebody else has changed its "
            "state: there is nothing to mark",
            table.consumer.name,
            key,
        )
    if form.keeps_failures:
        _keep_failures(form, tx, kept, unmarked)
    return set(ended), unmarked


def _keep_failures(
    form: Form, tx: Session, outcomes: list[tuple[Outcome, Any, int]], unmarked: list[Any]
) -> None:
    """Record in rowlock's own table which rows have failed: they are due again only after `retry`."""
    if form.shows_failures:  # the row was reset by its user: forget the failure
        done = [{"row_key": key} for one, key, _ in outcomes if one.ending is Ending.COMPLETED]
        tx.each("forget_failure", done)
    failed = [
        {"row_key": key, "failures": failures + one.charge, "error": reason(one.error)}
        for one, key, failures in outcomes
        if one.ending is not Ending.COMPLETED and key not in unmarked
    ]
    tx.each("keep_failure", failed)


def _mark(table: Table, tx: Session, marks: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
    """Write the outcomes into the rows; returns the keys of rows that could not be marked."""
    unmarked: list[Any] = []
    single = marks
    if "mark_all" in table.statements:  # most rows get the same values: one round trip for these
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


def _give_back(consumer: Consumer, tx: Session, worker: str, outcomes: list[Outcome]) -> set[int]:
    """Retries keep their claims until they are due; the claim of a row that was never tried is deleted.

    Returns the claims that were given back.
    """
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
    if given and consumer.form.holds:
        tx.rows("lock_rows", ids=json_text([one.claim for one in outcomes]), worker=worker)
        tx.each("give_row_back", given)
    counts = tx.each("return_claim", given)
    returned = [one for one, count in zip(outcomes, counts, strict=True) if count]
    untried = [one.claim for one in returned if one.ending is Ending.RELEASED and one.delay is None]
    if untried:
        tx.run("forget_claims", ids=json_text(untried))
    pause(tx, returned, consumer.queue)
    return {one.claim for one in returned}
