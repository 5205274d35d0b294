"""A queue in PostgreSQL: the same jobs, for many machines."""

from rowlock.stores.postgres.database import PostgresDatabase
from rowlock.stores.postgres.url import Address
from rowlock.stores.sql.store import Store

__all__ = ["PostgresDatabase", "PostgresStore"]


class PostgresStore(Store):
    """The store over a PostgreSQL database."""

    def __init__(self, address: Address, *, busy_timeout: float = 5.0) -> None:
        super().__init__(PostgresDatabase(address, busy_timeout=busy_timeout))
