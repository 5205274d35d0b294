"""How the consumers of an app stand, for every front end.

What is due and done is counted by each consumer itself, for it alone knows its table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

import msgspec

from rowlock.options import CONSUMERS
from rowlock.stores.sql.store import Store


class ConsumerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer stands; `done` is about right only, unless it was counted."""

    name: str
    table: str
    due: int  # and not in flight
    in_flight: int
    waiting: int  # to be tried again; these are due, too
    done: int
    done_is_exact: bool
    failed: int
    broken: int
    oldest_due: Any = None  # the first of them, by what the consumer orders by
    lag: float | None = None  # seconds since then, if that is a time
    per_minute: float = 0.0  # rows ended, over the last minutes
    has_index: bool = False
    paused: bool = False
    paused_until: datetime | None = None  # None: until somebody resumes it


class KnownConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """What rowlock's own tables tell about a consumer, without the app that declares it."""

    name: str
    workers: int  # that live
    in_flight: int
    waiting: int  # to be tried again
    paused: bool = False
    paused_until: datetime | None = None  # None: until somebody resumes it


class HasConsumers(Protocol):
    """An app, as far as it is asked here."""

    @property
    def consumers(self) -> Iterable[str]:
        """The names of the registered consumers."""
        ...

    def consumer_source(self, name: str) -> Any:
        """A consumer with its table, whose `record(exact)` says how it stands."""
        ...


def consumers(app: HasConsumers, exact: bool = False) -> list[ConsumerRecord]:
    """How each consumer of the app stands; `exact` also counts what is done, which reads the whole table."""
    return [app.consumer_source(name).record(exact) for name in sorted(app.consumers)]


def known_consumers(store: Store) -> list[KnownConsumer]:
    """The consumers that have claims, settings or living workers in this database."""
    claims = {name: counts for name, *counts in store.consumer_claims()}
    settings = {one.name.removeprefix(CONSUMERS): one for one in store.queues() if _is_consumer(one.name)}
    workers = Counter(
        queue.removeprefix(CONSUMERS)
        for worker in store.workers()
        if worker.alive
        for queue in worker.queues
        if _is_consumer(queue)
    )
    return [
        KnownConsumer(
            name=name,
            workers=workers[name],
            in_flight=claims.get(name, (0, 0))[0],
            waiting=claims.get(name, (0, 0))[1],
            paused=name in settings and settings[name].paused,
            paused_until=settings[name].paused_until if name in settings else None,
        )
        for name in sorted({*claims, *settings, *workers})
    ]


def _is_consumer(queue: str) -> bool:
    return queue.startswith(CONSUMERS)
