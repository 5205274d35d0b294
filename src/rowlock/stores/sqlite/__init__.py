"""A queue in a SQLite file: the embedded default."""

from rowlock.stores.sql.store import Store
from rowlock.stores.sqlite.database import SqliteDatabase

__all__ = ["SqliteDatabase", "SqliteStore"]


class SqliteStore(Store):
    """The store over a SQLite file."""

    def __init__(self, path: str, *, home: str = "", busy_timeout: float = 5.0) -> None:
        super().__init__(SqliteDatabase(path, home=home, busy_timeout=busy_timeout))
