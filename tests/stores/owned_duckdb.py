"""A queue in a DuckDB file that this process has open, emptied from test to test instead of made anew."""

from __future__ import annotations

from pathlib import Path

import duckdb

from rowlock.stores.address import owned_store, owner_of
from rowlock.stores.sql.store import Store


class OwnedDuckdb:
    """One connection, which owns the file; in the same process its URL works, too."""

    def __init__(self, path: Path) -> None:
        self.url = f"duckdb:///{path}"
        self.connection = duckdb.connect(str(path))
        self.store().open()
        found = self.connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_name <> 'rowlock_meta'"
        )
        self._tables = [name for (name,) in found.fetchall()]

    def store(self) -> Store:
        return owned_store(owner_of(connection=self.connection))

    def emptied(self) -> str:
        """The queue's URL, after everything that was in it is gone; numbers begin at 1 again."""
        steps = [f"DELETE FROM {name}" for name in self._tables]
        self.connection.execute("; ".join([*steps, "CREATE OR REPLACE SEQUENCE rowlock_numbers START 1"]))
        return self.url

    def close(self) -> None:
        self.connection.close()
