"""Claims rows of a user's table for a worker: rows without a claim, and rows that are tried again.

Inside the caller's transaction; how rows are locked and claimed is in each database's statements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rowlock.codec import json_text
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.row import to_text
from rowlock.consumers.table import Table
from rowlock.endings import LONGEST_ISOLATION
from rowlock.errors import WorkerGone
from rowlock.job import Claim, ClaimRequest
from rowlock.stores.sql.session import Session

_SWEEP_EVERY = 1.0  # seconds between scans from the first row; others begin after the last claimed row
_MOST_ROWS = 2_000  # in one exchange


class RowClaiming:
    """The claims of one consumer; it remembers the position of the last row that it claimed."""

    def __init__(self, consumer: Consumer, table: Callable[[], Table]) -> None:
        self._consumer = consumer
        self._table = table
        self._mark: dict[str, Any] | None = None  # the position of the last row that was claimed
        self._strategy = ""  # the strategy by which that row was claimed
        self.sweep_at = 0.0  # when to scan from the first row on again
        self._found_none = False  # the last scan from the first row on found no row to claim

    @property
    def _first_column(self) -> int:
        """Where the user's columns begin in a row of `taken`: after the claim and the row's position."""
        return 5 + len(self._consumer.position)

    def start_over(self) -> None:
        """Scan from the first row on next time: a row before the last claimed one may be due again."""
        self._mark = None

    def is_paused(self, tx: Session) -> bool:
        """Whether the consumer is paused."""
        return bool(self._ask(tx, "")[1])

    def facts(self, tx: Session, worker: str) -> Any:
        """Whether the consumer is paused, whether a claim waits to be tried again, and its own strategy."""
        alive, *facts = self._ask(tx, worker)
        if not alive:
            raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
        return facts

    def _ask(self, tx: Session, worker: str) -> Any:
        values = {"worker": worker, "queue": self._consumer.queue, "consumer": self._consumer.name}
        return tx.row("consumer_facts", **values)

    def take(self, tx: Session, worker: str, request: ClaimRequest) -> list[Claim]:
        """Claim rows for this worker: first those that are tried again, then rows without a claim."""
        taken, fresh = self._pick(tx, worker, request)
        if not (taken or fresh):
            return []
        ids = json_text([*taken, *(row[0] for row in fresh)])
        if self._consumer.form.holds:
            self._show(tx, worker, ids)
        as_they_are = fresh and len(fresh[0]) > 1 and not (taken or self._consumer.form.holds)
        return self._claims(tx, worker, fresh if as_they_are else tx.rows("taken", ids=ids), set(taken))

    # The same in steps, each in a transaction of its own: for tables where the database may refuse one row.

    def pick(self, tx: Session, worker: str, request: ClaimRequest) -> tuple[list[int], set[int]]:
        """Claims that the user's rows do not show yet, and which of these are tried again."""
        taken, fresh = self._pick(tx, worker, request)
        return [*taken, *(row[0] for row in fresh)], set(taken)

    def show(self, tx: Session, worker: str, claim: int) -> bool:
        """Write one claim into the user's row; if the row is not due any more, end the claim: False."""
        if self._show(tx, worker, json_text([claim])):
            return True
        tx.run("end_claims", ids=json_text([claim]), worker=worker)
        return False

    def _show(self, tx: Session, worker: str, ids: str) -> int:
        if self._consumer.form.reads_attempts:
            tx.run("read_attempts", ids=ids)
        return tx.run("take_rows", ids=ids, worker=worker, **self._consumer.form.always())

    def claims_of(self, tx: Session, worker: str, taken: list[int], retried: set[int]) -> list[Claim]:
        """The claims with their rows."""
        rows = tx.rows("taken", ids=json_text(taken)) if taken else []
        return self._claims(tx, worker, rows, retried) if rows else []

    # For a relay, which claims rows that other workers run.

    def hand_over(self, tx: Session, worker: str, claims: Sequence[Claim]) -> None:
        """Record that claims which were made in this transaction have not begun."""
        if not claims:
            return
        ids = json_text([claim.claim for claim in claims])
        tx.run("hand_over_rows", ids=ids, worker=worker)
        if self._consumer.form.holds:
            tx.run("show_handed_over", ids=ids, worker=worker, **self._consumer.form.always())

    def show_as_waiting(self, tx: Session, worker: str, claims: Sequence[int]) -> None:
        """Write claims into the user's rows, as claimed and not begun."""
        ids = json_text(list(claims))
        self._show(tx, worker, ids)
        tx.run("show_handed_over", ids=ids, worker=worker, **self._consumer.form.always())

    def start(self, tx: Session, worker: str, claim: int) -> Claim | None:
        """Move a claim (of one row or of a batch) to the worker that begins it.

        None if the relay took it back, another worker began it, or its rows are gone, which ends the claim.
        """
        ids = json_text([claim])
        if "lock_handed_over" in self._table().statements:  # every transaction locks rows before claims
            tx.rows("lock_handed_over", ids=ids)
        begun = [
            row[0] for row in tx.rows("start_rows", consumer=self._consumer.name, ids=ids, worker=worker)
        ]
        if not begun:
            return None
        if self._consumer.form.holds:
            tx.run("show_started", ids=ids, worker=worker, **self._consumer.form.always())
        rows = sorted(tx.rows("taken", ids=json_text(begun)), key=lambda row: row[0])
        gone = set(begun).difference(row[0] for row in rows)
        tx.run("end_claims", ids=json_text(sorted(gone)), worker=worker)
        if not rows:
            return None
        started = self._claim(worker, rows, claimed_before=True)
        return msgspec.structs.replace(started, id=claim, claim=claim)

    def _pick(self, tx: Session, worker: str, request: ClaimRequest) -> tuple[list[int], list[Any]]:
        """The numbers of claims that are tried again, and new claims: in some stores with their rows."""
        paused, returned, own_strategy, *_ = self.facts(tx, worker)
        if paused:
            return [], []
        taken: list[int] = []
        count = min(request.count * (self._consumer.batch or 1), max(_MOST_ROWS, self._consumer.batch or 1))
        if returned and request.isolate:  # a row whose worker died runs alone: it may kill the next one, too
            taken = self._retake(tx, worker, 1, (1, LONGEST_ISOLATION))
            if taken:
                return taken, []
        if returned:
            taken = self._retake(tx, worker, count, (0, 0))
        if len(taken) == count:
            return taken, []
        return taken, self._take_free(tx, worker, own_strategy or request.strategy, count - len(taken))

    def _retake(self, tx: Session, worker: str, count: int, isolate: tuple[int, int]) -> list[int]:
        """Claims that were given back and are due again, each under a new number."""
        values = {"consumer": self._consumer.name, "count": count}
        taken = []
        for (claim,) in tx.rows("pick_returned", isolate_least=isolate[0], isolate_most=isolate[1], **values):
            if "draw_claim" in self._table().statements:
                tx.run("draw_claim")
            taken += [row[0] for row in tx.rows("retake", claim_number=claim, worker=worker)]
        return taken

    def _take_free(self, tx: Session, worker: str, strategy: str, count: int) -> list[Any]:
        """Claim rows without a claim: after the last claimed row, and once a second from the first row on.

        So most scans do not step over the rows that are in flight or wait to be tried again.
        """
        if strategy != self._strategy:
            self._mark, self._strategy = None, strategy
        backwards = "_backwards" if strategy == "LIFO" else ""
        values = {"consumer": self._consumer.name, "worker": worker, "count": count}
        moment = time.monotonic()
        if self._mark is not None and moment < self.sweep_at:
            taken = tx.rows(f"take_free_beyond{backwards}", **self._mark, **values)
            if taken or self._found_none:
                return taken
        taken = tx.rows(f"take_free{backwards}", **values)
        self.sweep_at, self._found_none = moment + _SWEEP_EVERY, not taken
        return taken

    def _claims(self, tx: Session, worker: str, taken: list[Any], retried: set[int]) -> list[Claim]:
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
        return [self._claim(worker, batch, any(row[0] in retried for row in batch)) for batch in batches]

    def _claim(self, worker: str, batch: list[Any], claimed_before: bool) -> Claim:
        """One claim for these rows, under the number of the first."""
        claim, key, failures, isolate, claimed_at, budget, *_ = batch[0]
        columns = self._table().columns
        values = [columns.loaded(tuple(row[self._first_column :])) for row in batch]
        return Claim(
            id=claim,
            claim=claim,
            task=self._consumer.name,
            queue=self._consumer.queue,
            args_json=to_text(columns.given, values),
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
    """Batches of rows: rows of one batch were tried equally often and have the same max_attempts."""
    batches: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: (*_tries(row), row[0])) if most > 1 else rows:
        if (
            batches
            and len(batches[-1]) < most
            and _tries(batches[-1][0]) == _tries(row)
            and not row[3]
            and not batches[-1][0][3]
        ):
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _tries(row: Any) -> tuple[int, int]:
    """How often a row was tried, and its own max_attempts; 0: the consumer's."""
    return row[2], own_budget(row[5]) or 0


def own_budget(value: Any) -> int | None:
    """A row's own max_attempts; None if its column holds no number."""
    try:
        return None if value is None else max(1, int(value))
    except (TypeError, ValueError, OverflowError):  # SQLite's columns hold anything
        return None


def key_text(key: Any) -> str:
    """A row's key as text for logs and messages."""
    return key.hex() if isinstance(key, (bytes, bytearray, memoryview)) else str(key)
