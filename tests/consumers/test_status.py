"""Consumers of a table that has a status column of its own, with its user's words."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from rowlock import ConfigurationError, Fail, JobContext, Retry, Rowlock, Status
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import worker as register

WORDS = {"due": "pending", "running": "working", "done": "finished", "failed": "broken"}
FULL = Status(
    "status",
    **WORDS,  # type: ignore[arg-type]
    error="error_message",
    started_at="started_at",
    finished_at="finished_at",
    progress="progress",
)


class Shop:
    """A table of jobs that somebody else's code has always had."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.table = f"{lab.prefix}jobs"
        stamp = "TEXT" if lab.is_sqlite else "timestamptz"
        lab.execute(
            f"CREATE TABLE {self.table} (job_id TEXT PRIMARY KEY, status TEXT NOT NULL, error_message TEXT, "
            f"created_at {stamp}, started_at {stamp}, finished_at {stamp}, progress INTEGER, payload TEXT)"
        )

    def add(self, *keys: str, status: str = "pending") -> None:
        for key in keys:
            self.lab.execute(f"INSERT INTO {self.table} (job_id, status) VALUES (?, ?)", (key, status))

    def get(self, columns: str = "status") -> dict[str, Any]:
        rows = self.lab.execute(f"SELECT job_id, {columns} FROM {self.table}")
        return {row[0]: row[1] if len(row) == 2 else tuple(row[1:]) for row in rows}

    def consumer(self, app: Rowlock, function: Any, status: Status = FULL, **chosen: Any) -> Any:
        return app.consumer("video", table=self.table, key="job_id", status=status, **chosen)(function)


@pytest.fixture
def shop(lab: Lab) -> Shop:
    return Shop(lab)


def nothing(job: Row) -> None:
    """A consumer's function that does nothing."""


def test_a_row_goes_from_due_to_running_to_done(lab: Lab, shop: Shop) -> None:
    shop.add("a", "b", "c")
    app, seen = lab.app(), []

    def video(ctx: JobContext, job: Row) -> None:
        (status, started) = shop.get("status, started_at")[job.job_id]
        seen.append((job.job_id, job.status, status, started is not None))
        if job.job_id == "b":
            raise Fail("no picture")

    shop.consumer(app, video)
    tally = app.consume("video", until_empty=True, concurrency=1)
    assert (tally.completed, tally.failed) == (2, 1)
    assert seen == [(key, "working", "working", True) for key in "abc"]
    assert shop.get("status, error_message, progress") == {
        "a": ("finished", None, 100),
        "b": ("broken", "no picture", 0),
        "c": ("finished", None, 100),
    }
    assert all(stamp is not None for stamp in shop.get("finished_at").values())
    assert lab.claims() == []


def test_a_retry_is_due_again_while_it_waits(lab: Lab, shop: Shop) -> None:
    shop.add("a", "b")
    app = lab.app()

    def video(job: Row) -> None:
        if job.job_id == "a":
            raise OSError("busy")

    shop.consumer(app, video, retry=Retry(max_attempts=2, base=3600.0))
    app.consume("video", until_empty=True)
    assert shop.get("status, started_at")["a"] == ("pending", None)
    assert shop.get()["b"] == "finished"
    assert [(row[1], row[2], row[3]) for row in lab.claims()] == [("a", None, 1)]


def test_progress_is_kept_in_the_users_column(lab: Lab, shop: Shop) -> None:
    shop.add("a")
    app, go = lab.app(), threading.Event()

    def video(ctx: JobContext, job: Row) -> None:
        ctx.progress(1, 4)
        assert go.wait(100)

    shop.consumer(app, video)
    with app.consuming("video").background():
        eventually(lambda: shop.get("progress")["a"] == 25)
        go.set()
        eventually(lambda: shop.get("status, progress")["a"] == ("finished", 100))


def test_the_users_rows_and_the_status_commit_together(lab: Lab, shop: Shop) -> None:
    lab.create()
    shop.add("a", "b")
    app = lab.app()

    def video(ctx: JobContext, job: Row) -> None:
        with ctx.transaction() as tx:
            lab.detect(tx, job.job_id, "video")
        if job.job_id == "b":
            raise Fail("no")

    shop.consumer(app, video)
    app.consume("video", until_empty=True)
    assert lab.detections() == [("a", "video")]
    assert shop.get() == {"a": "finished", "b": "broken"}


