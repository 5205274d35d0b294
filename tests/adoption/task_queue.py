"""A team with a task queue of its own in SQLite: its table, its old worker, and its consumer.

The table is as the team has always had it. Run as a program, this module is the old worker.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from contextlib import closing

from rowlock import JobContext, Retry, Rowlock, Status
from rowlock.consumers.row import Row
from tests.adoption.crew import LEASE, URL, hold_here, who

CREATE = """
CREATE TABLE task_queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parameters TEXT NOT NULL DEFAULT '{}',
    priority INTEGER NOT NULL DEFAULT 5,
    status TEXT NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'claimed', 'completed', 'failed')),
    run_after_utc TEXT,
    locked_by TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL DEFAULT 3,
    result_data TEXT,
    error_message TEXT,
    created_at TEXT NOT NULL DEFAULT (datetime('now')),
    updated_at TEXT NOT NULL DEFAULT (datetime('now')),
    is_over INTEGER GENERATED ALWAYS AS (status IN ('completed', 'failed')) VIRTUAL,
    customer TEXT GENERATED ALWAYS AS (json_extract(parameters, '$.customer')) STORED
);
CREATE TABLE letters (id INTEGER PRIMARY KEY, task INTEGER NOT NULL, customer TEXT, sent_by TEXT NOT NULL);
"""
TAKE = """
UPDATE task_queue
SET status = 'claimed', locked_by = :worker, attempts = attempts + 1, updated_at = datetime('now')
WHERE id = (SELECT id FROM task_queue
            WHERE status = 'queued' AND (run_after_utc IS NULL OR run_after_utc <= datetime('now'))
            ORDER BY priority DESC, created_at, id LIMIT 1)
RETURNING id, customer
"""
COMPLETE = """
UPDATE task_queue SET status = 'completed', result_data = :result, updated_at = datetime('now')
WHERE id = :id AND locked_by = :worker
"""
FAIL = """
UPDATE task_queue
SET status = CASE WHEN attempts >= max_attempts THEN 'failed' ELSE 'queued' END,
    locked_by = CASE WHEN attempts >= max_attempts THEN locked_by END,
    error_message = :error, updated_at = datetime('now')
WHERE id = :id AND locked_by = :worker
"""
app = Rowlock(URL or "sqlite:///team.db", lease=LEASE, poll_interval=0.1)


@app.consumer(
    "letters",
    table="task_queue",
    order_by="priority DESC, created_at",
    due_at="run_after_utc",
    status=Status(
        "status",
        due="queued",
        running="claimed",
        done="completed",
        failed="failed",
        error="error_message",
        claimed_by="locked_by",
        attempts="attempts",
        max_attempts="max_attempts",
        result="result_data",
        updated_at="updated_at",
    ),
    retry=Retry(base=0.0),
)
def letters(ctx: JobContext, task: Row) -> dict[str, str]:
    hold_here()
    with ctx.transaction() as tx:
        write_letter(tx, task.id, task.customer)
    return {"sent_to": task.customer}


def write_letter(connection: sqlite3.Connection, task: int, customer: str | None) -> None:
    if customer is None:
        raise ValueError("a letter to nobody")
    values = (task, customer, who())
    connection.execute("INSERT INTO letters (task, customer, sent_by) VALUES (?, ?, ?)", values)


def connect() -> sqlite3.Connection:
    return sqlite3.connect(URL.removeprefix("sqlite:///"), timeout=30, isolation_level=None)


def work(most: int) -> None:
    """The old worker: takes one row after the other."""
    pace = threading.Event()
    with closing(connect()) as db:
        for _ in range(most):
            taken = db.execute(TAKE, {"worker": who()}).fetchall()
            if not taken:
                return
            ((id, customer),) = taken
            try:
                with db:
                    db.execute("BEGIN IMMEDIATE")
                    write_letter(db, id, customer)
                    result = json.dumps({"sent_to": customer})
                    done = db.execute(COMPLETE, {"id": id, "worker": who(), "result": result})
                    assert done.rowcount == 1
            except ValueError as error:
                db.execute(FAIL, {"id": id, "worker": who(), "error": str(error)})
            pace.wait(0.03)


if __name__ == "__main__":
    work(int(sys.argv[1]))
