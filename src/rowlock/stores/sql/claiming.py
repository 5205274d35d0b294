"""The claiming step of an exchange: queues in turn, each by its strategy, inside the caller's transaction.

Decides what to take; which queues are asked is in `queues_in_turn.py`, and how rows are found, locked and
marked in the statements of `claim_sql`. And how a worker begins a claim that a relay handed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from rowlock.claim_outcomes import ended
from rowlock.codec import json_text
from rowlock.endings import Event
from rowlock.errors import WorkerGone
from rowlock.job import Claim, ClaimRequest
from rowlock.retry import DEFAULT
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.finishing import finish
from rowlock.stores.sql.queues_in_turn import QueueSettings, queue_settings, queues_in_turn, strategy_of
from rowlock.stores.sql.scan_marks import Marks
from rowlock.stores.sql.session import Session
from rowlock.strategies import Strategy

CLAIM_COLUMNS = (
    *("id", "claim", "task", "queue", "args", "priority", "failures", "max_attempts", "created_at", "run_at"),
    *("claimed_at", "claimed_by", "expires_at", "unique_key", "meta", "isolate", "position"),
)


def claim_of(row: Any) -> Claim:
    """A row of CLAIM_COLUMNS as a claim."""
    return Claim(*row, claimed_before=row[1] > 1)  # type: ignore[misc]  # the row ends before it


class Claiming:
    """One worker's claims inside one transaction; if its marks are in use, its scans begin there."""

    def __init__(
        self,
        tx: Session,
        sql: ClaimSql,
        worker: str,
        request: ClaimRequest,
        marks: Marks | None,
        begins: bool,
    ) -> None:
        self._tx = tx
        self._sql = sql
        self._request = request
        self._marks = marks if marks and marks.in_use else None
        self._timed = marks.timed if marks else nullcontext
        self._values: dict[str, Any] = {"worker": worker, "unknown": left_out(request), "begins": int(begins)}

    def take(self, settings: QueueSettings, has_isolated: bool, next_queue: str | None) -> list[Claim]:
        """Claim from the queues in turn, each by its own strategy; `next_queue` is the first to be asked."""
        request = self._request
        if has_isolated and request.may_isolate and (claim := self._take_isolated()):
            return [claim]  # its last worker died under it: it gets no neighbours that it could take along
        claims: list[Claim] = []
        # Never more queues than jobs are wanted, so that a thousand queues cost no more than a few.
        line = queues_in_turn(self._tx, request, settings.paused, next_queue)
        queues = list(islice(line, request.count))
        while queues and len(claims) < request.count:
            still_full = []
            for index, queue in enumerate(queues):
                share = -(-(request.count - len(claims)) // (len(queues) - index))
                if share > 0:
                    got = self._take_from(queue, strategy_of(request, settings, queue), share)
                    claims += got
                    if len(got) == share:
                        still_full.append(queue)
            queues = still_full
            if not queues and request.unknown:  # all that these had may have been left out
                queues = list(islice(line, request.count - len(claims)))
        return claims

    def _take_isolated(self) -> Claim | None:
        queues = listed(self._request.queues)
        rows = self._tx.take(self._sql.isolated, queues=queues, **self._values)
        return claim_of(rows[0]) if rows else None

    def _take_from(self, queue: str, strategy: Strategy, count: int) -> list[Claim]:
        marks = self._marks
        places = None if marks is None else json_text(marks.of(queue, strategy))
        values = {"queue": queue, "marks": places, **self._values}
        statement = self._sql.take(strategy, marks is not None)
        if strategy.draw is None:
            rows = self._scan(statement, count=count, **values)
        else:
            rows = self._draw(strategy, statement, count, values)
        claims = strategy.arranged(map(claim_of, rows))
        if marks is not None:
            marks.passed(queue, strategy, claims)
        return claims

    def _draw(self, strategy: Strategy, statement: str, count: int, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = []
        levels = [row[0] for row in self._tx.rows("levels", queue=values["queue"])]
        while levels and len(rows) < count:
            for level, wanted in Counter(strategy.drawn(levels, count - len(rows))).items():
                won = self._scan(statement, level=level, count=wanted, **values)
                rows += won
                if len(won) < wanted:  # this level ran out: the draws it could not serve are drawn again
                    levels.remove(level)
        return rows

    def _scan(self, statement: str, **values: Any) -> list[Any]:
        with self._timed():
            return self._tx.take(statement, **values)


def listed(names: Sequence[str]) -> str | None:
    """The names as JSON; None: there are none."""
    return json_text(names) if names else None


def left_out(request: ClaimRequest) -> str | None:
    """The names of the tasks that are left to other workers."""
    return listed(request.unknown)


def has_work(db: Session, request: ClaimRequest) -> bool:
    """True if there is a job for this request, as far as a read can tell."""
    unknown = left_out(request)
    if request.may_isolate and db.row("isolated_waiting", unknown=unknown, queues=listed(request.queues)):
        return True
    queues = queues_in_turn(db, request, queue_settings(db).paused, unknown=unknown)
    return any(True for _ in queues)


def sweep(db: Session, request: ClaimRequest, marks: Marks) -> None:
    """Look from the front of each queue for the first jobs of this worker, and mark them."""
    with marks.sweep():
        with marks.round_trip():
            settings = queue_settings(db)
        for queue in queues_in_turn(db, request, settings.paused):
            strategy = strategy_of(request, settings, queue)
            statement = "sweep_newest" if strategy.order[-1].descending else "sweep_oldest"
            with marks.timed():
                heads = db.rows(statement, queue=queue, unknown=left_out(request))
            marks.add(queue, strategy, heads)


def start(tx: Session, worker: str, id: int, number: int, queues: Sequence[str]) -> Claim | None:
    """Move a claim that a relay handed over to the worker that begins it.

    Not if it was taken back or begun by another, or is of another queue than the worker's. It ends here if
    its cancel was asked for or its queue is paused.
    """
    if tx.row("worker_lives", worker=worker) is None:
        raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
    row = tx.row("start_claim", id=id, claim=number, worker=worker, queues=listed(queues))
    if row is None:
        return None
    *columns, cancel_asked = row
    claim = claim_of(columns)
    if cancel_asked or claim.queue in queue_settings(tx).paused:
        over = ended(claim, Event.RELEASED, DEFAULT, began=False, cancel_requested=bool(cancel_asked))
        finish(tx, worker, [over])
        return None
    return claim