def test_a_row_that_its_owner_has_changed_meanwhile_is_left_alone(lab: Lab, shop: Shop) -> None:
    lab.create()
    shop.add("a", "b")
    app = lab.app()

    def video(ctx: JobContext, job: Row) -> None:
        lab.execute(f"UPDATE {shop.table} SET status = 'cancelled' WHERE job_id = ?", (job.job_id,))
        if job.job_id == "b":
            with ctx.transaction() as tx:
                lab.detect(tx, job.job_id, "video")

    shop.consumer(app, video)
    app.consume("video", until_empty=True)
    assert shop.get() == {"a": "cancelled", "b": "cancelled"}
    assert lab.detections() == []
    assert lab.claims() == []


def test_a_dead_workers_row_is_due_again_and_fenced(lab: Lab, shop: Shop) -> None:
    shop.add("a")
    shop.add("theirs", status="working")
    app = lab.app()
    shop.consumer(app, nothing, retry=Retry(max_attempts=2))
    store = store_of(app, "video")
    start = time.time()
    first = register(app.store, "first", now=start)
    (claim,) = store.exchange(first, request=ClaimRequest(count=5), now=start).claims
    assert shop.get() == {"a": "working", "theirs": "working"}
    later = start + 1000.0
    second = register(app.store, "second", now=later)
    assert store.rescue(second, careful_age=10.0, now=later).requeued == 1
    assert shop.get() == {"a": "pending", "theirs": "working"}
    store.exchange(second, request=ClaimRequest(count=5), now=later)
    assert len(store.exchange(first, [claim.ended(Ending.COMPLETED)], now=later).lost) == 1
    assert shop.get()["a"] == "working"
    last = later + 1000.0
    third = register(app.store, "third", now=last)
    assert store.rescue(third, careful_age=10.0, now=last).failed == 1
    status, error = shop.get("status, error_message")["a"]
    assert status == "broken"
    assert "worker died" in error


def test_rowlock_and_a_legacy_worker_leave_each_others_rows_alone(lab: Lab, shop: Shop) -> None:
    keys = [f"k{n:03}" for n in range(60)]
    shop.add(*keys)
    app, ours, theirs = lab.app(), [], []

    def video(job: Row) -> None:
        ours.append(job.job_id)

    shop.consumer(app, video)

    def legacy() -> None:
        connection = lab.connect()
        for key in reversed(keys):
            took = connection.execute(
                f"UPDATE {shop.table} SET status = 'working' WHERE job_id = '{key}' AND status = 'pending'"
            ).rowcount
            if took:
                theirs.append(key)
        connection.close()

    thread = threading.Thread(target=legacy)
    thread.start()
    app.consume("video", until_empty=True, prefetch=0, concurrency=1)
    thread.join(30)
    app.consume("video", until_empty=True)
    assert sorted(ours + theirs) == keys
    assert {key for key, status in shop.get().items() if status == "working"} == set(theirs)
    assert {key for key, status in shop.get().items() if status == "finished"} == set(ours)


@pytest.mark.parametrize(
    "since",
    [
        {"started_at": "started_at"},
        {"updated_at": "started_at"},
        {"started_at": "started_at", "updated_at": "started_at", "finished_at": "started_at"},
    ],
)
def test_what_others_left_running_is_due_again_only_after_a_limit(
    lab: Lab, shop: Shop, since: dict[str, str]
) -> None:
    shop.add("old", "new", "unknown", status="working")
    for key, age in (("old", 7200), ("new", 60)):
        at = (
            f"strftime('%Y-%m-%dT%H:%M:%SZ', {time.time() - age}, 'unixepoch')"
            if lab.is_sqlite
            else f"now() - interval '{age} seconds'"
        )
        lab.execute(f"UPDATE {shop.table} SET started_at = {at} WHERE job_id = '{key}'")
    app = lab.app()
    shop.consumer(app, nothing)
    app.consume("video", until_empty=True)
    assert set(shop.get().values()) == {"working"}
    limited = lab.app()
    status = Status("status", **WORDS, **since, stale_after=3600.0)  # type: ignore[arg-type]
    shop.consumer(limited, nothing, status)
    store_of(limited, "video").source.table.indexes.create()
    limited.consume("video", until_empty=True)
    assert shop.get() == {"old": "finished", "new": "working", "unknown": "working"}


