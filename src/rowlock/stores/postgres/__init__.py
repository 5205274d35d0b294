"""A queue in PostgreSQL: the same jobs, for many machines."""

from rowlock.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
