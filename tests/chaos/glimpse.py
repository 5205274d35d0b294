"""What is in a queue's file, small enough to be kept for every step of a run and compared.

Works on a connection of any library; reads, and nothing else.
"""

from __future__ import annotations

import zlib
from typing import Any

_OTHERS = (
    *("rowlock_history", "rowlock_logs", "rowlock_progress", "rowlock_queues", "rowlock_minutes"),
    *("rowlock_workers", "effects"),
)
Glimpse = dict[str, Any]


def glimpse(connection: Any) -> Glimpse:
    """Jobs by id as (state, claim, failures, a sum over the whole row), and sums over the other tables."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "rowlock_jobs" not in tables:
        return {"jobs": {}, "others": {}}
    columns = [row[1] for row in connection.execute("PRAGMA table_info(rowlock_jobs)")]
    state, claim, failures = (columns.index(name) for name in ("state", "claim", "failures"))
    jobs = {
        str(row[0]): [row[state], row[claim], row[failures], _sum(row)]
        for row in connection.execute("SELECT * FROM rowlock_jobs")
    }
    others = {
        name: _sum(sorted(map(repr, connection.execute(f"SELECT * FROM {name}").fetchall())))
        for name in _OTHERS
        if name in tables
    }
    return {"jobs": jobs, "others": others}


def _sum(value: Any) -> int:
    return zlib.crc32(repr(value).encode())
