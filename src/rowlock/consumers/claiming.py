"""Takes rows of a user's table for a worker: fresh ones, and those to be tried again.

Inside the caller's transaction; how rows are locked and taken is in each database's statements.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from rowlock.consumers.consumer import Consumer
from rowlock.consumers.row import to_text
from rowlock.consumers.table import Table
from rowlock.endings import LONGEST_ISOLATION
from rowlock.errors import WorkerGone
from rowlock.job import Claim, ClaimRequest
from rowlock.stores.sql.session import Session

_SWEEP_EVERY = 1.0  # seconds; in between a worker looks only at what lies beyond the last row it took
_MOST_ROWS = 2_000  # in one exchange


class Claiming:
    """The claims of one consumer; it remembers where the last row lay that it took."""

    def __init__(self, consumer: Consumer, table: Callable[[], Table]) -> None:
        self._consumer = consumer
        self._table = table
        self._mark: dict[str, Any] | None = None  # the place of the last row that was taken
        self._queue_strategy: str | None = None  # as it was when last looked at; it goes before the worker's
        self._strategy = ""  # by which that row was taken
        self.sweep_at = 0.0
        self.barren = False

    @property
    def _first_column(self) -> int:
        """Where the user's columns begin in a row: after the claim and its place in the line."""
        return 5 + len(self._consumer.position)

    def start_over(self) -> None:
        """Look from the first row on next time: one that lies before the last one taken has come back."""
        self._mark = None

    def take_after_a_look(self, tx: Session, worker: str, request: ClaimRequest, writes: bool) -> list[Claim]:
        """The same if something is not as usual: the worker, the consumer, or rows to be tried again."""
        alive, paused, returned = self.facts(tx, worker)
        if not alive and not writes:
            raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
        return self.take(tx, worker, request, returned) if alive and not paused else []

    def facts(self, tx: Session, worker: str) -> tuple[bool, bool, bool]:
        """Is the worker alive, is the consumer paused, and are there claims to be tried again?"""
        values = {"worker": worker, "queue": self._consumer.queue, "consumer": self._consumer.name}
        alive, paused, returned, self._queue_strategy, *_ = tx.row("consumer_facts", **values)
        return alive, paused, returned

    def take(
        self, tx: Session, worker: str, request: ClaimRequest, returned: bool | None = None
    ) -> list[Claim]:
        """Rows for this worker; those to be tried again first, if there are any, which None leaves open."""
        taken, fresh = self._pick(tx, worker, request, returned)
        if not (taken or fresh):
            return []
        ids = _json([*taken, *(row[0] for row in fresh)])
        if self._consumer.form.holds:
            self._show(tx, worker, ids)
        as_they_are = fresh and len(fresh[0]) > 1 and not (taken or self._consumer.form.holds)
        return self._claims(tx, worker, fresh if as_they_are else tx.rows("taken", ids=ids), set(taken))

    # The same in steps, each in a transaction of its own, for rows of which one may refuse to be taken.

    def pick_after_a_look(
        self, tx: Session, worker: str, request: ClaimRequest
    ) -> tuple[list[int], set[int]]:
        """Claims of which nothing shows in the user's rows yet, and which of them are tried again."""
        alive, paused, returned = self.facts(tx, worker)
        if not alive:
            raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
        taken, fresh = ([], []) if paused else self._pick(tx, worker, request, returned)
        return [*taken, *(row[0] for row in fresh)], set(taken)

    def show(self, tx: Session, worker: str, claim: int) -> bool:
        """Let one claim show in the user's row; False if that is not due any more, which ends the claim."""
        if self._show(tx, worker, _json([claim])):
            return True
        tx.run("end_claims", ids=_json([claim]), worker=worker)
        return False

    def _show(self, tx: Session, worker: str, ids: str) -> int:
        if self._consumer.form.reads_attempts:
            tx.run("read_attempts", ids=ids)
        return tx.run("take_rows", ids=ids, worker=worker, **self._consumer.form.always())

    def claims_of(self, tx: Session, worker: str, taken: list[int], again: set[int]) -> list[Claim]:
        """The claims with their rows."""
        rows = tx.rows("taken", ids=_json(taken))
        return self._claims(tx, worker, rows, again) if rows else []

    def _pick(
        self, tx: Session, worker: str, request: ClaimRequest, returned: bool | None
    ) -> tuple[list[int], list[Any]]:
        """The numbers of claims that are tried again, and new claims, on some stores with their rows."""
        taken: list[int] = []
        fresh: list[Any] = []
        count = min(request.count * (self._consumer.batch or 1), max(_MOST_ROWS, self._consumer.batch or 1))
        if returned and request.isolate:  # its last worker died under it: it gets no neighbours to take along
            taken = self._retake(tx, worker, 1, (1, LONGEST_ISOLATION))
        if not taken:
            taken = self._retake(tx, worker, count, (0, 0)) if returned else []
            if len(taken) < count:
                values: dict[str, Any] = {"asked": int(returned is not None)}
                values |= {"own_strategy": request.strategy, "worker": worker, "count": count - len(taken)}
                fresh = self._take_free(tx, values)
        return taken, fresh

    def _retake(self, tx: Session, worker: str, count: int, isolate: tuple[int, int]) -> list[int]:
        """Claims that were given back and are due again, each under a new number."""
        values = {"consumer": self._consumer.name, "count": count}
        taken = []
        for (claim,) in tx.rows("pick_returned", isolate_least=isolate[0], isolate_most=isolate[1], **values):
            if "draw_claim" in self._table().statements:
                tx.run("draw_claim")
            taken += [row[0] for row in tx.rows("retake", claim_number=claim, worker=worker)]
        return taken

    def _take_free(self, tx: Session, values: dict[str, Any]) -> list[Any]:
        """Claims of rows that nobody has: beyond the last one taken, and every second from the first on.

        So a claim does not step over all that is in flight or waits to be tried again.
        """
        strategy, asked = self._queue_strategy or values["own_strategy"], values["asked"]
        if strategy != self._strategy:
            self._mark, self._strategy = None, strategy
        backwards = "_backwards" if strategy == "LIFO" else ""
        values |= {"consumer": self._consumer.name, "queue": self._consumer.queue, "strategy": strategy}
        moment = time.monotonic()
        if self._mark is not None and moment < self.sweep_at:
            taken = tx.rows(f"take_free_beyond{backwards}", **self._mark, **values)
            if taken or self.barren or not asked:
                return taken
        taken = tx.rows(f"take_free{backwards}", **values)
        if taken or asked:
            self.sweep_at, self.barren = moment + _SWEEP_EVERY, not taken
        return taken

    def _claims(self, tx: Session, worker: str, taken: list[Any], again: set[int]) -> list[Claim]:
        rows = sorted(taken, key=lambda row: row[0])  # numbers are drawn in the order of the rows
        last = [*rows[-1][6 : self._first_column], rows[-1][1]]
        marks = {f"mark_{place}": value for place, value in zip(self._consumer.places, last, strict=True)}
        self._mark = None if None in last else marks
        batches = _lots(rows, self._consumer.batch or 1)
        several = [batch for batch in batches if len(batch) > 1]
        tx.each(
            "name_batch",
            [{"claim_number": batch[0][0], "ids": _json([row[0] for row in batch])} for batch in several],
        )
        return [self._claim(worker, batch, any(row[0] in again for row in batch)) for batch in batches]

    def _claim(self, worker: str, batch: list[Any], again: bool) -> Claim:
        """One claim for these rows, under the number of the first."""
        claim, key, failures, isolate, claimed_at, budget, *_ = batch[0]
        values = [self._table().loaded(tuple(row[self._first_column :])) for row in batch]
        return Claim(
            id=claim,
            claim=claim,
            task=self._consumer.name,
            queue=self._consumer.queue,
            args_json=to_text(self._table().columns, values),
            priority=0,
            failures=failures,
            max_attempts=self._consumer.retry.max_attempts if budget is None else max(1, int(budget)),
            created=claimed_at,
            due=claimed_at,
            taken=claimed_at,
            claimed_by=worker,
            unique_key=key_text(key),
            isolate=isolate,
            again=again,
            row=key_text(key) + (f" and {len(batch) - 1} more" if len(batch) > 1 else ""),
        )


def _lots(rows: list[Any], most: int) -> list[list[Any]]:
    """Rows that are worked on together: as often tried as each other, so that one budget is meant for all."""
    batches: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: (row[2], row[0])) if most > 1 else rows:
        if (
            batches
            and len(batches[-1]) < most
            and batches[-1][0][2] == row[2]
            and not row[3]
            and not batches[-1][0][3]
        ):
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def key_text(key: Any) -> str:
    """A row's key for people."""
    return key.hex() if isinstance(key, (bytes, bytearray, memoryview)) else str(key)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
