"""The queue's tables in DuckDB's words, and a transaction around what changes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rowlock.stores.sql.schema_versions import script

if TYPE_CHECKING:
    import duckdb

_WORDS = {
    **dict.fromkeys(("text", "name", "json", "jsonb", "key"), "VARCHAR"),
    **dict.fromkeys(("small", "int"), "INTEGER"),
    **dict.fromkeys(("big", "claim"), "BIGINT"),
    **dict.fromkeys(("real", "time"), "DOUBLE"),
    "job_id": "BIGINT PRIMARY KEY",
    "history_id": "BIGINT NOT NULL DEFAULT nextval('rowlock_history_numbers')",
    "log_id": "BIGINT NOT NULL DEFAULT nextval('rowlock_log_numbers')",
    "consumer_claim_id": "BIGINT PRIMARY KEY DEFAULT nextval('rowlock_consumer_claim_numbers')",
    "state": "VARCHAR NOT NULL "
    "CHECK (state IN ('scheduled', 'queued', 'running', 'completed', 'failed', 'cancelled'))",
    "until": "VARCHAR CHECK (unique_until IN ('claimed', 'finished'))",
    "install_id": "replace(CAST(uuid() AS VARCHAR), '-', '')",
    "of_workers": "\n    beat_mono     DOUBLE NOT NULL, -- for rescue; one monotonic clock per machine",
    **dict.fromkeys(("by_key", "token", "moment"), ""),
}


def ddl() -> str:
    """What creates the queue's tables."""
    return script("rowlock.stores.duckdb", _WORDS)


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """A transaction that commits when the block ends, and rolls back if it raises."""
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(Exception):  # a commit that failed has rolled back already
            connection.execute("ROLLBACK")
        raise
