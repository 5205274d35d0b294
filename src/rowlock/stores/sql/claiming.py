"""The claiming step of an exchange: queues in turn, each by its strategy, inside the caller's transaction.

Decides what to take; how rows are found, locked and marked is in the statements of `claim_sql`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

from rowlock.codec import json_text
from rowlock.errors import ConfigurationError
from rowlock.job import Claim, ClaimRequest
from rowlock.marks import Marks
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.session import Session
from rowlock.strategies import Strategy, get_strategy

CLAIM_COLUMNS = (
    *("id", "claim", "task", "queue", "args", "priority", "failures", "max_attempts", "created_at", "run_at"),
    *("claimed_at", "claimed_by", "expires_at", "unique_key", "meta", "isolate", "position"),
)


def claim_of(row: Any) -> Claim:
    """A row of CLAIM_COLUMNS as a claim."""
    return Claim(*row, claimed_before=row[1] > 1)  # type: ignore[misc]  # the row ends before it


class Claiming:
    """One worker's claims inside one transaction."""

    def __init__(self, tx: Session, sql: ClaimSql, worker: str, request: ClaimRequest) -> None:
        self._tx = tx
        self._sql = sql
        self._request = request
        self._values: dict[str, Any] = {
            "worker": worker,
            "unknown": left_out(request),
        }

    def take(self, settings: list[Any], has_isolated: bool, next_queue: str | None) -> list[Claim]:
        """Claim from the queues in turn, each by its own strategy; `next_queue` is the first to be asked."""
        request = self._request
        if has_isolated and request.isolate and (claim := self._take_isolated()):
            return [claim]  # its last worker died under it: it gets no neighbours that it could take along
        overrides = {name: strategy for name, _, strategy in settings if strategy}
        claims: list[Claim] = []
        # Never more queues than jobs are wanted, so that a thousand queues cost no more than a few.
        line = queues_in_turn(self._tx, request, settings, next_queue)
        queues = list(islice(line, request.count))
        while queues and len(claims) < request.count:
            still_full = []
            for index, queue in enumerate(queues):
                share = -(-(request.count - len(claims)) // (len(queues) - index))
                if share > 0:
                    got = self._take_from(queue, strategy_of(request, overrides.get(queue)), share)
                    claims += got
                    if len(got) == share:
                        still_full.append(queue)
            queues = still_full
            if not queues and (request.unknown or has_isolated):  # all that these had may have been left out
                queues = list(islice(line, request.count - len(claims)))
        return claims

    def _take_isolated(self) -> Claim | None:
        queues = self._request.queues
        rows = self._tx.take(
            self._sql.isolated,
            all=int(not queues),
            queues=json_text(queues),
            **self._values,
        )
        return claim_of(rows[0]) if rows else None

    def _take_from(self, queue: str, strategy: Strategy, count: int) -> list[Claim]:
        values = {"queue": queue, **self._values}
        marks = self._request.marks if self._request.unknown else None
        parts = marks.of(queue, strategy) if marks else None
        if parts is not None:
            values["marks"] = json_text(parts)
        if strategy.draw is None:
            statement = self._sql.take(strategy, count == 1, parts is not None)
            rows = self._tx.take(statement, count=count, **values)
        else:
            rows = self._draw(strategy, count, values)
        claims = strategy.arranged(map(claim_of, rows))
        if marks and parts is not None:
            marks.passed(queue, strategy, claims)
        return claims

    def _draw(self, strategy: Strategy, count: int, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = []
        statement = self._sql.take_at_level(strategy, "marks" in values)
        levels = [row[0] for row in self._tx.rows("levels", queue=values["queue"])]
        while levels and len(rows) < count:
            for level, wanted in Counter(strategy.drawn(levels, count - len(rows))).items():
                won = self._tx.take(statement, level=level, count=wanted, **values)
                rows += won
                if len(won) < wanted:  # this level ran out: the draws it could not serve are drawn again
                    levels.remove(level)
        return rows


def left_out(request: ClaimRequest) -> str | None:
    """The names of the tasks that are left to other workers, as JSON; None: there are none."""
    return json_text(request.unknown) if request.unknown else None


def timed(request: ClaimRequest) -> AbstractContextManager[None]:
    """Around a scan from the front: where tasks are left out, its time decides whether marks are used."""
    return request.marks.timed() if request.marks and request.unknown else nullcontext()


def strategy_of(request: ClaimRequest, override: str | None) -> Strategy:
    """The strategy of a queue that has one of its own, or that of the request."""
    try:
        return get_strategy(override or request.strategy)
    except ConfigurationError:  # another process has registered it: this one goes on in its own order
        return get_strategy(request.strategy)


def has_work(db: Session, request: ClaimRequest, settings: list[Any]) -> bool:
    """True if there is a job for this request, as far as a read can tell."""
    if not request.unknown:
        return any(True for _ in queues_in_turn(db, request, settings))
    with timed(request):
        return _has_known(db, request, settings)


def _has_known(db: Session, request: ClaimRequest, settings: list[Any]) -> bool:
    overrides = {name: strategy for name, _, strategy in settings}
    unknown = left_out(request)
    chosen = {"all": int(not request.queues), "queues": json_text(request.queues)}
    if request.isolate and db.row("isolated_waiting", unknown=unknown, **chosen):
        return True
    for queue in queues_in_turn(db, request, settings):
        marks = request.marks and request.marks.of(queue, strategy_of(request, overrides.get(queue)))
        if marks is None:
            found = db.row("queue_has_work", queue=queue, unknown=unknown)
        else:
            given = json_text(marks)
            found = db.row("marked_has_work", queue=queue, unknown=unknown, marks=given)
        if found:
            return True
    return False


def sweep(db: Session, request: ClaimRequest, marks: Marks) -> None:
    """Look from the front of each queue for the first jobs of this worker, and mark them."""
    began = marks.begin_sweep(request.unknown)
    settings = db.rows("queue_settings")
    overrides = {name: strategy for name, _, strategy in settings}
    for queue in queues_in_turn(db, request, settings):
        strategy = strategy_of(request, overrides.get(queue))
        statement = "sweep_newest" if strategy.order[-1].descending else "sweep_oldest"
        marks.add(queue, strategy, db.rows(statement, queue=queue, unknown=left_out(request)))
    marks.end_sweep(began)


def queues_in_turn(
    db: Session, request: ClaimRequest, settings: list[Any], next_queue: str | None = None
) -> Iterator[str]:
    """The queues that have queued jobs and are not paused, beginning after the one served last."""
    paused = {name for name, paused_at, _ in settings if paused_at is not None}
    if request.queues:
        start = request.queues.index(request.after) + 1 if request.after in request.queues else 0
        for name in request.queues[start:] + request.queues[:start]:
            if name not in paused and db.row("queue_has_work", queue=name, unknown=None):
                yield name
        return
    seen: set[str | None] = {None}
    name = next_queue or db.row("next_queue", after=request.after)[0]
    while name not in seen:
        seen.add(name)
        if name not in paused:
            yield name
        name = db.row("next_queue", after=name)[0]
