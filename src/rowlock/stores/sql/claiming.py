"""The claiming step of an exchange: queues in turn, each by its strategy, inside the caller's transaction.

Decides what to take; how rows are locked and taken is in each database's `take_` statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from rowlock.endings import LONGEST_ISOLATION
from rowlock.errors import ConfigurationError
from rowlock.job import Claim, ClaimRequest
from rowlock.stores.sql.session import Session
from rowlock.strategies import get_strategy


class SqlShelf:
    """One queue's queued jobs, as a strategy sees them inside a claim."""

    def __init__(self, tx: Session, worker: str, queue: str, isolate: bool, request: ClaimRequest) -> None:
        self._tx = tx
        self._values: dict[str, Any] = {
            "worker": worker,
            "queue": queue,
            "isolate": LONGEST_ISOLATION if isolate else 0,
            "unknown": left_out(request),
        }

    # RETURNING has no order on any of the databases: sort by what the statement chose by.

    def highest(self, count: int) -> list[Claim]:
        rows = self._tx.take("take_highest", count=count, **self._values)
        rows.sort(key=lambda row: (-row[5], row[-1]))
        return [claim_of(row) for row in rows]

    def oldest(self, count: int) -> list[Claim]:
        return self._by_position(self._tx.take("take_oldest", count=count, **self._values))

    def newest(self, count: int) -> list[Claim]:
        return self._by_position(self._tx.take("take_newest", count=count, **self._values))[::-1]

    def oldest_at(self, level: int, count: int) -> list[Claim]:
        return self._by_position(self._tx.take("take_at_level", level=level, count=count, **self._values))

    def levels(self) -> list[int]:
        return [row[0] for row in self._tx.rows("levels", **self._values)]

    @staticmethod
    def _by_position(rows: list[Any]) -> list[Claim]:
        rows.sort(key=lambda row: row[-1])
        return [claim_of(row) for row in rows]


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
        again=row[1] > 1,
    )


def take(
    tx: Session,
    worker: str,
    request: ClaimRequest,
    settings: list[Any],
    has_isolated: bool,
    next_queue: str | None,
) -> list[Claim]:
    """Claim from the queues in turn, each by its own strategy; `next_queue` is the first to be asked.

    Without `has_alone`, no job waits that has to run alone.
    """
    overrides = {name: strategy for name, _, strategy in settings if strategy}
    claims: list[Claim] = []

    def take_from(queue: str, count: int, isolate: bool) -> int:
        try:
            strategy = get_strategy(overrides.get(queue, request.strategy))
        except ConfigurationError:  # set by a newer version: this one goes on in its own order
            strategy = get_strategy(request.strategy)
        got = strategy.take(SqlShelf(tx, worker, queue, isolate, request), count)
        claims.extend(got)
        return len(got)

    # Never more queues than jobs are wanted, so that a thousand queues cost no more than a few.
    line = queues_in_turn(tx, request, settings, next_queue)
    queues = list(islice(line, request.count))
    if has_isolated and request.isolate:
        while queues and not take_from(queues[0], 1, isolate=True):  # all that it has is left out, or held
            queues = queues[1:] or list(islice(line, 1))
        if claims and claims[0].isolate:
            return claims  # its last worker died under it: it gets no neighbours that it could take along
    while queues and len(claims) < request.count:
        still_full = []
        for index, queue in enumerate(queues):
            share = -(-(request.count - len(claims)) // (len(queues) - index))
            if share > 0 and take_from(queue, share, isolate=False) == share:
                still_full.append(queue)
        queues = still_full
        if not queues and request.unknown:  # all that these had may have been left out
            queues = list(islice(line, request.count - len(claims)))
    return claims


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


def last_served(claims: Sequence[Claim], request: ClaimRequest, has_isolated: bool) -> str:
    """The queue after which the next claim begins."""
    if not claims:
        return request.after
    # A job that has to run alone is only looked for in the first queue: each has to be that one in its turn.
    return claims[0 if has_isolated else -1].queue


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
