"""A team with recordings in PostgreSQL: two analysers and an uploader over one table.

Run as a program, this module is the team's old analyser, which takes rows by itself.
"""

from __future__ import annotations

import sys
import threading
from datetime import datetime, timezone
from typing import Any

import psycopg

from rowlock import Flag, JobContext, Retry, RetryLater, Rowlock
from rowlock.consumers.row import Row
from tests.adoption.crew import LEASE, URL, hold_here, who

CREATE = """
CREATE TABLE recordings (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time timestamptz NOT NULL,
    file_raw text NOT NULL,
    file_processed text,
    uploaded boolean NOT NULL DEFAULT false,
    uploaded_at timestamptz,
    local_deleted boolean NOT NULL DEFAULT false,
    analysis_state jsonb);
CREATE TABLE detections (
    id bigint GENERATED ALWAYS AS IDENTITY,
    recording bigint NOT NULL,
    analyser text NOT NULL,
    found_by text NOT NULL);
CREATE TABLE uploads (recording bigint NOT NULL);
CREATE TABLE settings (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO settings VALUES ('upload', 'off'), ('upload_hours', '0-24'), ('server', 'away');
"""
TAKE = """
SELECT id, file_processed FROM recordings
WHERE analysis_state ->> 'birdnet' IS NULL AND file_processed IS NOT NULL
ORDER BY time LIMIT 1 FOR UPDATE SKIP LOCKED
"""
MARK = """
UPDATE recordings
SET analysis_state = coalesce(analysis_state, '{}') || jsonb_build_object('birdnet', %s::text)
WHERE id = %s
"""
DETECT = "INSERT INTO detections (recording, analyser, found_by) VALUES (%s, %s, %s)"
app = Rowlock(URL or "sqlite:///team.db", lease=LEASE, poll_interval=0.1)


def word(error: str, attempts: int) -> str:
    """The team's own words for failure."""
    return "failed_file_missing" if "FileNotFoundError" in error else f"crashed: {error}"


def analysed(ctx: JobContext, recording: Row, analyser: str) -> str:
    hold_here()
    listen(recording.file_processed)
    with ctx.transaction() as tx:
        tx.execute(DETECT, (recording.id, analyser, who()))
    return "done"


def listen(file: str) -> None:
    if "missing" in file:
        raise FileNotFoundError(file)
    if "broken" in file:
        raise ValueError("not a sound")


analyser: dict[str, Any] = {
    "table": "recordings",
    "state": "analysis_state",
    "columns": ["id", "file_processed"],
    "where": "file_processed IS NOT NULL",
    "failed": word,
    "retry": Retry(max_attempts=2, base=0.0),
}


@app.consumer("birdnet", order_by="time", **analyser)
def birdnet(ctx: JobContext, recording: Row) -> str:
    return analysed(ctx, recording, "birdnet")


@app.consumer("batdetect", order_by="time DESC", **analyser)
def batdetect(ctx: JobContext, recording: Row) -> str:
    return analysed(ctx, recording, "batdetect")


def setting(name: str) -> str:
    with psycopg.connect(URL) as db:
        (value,) = db.execute("SELECT value FROM settings WHERE name = %s", (name,)).fetchone() or ("",)
        return str(value)


def may_upload() -> bool:
    """The team's switch, and the hours in which it uploads."""
    first, last = map(int, setting("upload_hours").split("-"))
    return setting("upload") == "on" and first <= datetime.now(timezone.utc).hour < last


@app.consumer(
    "uploader",
    table="recordings",
    flag=Flag("uploaded", at="uploaded_at"),
    order_by="time",
    where="NOT local_deleted",
    when=may_upload,
    retry=Retry(max_attempts=2, base=0.0),
)
def uploader(ctx: JobContext, recording: Row) -> None:
    if setting("server") == "away":
        raise RetryLater(300, "the server is away", pause=True)
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO uploads VALUES (%s)", (recording.id,))


def work(most: int) -> None:
    """The old analyser: takes one row after the other, and holds its lock while it listens."""
    pace = threading.Event()
    with psycopg.connect(URL, autocommit=True) as db:
        for _ in range(most):
            with db.transaction():
                row = db.execute(TAKE).fetchone()
                if row is None:
                    return
                pace.wait(0.03)
                analyse_row(db, *row)


def analyse_row(db: Any, id: int, file: str) -> None:
    try:
        listen(file)
        db.execute(DETECT, (id, "birdnet", who()))
        mark = "done"
    except (FileNotFoundError, ValueError) as error:
        mark = word(f"{type(error).__name__}: {error}", 1)
    db.execute(MARK, (mark, id))


if __name__ == "__main__":
    work(int(sys.argv[1]))
