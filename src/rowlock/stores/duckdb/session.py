"""Named statements on one DuckDB connection, at one moment.

Begins and ends no transaction.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from rowlock.stores.duckdb.dialect import STATEMENTS, names_in
from rowlock.stores.sql.copying import refuse_moved
from rowlock.stores.sql.session import FileSession
from rowlock.stores.sql.user_connection_kinds import counted_in_duckdb

if TYPE_CHECKING:
    import duckdb


_CHANGES_JOBS = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM) rowlock_(jobs|history|logs|progress)\b")


@cache
def changes_jobs(statement: str) -> bool:
    """Whether a queue that has moved refuses this statement; workers and consumers' claims stay."""
    return _CHANGES_JOBS.search(statement) is not None


class DuckdbSession(FileSession):
    """Runs named statements; every one is fetched whole."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, now: float | None, refuses_if_moved: bool = False
    ) -> None:
        super().__init__(STATEMENTS, now)
        self.connection = connection
        self._refuses_if_moved = refuses_if_moved
        self.brings_work = False  # whoever waits for jobs is told after the commit

    def execute(self, statement: str, values: dict[str, Any]) -> duckdb.DuckDBPyConnection:
        # DuckDB refuses values that the statement does not name.
        if self._refuses_if_moved and changes_jobs(statement):
            self._refuses_if_moved = False
            # No trigger can do it; the cost is within the spread of an enqueue.
            refuse_moved(DuckdbSession(self.connection, self.now))
        bound = values | {"now": self._now, "mono": self._mono}
        return self.connection.execute(statement, {name: bound[name] for name in names_in(statement)})

    def run(self, name: str, /, **values: Any) -> int:
        done = self.execute(self._statements[name], values)
        columns = [column[0] for column in done.description or ()]
        return counted_in_duckdb(columns, done.fetchall()).changed

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        return self.execute(self._statements[name], values).fetchall()
