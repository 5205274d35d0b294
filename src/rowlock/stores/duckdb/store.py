"""The store over a DuckDB file; apart from the package, which imports no driver by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rowlock.stores.base import Rescue
from rowlock.stores.duckdb.database import DuckdbDatabase
from rowlock.stores.duckdb.quiet import QuietSource
from rowlock.stores.source import Source
from rowlock.stores.sql.jobs import JobSource
from rowlock.stores.sql.store import Store


class DuckdbStore(Store):
    """A queue in a DuckDB file."""

    def __init__(self, database: DuckdbDatabase, source: Source | None = None) -> None:
        self._duckdb = database
        self._quiet = QuietSource(source or JobSource(database), database)
        super().__init__(database, cast("Source", self._quiet))
        self._rescue, self.rescue = self.rescue, self._rescue_unless_early

    def over(self, source: Source) -> DuckdbStore:
        """The same file with another source of work."""
        return DuckdbStore(self._duckdb, source)

    def _rescue_unless_early(
        self,
        worker: str,
        careful_age: float,
        now: float | None = None,
        may_rescue: Callable[[], bool] = lambda: True,
    ) -> Rescue:
        return Rescue() if self._quiet.is_early(now) else self._rescue(worker, careful_age, now, may_rescue)
