"""How the consumers of an app stand, for every front end.

Only the record and who is asked for it; the counting is each consumer's own, for it alone knows its table.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

import msgspec


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


class Countable(Protocol):
    """A consumer with its table."""

    def record(self, exact: bool) -> ConsumerRecord:
        """How it stands."""
        ...


class HasConsumers(Protocol):
    """An app, as far as it is asked here."""

    @property
    def consumers(self) -> Iterable[str]:
        """The names of the registered consumers."""
        ...

    def consumer_host(self, name: str) -> Countable:
        """A consumer with its table."""
        ...


def consumers(app: HasConsumers, exact: bool = False) -> list[ConsumerRecord]:
    """How each consumer of the app stands; `exact` also counts what is done, which reads the whole table."""
    return [app.consumer_host(name).record(exact) for name in sorted(app.consumers)]
