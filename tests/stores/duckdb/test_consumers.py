"""A status column in DuckDB: a service's own table of jobs, adopted as it is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rowlock import ConfigurationError, JobContext, Retry, Rowlock, Status
from tests.stores.steps import end, take, worker

JOBS = """
CREATE TYPE job_status AS ENUM ('pending', 'running', 'completed', 'failed');
CREATE TABLE jobs (
    job_id UUID PRIMARY KEY, video VARCHAR NOT NULL, status job_status NOT NULL DEFAULT 'pending',
    progress INTEGER NOT NULL DEFAULT 0, error_message VARCHAR,
    created_at TIMESTAMP NOT NULL DEFAULT current_timestamp, updated_at TIMESTAMP)
"""
STATUS = Status("status", error="error_message", progress="progress", updated_at="updated_at")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(str(tmp_path / "data.duckdb")) as connection:
        connection.execute(JOBS)
        yield connection


@pytest.fixture
def app(db: duckdb.DuckDBPyConnection) -> Rowlock:
    return Rowlock(connection=db)


def submit(db: duckdb.DuckDBPyConnection, *videos: str) -> list[uuid.UUID]:
    ids = [uuid.uuid4() for _ in videos]
    for minute, (id, video) in enumerate(zip(ids, videos, strict=True)):
        created = f"2026-02-19 10:{minute:02d}:00"
        db.execute("INSERT INTO jobs (job_id, video, created_at) VALUES ($1, $2, $3)", [id, video, created])
    return ids


def rows(db: duckdb.DuckDBPyConnection, columns: str = "video, status") -> list[Any]:
    return db.execute(f"SELECT {columns} FROM jobs ORDER BY created_at").fetchall()


def consumer(app: Rowlock, function: Any, **options: Any) -> None:
    app.consumer("process", table="jobs", key="job_id", status=STATUS, order_by="created_at", **options)(
        function
    )


def test_rows_are_taken_in_order_and_end_with_the_users_words(app: Rowlock, db: Any) -> None:
    ids, seen = submit(db, "a", "b", "bad"), []

    def process(ctx: JobContext, row: Any) -> None:
        seen.append((row["job_id"], row["video"], rows(db)[len(seen)][1]))
        ctx.progress(1, 4)
        if row["video"] == "bad":
            raise ValueError("no frames")

    consumer(app, process, retry=False)
    tally = app.consume("process", until_empty=True, concurrency=1, prefetch=0)
    assert (tally.completed, tally.failed) == (2, 1)
    assert seen == list(zip(ids, ("a", "b", "bad"), ("running",) * 3, strict=True))
    assert rows(db) == [("a", "completed"), ("b", "completed"), ("bad", "failed")]
    assert [row[:1] for row in rows(db, "progress")][:2] == [(100,), (100,)]
    assert "no frames" in rows(db, "error_message")[2][0]
    assert all(updated is not None for (updated,) in rows(db, "updated_at"))
    assert db.execute("SELECT count(*) FROM rowlock_consumer_claims").fetchall() == [(0,)]


def test_a_row_that_failed_once_is_tried_again(app: Rowlock, db: Any) -> None:
    submit(db, "a")
    tries = iter(["once", None])

    def process(row: Any) -> None:
        if next(tries):
            raise ValueError("not yet")

    consumer(app, process, retry=Retry(max_attempts=3, base=0.01, cap=0.02))
    tally = app.consume("process", until_empty=True, concurrency=1)
    assert (tally.retried, tally.completed) == (1, 1) and rows(db) == [("a", "completed")]


def test_a_dead_workers_rows_are_due_again(app: Rowlock, db: Any) -> None:
    submit(db, "a", "b")
    consumer(app, lambda row: None)
    store: Any = app.workload(consumer="process").store
    who = worker(store, now=time.time() - 100.0)
    (claim,) = take(store, who, strategy="FIFO", now=time.time() - 100.0)
    assert rows(db) == [("a", "running"), ("b", "pending")]
    store.rescue(worker(store, "rescuer"), careful_age=20.0)
    assert not end(store, claim)
    app.consume("process", until_empty=True, concurrency=1)
    assert rows(db) == [("a", "completed"), ("b", "completed")]


def test_batches_are_handed_over_as_lists(app: Rowlock, db: Any) -> None:
    submit(db, "a", "b", "c")
    consumer(
        app,
        lambda rows: [ValueError("no") if row["video"] == "b" else None for row in rows],
        batch=3,
        retry=False,
    )
    app.consume("process", until_empty=True, concurrency=1)
    assert rows(db) == [("a", "completed"), ("b", "failed"), ("c", "completed")]


def test_the_tasks_own_rows_commit_with_the_status(app: Rowlock, db: Any) -> None:
    submit(db, "a", "b")
    db.execute("CREATE TABLE cuts (video VARCHAR)")

    def process(ctx: JobContext, row: Any) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO cuts VALUES ($1)", [row["video"]])
        if row["video"] == "b":
            raise ValueError("no")

    consumer(app, process, retry=False)
    app.consume("process", until_empty=True, concurrency=1)
    assert rows(db) == [("a", "completed"), ("b", "failed")]
    assert db.execute("SELECT * FROM cuts").fetchall() == [("a",)]


def test_a_word_that_the_enumeration_has_not_is_refused_with_those_it_has(app: Rowlock, db: Any) -> None:
    app.consumer("process", table="jobs", key="job_id", status=Status("status", due="waiting"))(
        lambda row: None
    )
    with pytest.raises(ConfigurationError, match=r"due='waiting'.*it has: 'pending', 'running'"):
        app.consume("process", until_empty=True)


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DOUBLE"])
def test_rows_whose_time_lies_ahead_wait(app: Rowlock, db: Any, kind: str) -> None:
    db.execute(f"ALTER TABLE jobs ADD COLUMN due {kind}")
    past, ahead = submit(db, "past", "ahead")
    now = time.time()
    for id, seconds in ((past, now - 60.0), (ahead, now + 3600.0)):
        as_written = {"DOUBLE": f"{seconds}", "TIMESTAMP": f"make_timestamp({int(seconds * 1e6)})"}
        value = as_written.get(kind, f"to_timestamp({seconds})")
        db.execute(f"UPDATE jobs SET due = {value} WHERE job_id = $1", [id])
    consumer(app, lambda row: None, due_at="due", columns=["video"])
    app.consume("process", until_empty=True, concurrency=1)
    assert rows(db) == [("past", "completed"), ("ahead", "pending")]


def test_a_row_of_yesterday_is_not_too_old_for_a_deadline_of_days(app: Rowlock, db: Any) -> None:
    db.execute("ALTER TABLE jobs ADD COLUMN made_on DATE")
    submit(db, "long ago", "yesterday")
    for days, video in ((9, "long ago"), (1, "yesterday")):
        db.execute(f"UPDATE jobs SET made_on = current_date - {days} WHERE video = '{video}'")
    status = Status("status", created_at="made_on", deadline=3 * 86_400)
    app.consumer("process", table="jobs", key="job_id", status=status)(lambda row: None)
    tally = app.consume("process", until_empty=True, concurrency=1)
    assert tally.completed == 1 and rows(db) == [("long ago", "failed"), ("yesterday", "completed")]


def test_a_column_that_two_options_name_is_written_once(app: Rowlock, db: Any) -> None:
    submit(db, "left", "new")
    db.execute("UPDATE jobs SET status = 'running', updated_at = TIMESTAMP '2020-01-01' WHERE video = 'left'")
    at = {"started_at": "updated_at", "updated_at": "updated_at"}
    app.consumer("process", table="jobs", key="job_id", status=Status("status", **at, stale_after=60))(
        lambda row: None
    )
    app.consume("process", until_empty=True)
    assert {status for (status,) in rows(db, "status")} == {"completed"}


def test_a_worker_that_begins_with_a_rescue_gives_back_the_rows_of_a_dead_one(tmp_path: Path) -> None:
    for is_silent in (True, False):  # as two processes, one after the other
        app = Rowlock(f"duckdb:///{tmp_path}/own.duckdb", busy_timeout=2.0)
        if is_silent:
            with app.connection() as own:
                own.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, status VARCHAR)")
                own.execute("INSERT INTO jobs VALUES (1, 'pending')")
        app.consumer("process", table="jobs", status=Status("status"))(lambda row: None)
        store: Any = app.workload(consumer="process").store
        if is_silent:
            assert take(store, worker(store, "silent", now=time.time() - 100), now=time.time() - 100)
        else:
            assert store.rescue(worker(store, "next"), careful_age=20.0).requeued == 1
        app.close()
