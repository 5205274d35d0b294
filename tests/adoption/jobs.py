"""A team with a table of jobs that shows percent: on PostgreSQL with an enumeration, on SQLite with a check.

Run as a program, this module is the team's old worker.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from contextlib import closing
from typing import Any

import psycopg

from rowlock import JobContext, Retry, Rowlock, Status
from rowlock.consumers.row import Row
from tests.adoption.crew import LEASE, URL, hold_here, who

STEPS = 4
CREATE_POSTGRES = """
CREATE TYPE job_state AS ENUM ('pending', 'processing', 'done', 'error');
CREATE TABLE jobs (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    status job_state NOT NULL DEFAULT 'pending',
    progress integer NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    error_message text,
    updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE frames (job uuid NOT NULL, number integer NOT NULL, made_by text NOT NULL);
"""
CREATE_SQLITE = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processing', 'done', 'error')),
    progress INTEGER NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    error_message TEXT,
    updated_at TEXT NOT NULL);
CREATE TABLE frames (job TEXT NOT NULL, number INTEGER NOT NULL, made_by TEXT NOT NULL);
"""
TAKE = """
UPDATE jobs SET status = 'processing', progress = 0, updated_at = {now}
WHERE id = (SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT 1 {lock}) AND status = 'pending'
RETURNING id
"""
DONE = "UPDATE jobs SET status = 'done', progress = 100, updated_at = {now} WHERE id = {mark}"
app = Rowlock(URL or "sqlite:///team.db", lease=LEASE, poll_interval=0.1)


@app.consumer(
    "render",
    table="jobs",
    status=Status(
        "status",
        due="pending",
        running="processing",
        done="done",
        failed="error",
        error="error_message",
        progress="progress",
        updated_at="updated_at",
    ),
    retry=Retry(max_attempts=2, base=0.0),
)
def render(ctx: JobContext, job: Row) -> None:
    hold_here()
    if str(job.id).startswith("bad"):
        ctx.progress(1, STEPS)
        raise ValueError("no such font")
    with ctx.transaction() as tx:
        for number in range(STEPS):
            make_frame(tx, job.id, number)


def make_frame(connection: Any, job: Any, number: int) -> None:
    statement = f"INSERT INTO frames VALUES ({', '.join([database(URL).mark] * 3)})"
    connection.execute(statement, (job, number, who()))


class database:  # noqa: N801 - it is used like a function
    """A connection of the team's own, and how its database writes what differs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite:")
        self.mark = "?" if self.is_sqlite else "%s"
        self.now = "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')" if self.is_sqlite else "now()"

    def connect(self) -> Any:
        if self.is_sqlite:
            path = self.url.removeprefix("sqlite:///")
            return sqlite3.connect(path, timeout=30, isolation_level=None)
        return psycopg.connect(self.url, autocommit=True)

    def written(self, statement: str) -> str:
        lock = "" if self.is_sqlite else "FOR UPDATE SKIP LOCKED"
        return statement.format(now=self.now, mark=self.mark, lock=lock)


def work(most: int) -> None:
    """The old worker: takes one row after the other."""
    ours, pace = database(URL), threading.Event()
    take, done = ours.written(TAKE), ours.written(DONE)
    with closing(ours.connect()) as db:
        for _ in range(most):
            taken = db.execute(take).fetchall()
            if not taken:
                return
            ((id,),) = taken
            for number in range(STEPS):
                make_frame(db, id, number)
            db.execute(done, (id,))
            pace.wait(0.03)


if __name__ == "__main__":
    work(int(sys.argv[1]))
