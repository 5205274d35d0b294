"""What people and front ends ask of a consumer: its indexes, and how its table stands.

Short reads; nothing here is on the way of a row.
"""

from __future__ import annotations

from typing import cast

from rowlock.consumers.host import ConsumerHost
from rowlock.consumers.store import ConsumerStore
from rowlock.consumers.table import Table


def table_of(host: ConsumerHost) -> Table:
    """The consumer's table, looked at and checked."""
    return cast("ConsumerStore", host.store).table


def check(host: ConsumerHost) -> None:
    """Raise now, rather than at the first claim, if the table is not what the consumer needs."""
    table_of(host)


def index_statements(host: ConsumerHost) -> list[str]:
    """What creates the consumer's indexes."""
    return list(table_of(host).indexes.values())


def index_names(host: ConsumerHost) -> list[str]:
    """The names of the consumer's indexes."""
    return list(table_of(host).indexes)


def create_indexes(host: ConsumerHost) -> None:
    """Create those that are missing."""
    table_of(host).create_indexes()
