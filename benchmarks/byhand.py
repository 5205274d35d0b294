"""A queue as a good engineer writes it by hand on `sqlite3`: the baseline of the comparisons.

Durable (WAL, FULL), one writer at a time (BEGIN IMMEDIATE), fenced, with the indexes such a queue needs. It
leaves out what rowlock adds: types, retries, unique keys, deadlines, heartbeats, history.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    task        TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    args        TEXT    NOT NULL,
    priority    INTEGER NOT NULL DEFAULT 0,
    state       TEXT    NOT NULL DEFAULT 'queued',
    claim       INTEGER NOT NULL DEFAULT 0,
    created_at  REAL    NOT NULL,
    run_at      REAL    NOT NULL,
    claimed_at  REAL,
    claimed_by  TEXT,
    finished_at REAL,
    result      TEXT,
    error       TEXT
);
CREATE INDEX IF NOT EXISTS jobs_ready ON jobs (queue, priority DESC, id) WHERE state = 'queued';
CREATE INDEX IF NOT EXISTS jobs_due ON jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX IF NOT EXISTS jobs_held ON jobs (claimed_by) WHERE state = 'running';
"""
_INSERT = (
    "INSERT INTO jobs (task, queue, args, priority, state, created_at, run_at) "
    "VALUES (?, ?, ?, ?, 'queued', ?, ?)"
)
_CLAIM = """
UPDATE jobs SET state = 'running', claim = claim + 1, claimed_by = ?, claimed_at = ?
WHERE id = (SELECT id FROM jobs WHERE state = 'queued' AND queue = ? ORDER BY priority DESC, id LIMIT 1)
RETURNING id, claim, task, args
"""
_LOOK = """
SELECT id, claim + 1, task, args FROM jobs WHERE state = 'queued' AND queue = ?
ORDER BY priority DESC, id LIMIT ?
"""
_TAKE = "UPDATE jobs SET state = 'running', claim = claim + 1, claimed_by = ?, claimed_at = ? WHERE id = ?"
_FINISH = """
UPDATE jobs SET state = ?, result = ?, error = ?, finished_at = ?
WHERE id = ? AND claim = ? AND state = 'running'
"""


def connect(path: Path) -> sqlite3.Connection:
    """A connection that is as durable as rowlock's."""
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


class HandWrittenQueue:
    """One file, one connection, one table."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def enqueue(self, task: str, args: Mapping[str, Any], queue: str = "default", priority: int = 0) -> int:
        """Write one job durably; returns its id."""
        now = time.time()
        with self._transaction() as connection:
            cursor = connection.execute(_INSERT, (task, queue, json.dumps(args), priority, now, now))
            return int(cursor.lastrowid or 0)

    def enqueue_many(
        self, task: str, calls: Iterable[Mapping[str, Any]], queue: str = "default", priority: int = 0
    ) -> None:
        """Write many jobs in one transaction."""
        now = time.time()
        rows = [(task, queue, json.dumps(args), priority, now, now) for args in calls]
        with self._transaction() as connection:
            connection.executemany(_INSERT, rows)

    def drain(self, tasks: Mapping[str, Callable[..., Any]], worker: str, queue: str = "default") -> int:
        """Run jobs until none is left, one transaction each: finish the last one and claim the next."""
        ended: tuple[str, str | None, str | None, float, int, int] | None = None
        done = 0
        while True:
            with self._transaction() as connection:
                if ended is not None and connection.execute(_FINISH, ended).rowcount:
                    done += 1
                claimed = connection.execute(_CLAIM, (worker, time.time(), queue)).fetchone()
            if claimed is None:
                return done
            id, claim, task, args = claimed
            try:
                result = json.dumps(tasks[task](**json.loads(args)))
            except Exception as error:
                ended = ("failed", None, repr(error), time.time(), id, claim)
            else:
                ended = ("completed", result, None, time.time(), id, claim)

    def drain_in_batches(
        self, tasks: Mapping[str, Callable[..., Any]], worker: str, size: int, queue: str = "default"
    ) -> int:
        """Run jobs until none is left, one transaction per batch: finish the last one and claim the next."""
        ended: list[tuple[str, str | None, str | None, float, int, int]] = []
        done = 0
        while True:
            with self._transaction() as connection:
                if ended:
                    done += connection.executemany(_FINISH, ended).rowcount
                claimed = connection.execute(_LOOK, (queue, size)).fetchall()
                now = time.time()
                connection.executemany(_TAKE, [(worker, now, id) for id, *_ in claimed])
            if not claimed:
                return done
            ended = []
            for id, claim, task, args in claimed:
                try:
                    result = json.dumps(tasks[task](**json.loads(args)))
                except Exception as error:
                    ended.append(("failed", None, repr(error), time.time(), id, claim))
                else:
                    ended.append(("completed", result, None, time.time(), id, claim))
