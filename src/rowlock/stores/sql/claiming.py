"""The claiming step of an exchange: queues in turn, each by its strategy, inside the caller's transaction.

Decides what to take; how rows are found, locked and marked is in the statements of `claim_sql`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.job import Claim, ClaimRequest
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.session import Session
from rowlock.strategies import Strategy, get_strategy

CLAIM_COLUMNS = (
    *("id", "claim", "task", "queue", "args", "priority", "failures", "max_attempts", "created_at", "run_at"),
    *("claimed_at", "claimed_by", "expires_at", "unique_key", "meta", "isolate", "position"),
)


def claim_of(row: Any) -> Claim:
    """A row of CLAIM_COLUMNS as a claim."""
    return Claim(
        id=row[0],
        claim=row[1],
        task=row[2],
        queue=row[3],
        args_json=row[4],
        priority=row[5],
        failures=row[6],
        max_attempts=row[7],
        created=row[8],
        due=row[9],
        taken=row[10],
        claimed_by=row[11],
        deadline=row[12],
        unique_key=row[13],
        meta_json=row[14],
        isolate=row[15],
        position=row[16],
        again=row[1] > 1,
    )


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
                    got = self._take_from(queue, self._strategy(overrides.get(queue)), share)
                    claims += got
                    if len(got) == share:
                        still_full.append(queue)
            queues = still_full
            if not queues and (request.unknown or has_isolated):  # all that these had may have been left out
                queues = list(islice(line, request.count - len(claims)))
        return claims

    def _strategy(self, override: str | None) -> Strategy:
        try:
            return get_strategy(override or self._request.strategy)
        except ConfigurationError:  # another process has registered it: this one goes on in its own order
            return get_strategy(self._request.strategy)

    def _take_isolated(self) -> Claim | None:
        queues = self._request.queues
        rows = self._tx.take(
            self._sql.isolated,
            all=int(not queues),
            queues=msgspec.json.encode(queues).decode(),
            **self._values,
        )
        return claim_of(rows[0]) if rows else None

    def _take_from(self, queue: str, strategy: Strategy, count: int) -> list[Claim]:
        values = {"queue": queue, **self._values}
        if strategy.draw is None:
            rows = self._tx.take(self._sql.take(strategy, count == 1), count=count, **values)
        else:
            rows = self._draw(strategy, count, values)
        return strategy.arranged(map(claim_of, rows))

    def _draw(self, strategy: Strategy, count: int, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = []
        levels = [row[0] for row in self._tx.rows("levels", queue=values["queue"])]
        while levels and len(rows) < count:
            for level, wanted in Counter(strategy.drawn(levels, count - len(rows))).items():
                won = self._tx.take(self._sql.take_at_level(strategy), level=level, count=wanted, **values)
                rows += won
                if len(won) < wanted:  # this level ran out: the draws it could not serve are drawn again
                    levels.remove(level)
        return rows


def left_out(request: ClaimRequest) -> str | None:
    """The names of the tasks that are left to other workers, as JSON; None: there are none."""
    return msgspec.json.encode(request.unknown).decode() if request.unknown else None


def has_work(db: Session, request: ClaimRequest, settings: list[Any]) -> bool:
    """True if there is a job for this want, as far as a read can tell."""
    unknown = left_out(request)
    return any(
        unknown is None or db.row("queue_has_work", queue=queue, unknown=unknown)
        for queue in queues_in_turn(db, request, settings)
    )


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