def test_rows_that_nobody_began_in_time_fail(lab: Lab, shop: Shop) -> None:
    shop.add("old", "new")
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')" if lab.is_sqlite else "now()"
    then = "'2020-01-01 00:00:00'"
    lab.execute(f"UPDATE {shop.table} SET created_at = CASE job_id WHEN 'old' THEN {then} ELSE {now} END")
    app = lab.app()
    lab.execute(f"ALTER TABLE {shop.table} ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0")
    kept = {"error": "error_message", "created_at": "created_at", "attempts": "attempts"}
    shop.consumer(app, nothing, Status("status", **WORDS, **kept, deadline=3600.0))  # type: ignore[arg-type]
    app.consume("video", until_empty=True)
    assert shop.get("status, error_message, attempts") == {
        "old": ("broken", "it was not begun within 3600 s", 0),  # nobody has tried it
        "new": ("finished", None, 1),
    }


def test_a_row_that_was_begun_in_time_keeps_its_retry_and_its_error(lab: Lab, shop: Shop) -> None:
    shop.add("begun", "never")
    app = lab.app()
    status = Status("status", **WORDS, error="error_message", created_at="created_at", deadline=3600.0)  # type: ignore[arg-type]

    def video(job: Row) -> None:
        raise OSError("busy")

    shop.consumer(app, video, status, retry=Retry(max_attempts=2, base=3600.0), where="job_id = 'begun'")
    app.consume("video", until_empty=True)
    lab.execute(f"UPDATE {shop.table} SET created_at = '2020-01-01 00:00:00'")
    later = lab.app()
    shop.consumer(later, video, status, retry=Retry(max_attempts=2, base=3600.0))
    assert store_of(later, "video").expire(10) == 1
    assert shop.get() == {"begun": "pending", "never": "broken"}
    assert shop.get("error_message")["begun"] is None
    assert [(row[1], row[3]) for row in lab.claims()] == [("begun", 1)]


def test_a_deadline_leaves_rows_alone_that_the_consumer_does_not_choose(lab: Lab, shop: Shop) -> None:
    shop.add("mine", "theirs")
    lab.execute(f"UPDATE {shop.table} SET created_at = '2020-01-01 00:00:00'")
    app = lab.app()
    status = Status("status", **WORDS, created_at="created_at", deadline=3600.0)  # type: ignore[arg-type]
    shop.consumer(app, nothing, status, where="job_id <> 'theirs'")
    assert store_of(app, "video").expire(10) == 1
    assert shop.get() == {"mine": "broken", "theirs": "pending"}


def test_words_may_be_an_enumeration_or_numbers(lab: Lab) -> None:
    if lab.is_sqlite:
        lab.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, status INTEGER)")
        lab.execute("INSERT INTO jobs (status) VALUES (0)")
        status = Status("status", due=0, running=1, done=2, failed=3)
        done: Any = 2
    else:
        lab.execute(f"CREATE TYPE {lab.prefix}phase AS ENUM ('new', 'busy', 'ok', 'bad')")
        lab.execute(f"CREATE TABLE {lab.prefix}jobs (id bigint PRIMARY KEY, status {lab.prefix}phase)")
        lab.execute(f"INSERT INTO {lab.prefix}jobs VALUES (1, 'new')")
        status, done = Status("status", due="new", running="busy", done="ok", failed="bad"), "ok"
        wrong = lab.app()
        wrong.consumer("video", table=f"{lab.prefix}jobs", status=Status("status", due="new"))(nothing)
        labels = r"running='running'.*phase.* it has: 'new', 'busy', 'ok', 'bad'"
        with pytest.raises(ConfigurationError, match=labels):
            wrong.consume("video", until_empty=True)
    app = lab.app()
    app.consumer("video", table=f"{lab.prefix}jobs", status=status)(nothing)
    store_of(app, "video").source.table.indexes.create()
    app.consume("video", until_empty=True)
    assert lab.execute(f"SELECT status FROM {lab.prefix}jobs") == [(done,)]


def test_what_a_status_cannot_be_is_refused(app: Rowlock) -> None:
    for wrong in (
        {"due": "x", "running": "x"},
        {"due": True},
        {"error": "a%b"},
        {"stale_after": 5.0},
        {"deadline": 5.0},
        {"due": "a\nb"},
    ):
        with pytest.raises(ConfigurationError, match="Status"):
            Status("status", **wrong)
    with pytest.raises(ConfigurationError, match="either state"):
        app.consumer("video", table="jobs")(nothing)
    with pytest.raises(ConfigurationError, match="either state"):
        app.consumer("video", table="jobs", state="s", status=FULL)(nothing)
    with pytest.raises(ConfigurationError, match="must be Status"):
        app.consumer("video", table="jobs", status="status")(nothing)  # type: ignore[arg-type]
