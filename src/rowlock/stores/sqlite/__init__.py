"""A queue in a SQLite file: the embedded default."""

from rowlock.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
