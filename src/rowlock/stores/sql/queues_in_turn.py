"""Which queues a claim asks, in which order, and what operators and pauses have set for them.

How a queue's share is taken is in `claiming.py`; PostgreSQL shares in one statement, in its `claims.sql`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from rowlock.errors import ConfigurationError
from rowlock.job import ClaimRequest
from rowlock.stores.sql.session import Session
from rowlock.strategies import Strategy, get_strategy


class QueueSettings(NamedTuple):
    """What operators and pauses have set, of all queues."""

    paused: frozenset[str] = frozenset()
    strategies: Mapping[str, str] = {}


def queue_settings(db: Session) -> QueueSettings:
    """The settings in force."""
    rows = db.rows("queue_settings")
    return QueueSettings(
        frozenset(name for name, paused_at, _, _ in rows if paused_at is not None),
        {name: strategy for name, _, strategy, _ in rows if strategy},
    )


def strategy_of(request: ClaimRequest, settings: QueueSettings, queue: str) -> Strategy:
    """The strategy of a queue that has one of its own, or that of the request."""
    try:
        return get_strategy(settings.strategies.get(queue, request.strategy))
    except ConfigurationError:  # another process has registered it: this one goes on in its own order
        return get_strategy(request.strategy)


def named_in_turn(request: ClaimRequest) -> tuple[str, ...]:
    """The queues that the request names, beginning after the one served last."""
    start = request.queues.index(request.after) + 1 if request.after in request.queues else 0
    return request.queues[start:] + request.queues[:start]


def queues_in_turn(
    db: Session,
    request: ClaimRequest,
    paused: Container[str],
    next_queue: str | None = None,
    unknown: str | None = None,
) -> Iterator[str]:
    """The queues that have work and are not paused, beginning after the one served last.

    Jobs of unknown tasks count unless they are named: what has to step over them would do so twice.
    """
    if request.queues:
        for name in named_in_turn(request):
            if name not in paused and db.row("queue_has_work", queue=name, unknown=unknown):
                yield name
        return
    seen: set[str | None] = {None}
    name = next_queue or db.row("next_queue", after=request.after, unknown=unknown)[0]
    while name not in seen:
        seen.add(name)
        if name not in paused:
            yield name
        name = db.row("next_queue", after=name, unknown=unknown)[0]
