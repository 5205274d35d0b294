"""Claims rows of a user's table for a worker: rows without a claim, and rows that are tried again.

Inside the caller's transaction; how rows are locked and claimed is in each database's statements.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from rowlock.codec import json_text
from rowlock.consumers.row import key_text, own_budget, to_text
from rowlock.consumers.table import Table
from rowlock.endings import LONGEST_ISOLATION
from rowlock.errors import WorkerGone
from rowlock.job import Claim, ClaimRequest
from rowlock.stores.sql.session import Session

_SWEEP_EVERY = 1.0  # seconds between scans from the first row; others begin after the last claimed row
_MOST_ROWS = 2_000  # in one exchange


class RowClaiming:
    """The claims of one consumer; it remembers the position of the last row that it claimed."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._consumer = table.consumer
        self._mark: dict[str, Any] | None = None  # the position of the last row that was claimed
        self._strategy = ""  # the strategy by which that row was claimed
        self.sweep_at = 0.0  # when to scan from the first row on again
        self._found_none = False  # the last scan from the first row on found no row to claim

    def start_over(self) -> None:
        """Scan from the first row on next time: a row before the last claimed one may be due again."""
        self._mark = None

    def facts(self, tx: Session, worker: str | None = None) -> tuple[bool, bool, str | None]:
        """Whether the consumer is paused, whether a claim waits to be tried again, and its own strategy.

        Raises if this worker was declared dead.
        """
        is_alive, is_paused, returned, strategy, *_ = tx.row("consumer_facts", worker=worker)
        if worker is not None and not is_alive:
            raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
        return bool(is_paused), bool(returned), strategy

    def take(self, tx: Session, worker: str, request: ClaimRequest, begins: bool) -> list[Claim]:
        """Claim rows for this worker: pick them, show that in the user's rows, and read these.

        With `begins` False it is a relay, and others begin them.
        """
        retried, fresh = self.pick(tx, worker, request, begins)
        numbers = [*retried, *(row[0] for row in fresh)]
        self.show(tx, worker, numbers, begins)
        if retried or self._consumer.form.holds or (fresh and len(fresh[0]) == 1):
            return self.claims_of(tx, worker, numbers, retried)
        return self._claims(tx, worker, fresh, retried)

    def pick(
        self, tx: Session, worker: str, request: ClaimRequest, begins: bool
    ) -> tuple[list[int], list[Any]]:
        """Claims that the user's rows do not show yet: numbers of those that are tried again, and new claims.

        Some stores return new claims with their rows.
        """
        is_paused, returned, own_strategy = self.facts(tx, worker)
        if is_paused:
            return [], []
        taken: list[int] = []
        holder = {"worker": worker, "begins": int(begins)}
        count = min(request.count * (self._consumer.batch or 1), max(_MOST_ROWS, self._consumer.batch or 1))
        if returned and request.may_isolate:  # whose worker died: they may kill the next one, too
            taken = self._retake(tx, holder, 1, (1, LONGEST_ISOLATION))
            if taken:
                return taken, []
        if returned:
            taken = self._retake(tx, holder, count, (0, 0))
        if len(taken) == count:
            return taken, []
        return taken, self._take_free(tx, holder, own_strategy or request.strategy, count - len(taken))

    def show(self, tx: Session, worker: str, claims: Sequence[int], begins: bool) -> int:
        """Write claims into the user's rows, if the form has a place for them; returns how many were due."""
        form, ids = self._consumer.form, json_text(claims)
        if not claims or not form.holds:
            return 0
        if "attempts" in form.columns:
            tx.run("read_attempts", ids=ids)
        return tx.run("take_rows", ids=ids, worker=worker, begins=int(begins))

    def claims_of(
        self, tx: Session, worker: str, claims: Sequence[int], retried: Sequence[int]
    ) -> list[Claim]:
        """The claims with their rows."""
        return self._claims(tx, worker, tx.rows("taken", ids=json_text(claims)) if claims else [], retried)

    def start(self, tx: Session, worker: str, claim: int) -> Claim | None:
        """Move a claim that a relay made (of one row or of a batch) to the worker that begins it.

        None if the relay took it back, another worker began it, or its rows are gone, which ends the claim.
        """
        ids = json_text([claim])
        tx.rows("lock_rows", ids=ids, worker=worker)
        begun = [row[0] for row in tx.rows("start_rows", ids=ids, worker=worker)]
        if not begun:
            return None
        if self._consumer.form.holds:
            tx.run("show_started", ids=ids, worker=worker)
        rows = sorted(tx.rows("taken", ids=json_text(begun)), key=lambda row: row[0])
        gone = set(begun).difference(row[0] for row in rows)
        tx.run("end_claims", ids=json_text(sorted(gone)), worker=worker)
        if not rows:
            return None
        started = self._claim(worker, rows, claimed_before=True)
        return msgspec.structs.replace(started, id=claim, claim=claim)

    def _retake(self, tx: Session, holder: dict[str, Any], count: int, isolate: tuple[int, int]) -> list[int]:
        """Claims that were given back and are due again, each under a new number."""
        least, most = isolate
        taken = []
        for (claim,) in tx.rows("pick_returned", count=count, isolate_least=least, isolate_most=most):
            if "draw_claim" in self._table.statements:
                tx.run("draw_claim")
            taken += [row[0] for row in tx.rows("retake", claim_number=claim, **holder)]
        return taken

    def _take_free(self, tx: Session, holder: dict[str, Any], strategy: str, count: int) -> list[Any]:
        """Claim rows without a claim: after the last claimed row, and once a second from the first row on.

        So most scans do not step over the rows that are in flight or wait to be tried again. Behind 2,000
        that wait, a claim takes 0.5 ms, and 1.6 without this (PostgreSQL: 0.8 and 3.7).
        """
        if strategy != self._strategy:
            self._mark, self._strategy = None, strategy
        backwards = "_backwards" if strategy == "LIFO" else ""
        moment = time.monotonic()
        if self._mark is not None and moment < self.sweep_at:
            taken = tx.rows(f"take_free_beyond{backwards}", count=count, **holder, **self._mark)
            if taken or self._found_none:
                return taken
        taken = tx.rows(f"take_free{backwards}", count=count, **holder)
        self.sweep_at, self._found_none = moment + _SWEEP_EVERY, not taken
        return taken

    def _claims(self, tx: Session, worker: str, taken: list[Any], retried: Sequence[int]) -> list[Claim]:
        if not taken:
            return []
        rows = sorted(taken, key=lambda row: row[0])  # numbers are drawn in the order of the rows
        last = [*rows[-1][6 : self._first_column], rows[-1][1]]
        marks = {f"mark_{place}": value for place, value in zip(self._consumer.places, last, strict=True)}
        self._mark = None if None in last else marks
        batches = _lots(rows, self._consumer.batch or 1)
        several = [batch for batch in batches if len(batch) > 1]
        tx.each(
            "name_batch",
            [{"claim_number": batch[0][0], "ids": json_text([row[0] for row in batch])} for batch in several],
        )
        again = set(retried)
        return [self._claim(worker, batch, any(row[0] in again for row in batch)) for batch in batches]

    @property
    def _first_column(self) -> int:
        """Where the user's columns begin in a row of `taken`: after the claim and the row's position."""
        return 5 + len(self._consumer.position)

    def _claim(self, worker: str, batch: list[Any], claimed_before: bool) -> Claim:
        """One claim for these rows, under the number of the first."""
        claim, key, failures, isolate, claimed_at, budget, *_ = batch[0]
        values = [self._table.loaded(row[self._first_column :]) for row in batch]
        return Claim(
            id=claim,
            claim=claim,
            task=self._consumer.name,
            queue=self._consumer.queue,
            args_json=to_text(self._table.given, values),
            priority=0,
            failures=failures,
            max_attempts=own_budget(budget) or self._consumer.retry.max_attempts,
            created=claimed_at,
            due=claimed_at,
            taken=claimed_at,
            claimed_by=worker,
            unique_key=key_text(key),
            isolate=isolate,
            claimed_before=claimed_before,
            row=key_text(key) + (f" and {len(batch) - 1} more" if len(batch) > 1 else ""),
        )


def _lots(rows: list[Any], most: int) -> list[list[Any]]:
    """Batches of rows that were tried equally often and have the same max_attempts; isolated rows alone."""
    if most == 1:
        return [[row] for row in rows]

    def tries(row: Any) -> tuple[int, int]:
        return row[2], own_budget(row[5]) or 0

    ordered = sorted(rows, key=lambda row: (*tries(row), row[0]))
    alike = [list(some) for _, some in groupby(ordered, key=lambda row: (*tries(row), row[3] and row[0]))]
    return [some[start : start + most] for some in alike for start in range(0, len(some), most)]
