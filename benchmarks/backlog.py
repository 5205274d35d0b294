"""Builds a large backlog in a rowlock file, with plain SQL and without ANALYZE. Measures nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.apps import app_at

_HOURS = 3600.0
_ROWS = """
WITH RECURSIVE series (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM series WHERE n < :last),
     levels (number, priority) AS (SELECT key, value FROM json_each(:levels))
INSERT INTO rowlock_jobs (id, position, task, queue, priority, state, claim, max_attempts, created_at, run_at,
                          due_at, claimed_at, claimed_by, started_at, finished_at, args, result)
SELECT n, n, 'add', printf('q%02d', n % :queues), levels.priority, :state, :done, 3, :now - 7200 + n * 1e-3,
       CASE :state WHEN 'scheduled' THEN :now + 86400 + n ELSE :now - 7200 + n * 1e-3 END,
       :now - 7200 + n * 1e-3,
       CASE :done WHEN 1 THEN :now END, CASE :done WHEN 1 THEN 'builder' END,
       CASE :done WHEN 1 THEN :now END, CASE :done WHEN 1 THEN :now END,
       '{"a":' || n || ',"b":2}', CASE :done WHEN 1 THEN n + 2 END
FROM series JOIN levels ON levels.number = (n / :queues) * 7919 % :depth
"""


@dataclass(frozen=True)
class Backlog:
    """How many rows of each state (at least one), over how many queues and which priorities."""

    queued: int
    completed: int
    scheduled: int
    queues: int
    levels: Sequence[int]

    def build(self, path: Path, now: float) -> None:
        """Write the rows: finished ones first, as they are the oldest, then those that wait."""
        app_at(path).close()
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = OFF")  # a file that is only being made needs no safety
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute("BEGIN")
        first = 1
        for state, count in (
            ("completed", self.completed),
            ("scheduled", self.scheduled),
            ("queued", self.queued),
        ):
            values = {
                "first": first,
                "last": first + count - 1,
                "levels": str(list(self.levels)),
                "depth": len(self.levels),
                "queues": self.queues,
                "state": state,
                "done": int(state == "completed"),
                "now": now,
            }
            connection.execute(_ROWS, values)
            first += count
        connection.execute("COMMIT")
        connection.close()
