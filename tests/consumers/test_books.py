"""The columns of a status table that rowlock keeps up to date: who, how often, what came of it, and when."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from rowlock import ConfigurationError, Fail, Flag, JobContext, Retry, Rowlock, Status
from rowlock.consumers import overview
from rowlock.consumers.column_times import time_form
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import worker as register

BOOKS: dict[str, Any] = {
    "claimed_by": "locked_by",
    "attempts": "attempts",
    "max_attempts": "max_attempts",
    "result": "result_data",
    "updated_at": "updated_at",
    "error": "error",
}


@pytest.fixture
def queue(lab: Lab) -> Lab:
    """A task queue that somebody else's code has always had."""
    stamp = "TEXT" if lab.is_sqlite else "timestamptz"
    stored = "VIRTUAL" if lab.is_sqlite else "STORED"
    lab.execute(
        f"CREATE TABLE {lab.prefix}task_queue (id INTEGER PRIMARY KEY, status TEXT, locked_by TEXT, "
        f"attempts INTEGER, max_attempts INTEGER, result_data VARCHAR(40), updated_at {stamp}, error TEXT, "
        f"done INTEGER, twice INTEGER GENERATED ALWAYS AS (id * 2) {stored})"
    )
    return lab


def add(lab: Lab, *keys: int, attempts: int | None = 0, most: int | None = None) -> None:
    for key in keys:
        lab.execute(
            f"INSERT INTO {lab.prefix}task_queue (id, status, attempts, max_attempts) "
            "VALUES (?, 'pending', ?, ?)",
            (key, attempts, most),
        )


def get(lab: Lab, columns: str) -> dict[int, Any]:
    rows = lab.execute(f"SELECT id, {columns} FROM {lab.prefix}task_queue")
    return {row[0]: row[1] if len(row) == 2 else tuple(row[1:]) for row in rows}


def nothing(row: Row) -> None:
    """A consumer's function that does nothing."""


def make(lab: Lab, function: Any = nothing, books: dict[str, Any] = BOOKS, **chosen: Any) -> Rowlock:
    app = lab.app()
    table = f"{lab.prefix}task_queue"
    app.consumer("mail", table=table, status=Status("status", **books), **chosen)(function)
    return app


def test_the_books_are_kept_from_claim_to_end(queue: Lab) -> None:
    add(queue, 1, 2, attempts=None)
    seen = {}

    def mail(row: Row) -> dict[str, int]:
        seen[row.id] = get(queue, "locked_by IS NOT NULL, attempts, updated_at IS NOT NULL")[row.id]
        if row.id == 2:
            raise Fail("no address")
        return {"twice": row.twice}

    app = make(queue, mail)
    app.consume("mail", until_empty=True, worker_id="w1")
    assert seen == {1: (True, 1, True), 2: (True, 1, True)}
    assert get(queue, "status, attempts, locked_by, result_data, error") == {
        1: ("completed", 1, "w1", '{"twice":2}', None),
        2: ("failed", 1, "w1", None, "no address"),
    }
    assert overview.retry_failed(app.consumer_source("mail")) == 1
    assert get(queue, "status, attempts, error")[2] == ("pending", 0, None)


def test_a_try_that_failed_counts_and_a_free_release_does_not(queue: Lab) -> None:
    add(queue, 1)
    app = make(queue, retry=Retry(max_attempts=5))
    store, worker = store_of(app, "mail"), register(app.store, "w")
    for ending, charge, counted in (
        (Ending.RELEASED, 0, 0),
        (Ending.RETRY, 1, 1),
        (Ending.RETRY, 0, 1),
        (Ending.RETRY, 1, 2),
    ):
        (claim,) = store.exchange(worker, request=ClaimRequest(count=1)).claims
        before = get(queue, "attempts")[1]
        assert before == claim.failures + 1
        store.exchange(worker, [claim.ended(ending, charge=charge, delay=0.0 if charge else None)])
        assert get(queue, "status, attempts, locked_by")[1] == ("pending", counted, None)


def test_a_legacy_workers_tries_count_and_each_row_has_its_own_budget(queue: Lab) -> None:
    add(queue, 1, attempts=2, most=3)
    add(queue, 2, attempts=2, most=4)
    add(queue, 3, attempts=2)

    def fails(row: Row) -> None:
        raise OSError("away")

    app = make(queue, fails, retry=Retry(max_attempts=5, base=3600.0))
    app.consume("mail", until_empty=True)
    assert get(queue, "status, attempts") == {1: ("failed", 3), 2: ("pending", 3), 3: ("pending", 3)}


@pytest.mark.parametrize("for_all", [True, False])
def test_rows_of_a_batch_have_budgets_of_their_own(queue: Lab, for_all: bool) -> None:
    """Those with the same come together; what is raised for all is each row's own failure."""
    add(queue, 1, 3, most=1)
    add(queue, 2, 4, most=2)
    add(queue, 5, attempts=1, most=2)
    add(queue, 6)
    seen: list[list[int]] = []

    def fails(rows: list[Row]) -> list[OSError]:
        seen.append([row.id for row in rows])
        if for_all:
            raise OSError("away")
        return [OSError("away") for _ in rows]

    app = make(queue, fails, retry=Retry(max_attempts=9, base=3600.0), batch=4)
    app.consume("mail", until_empty=True, concurrency=1)
    assert sorted(seen) == [[1, 3], [2, 4], [5], [6]]
    ended = {1: ("failed", 1), 3: ("failed", 1), 5: ("failed", 2)}
    again = dict.fromkeys((2, 4, 6), ("pending", 1))
    assert get(queue, "status, attempts") == {**ended, **again}


def test_a_dead_workers_try_is_in_the_books(queue: Lab) -> None:
    add(queue, 1)
    app = make(queue, retry=Retry(max_attempts=5))
    store, now = store_of(app, "mail"), time.time()
    for number in range(3):
        worker = register(app.store, f"w{number}", now=now)
        store.rescue(worker, careful_age=10.0, now=now)
        (failures,) = [row[3] for row in queue.claims()] or [0]
        assert get(queue, "status, attempts")[1] == ("pending", failures)
        (claim,) = store.exchange(worker, request=ClaimRequest(count=1), now=now).claims
        assert get(queue, "status, attempts, locked_by")[1] == ("running", claim.failures + 1, f"w{number}")
        now += 1000.0


def test_a_dead_workers_row_has_a_budget_of_its_own(queue: Lab) -> None:
    add(queue, 1, most=1)
    add(queue, 2, most=9)
    app = make(queue, retry=Retry(max_attempts=5))
    store, now = store_of(app, "mail"), time.time()
    store.exchange(register(app.store, "first", now=now), request=ClaimRequest(count=2), now=now)
    later = now + 1000.0
    store.rescue(register(app.store, "second", now=later), careful_age=10.0, now=later)
    assert get(queue, "status") == {1: "failed", 2: "pending"}


def test_a_row_that_an_operator_retries_is_nobodys(queue: Lab) -> None:
    """An older worker may look for rows that nobody has, and a page for those that have ended."""
    add(queue, 1)
    stamp = "TEXT" if queue.is_sqlite else "timestamptz"
    for column in ("started_at", "finished_at"):
        queue.execute(f"ALTER TABLE {queue.prefix}task_queue ADD COLUMN {column} {stamp}")

    def mail(row: Row) -> None:
        raise Fail("no address")

    app = make(queue, mail, {**BOOKS, "started_at": "started_at", "finished_at": "finished_at"})
    app.consume("mail", until_empty=True)
    assert overview.retry_failed(app.consumer_source("mail")) == 1
    columns = "status, locked_by, started_at, finished_at, attempts, error"
    assert get(queue, columns) == {1: ("pending", None, None, None, 0, None)}


def test_a_row_that_somebody_settles_while_it_is_retried_stays_settled(queue: Lab, postgres_url: str) -> None:
    if queue.is_sqlite:
        pytest.skip("nobody else writes meanwhile")
    add(queue, 1, 2)

    def mail(row: Row) -> None:
        raise Fail("no address")

    app = make(queue, mail)
    app.consume("mail", until_empty=True)
    table = f"{queue.prefix}task_queue"
    with psycopg.connect(postgres_url) as other, ThreadPoolExecutor(1) as thread:
        other.execute(f"UPDATE {table} SET status = 'completed' WHERE id = 1")  # type: ignore[arg-type]
        cleared = thread.submit(overview.retry_failed, app.consumer_source("mail"))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        eventually(lambda: queue.execute(waiting) != [(0,)])
        other.commit()
        assert cleared.result(30) == 1
    assert get(queue, "status") == {1: "completed", 2: "pending"}


@pytest.mark.parametrize(
    ("done", "total", "shown"), [(30, 60, 50), (500, None, 100), (-1, None, 0), (40, None, 40)]
)
def test_progress_in_percent_is_one(done: float, total: float | None, shown: float) -> None:
    form = Status("status", progress="progress")
    assert form.progress_values(done, total)["percent"] == shown


def test_a_result_that_does_not_fit_fails_its_row_alone(queue: Lab) -> None:
    add(queue, 1, 2)
    if queue.is_sqlite:
        queue.execute(
            "CREATE TRIGGER too_long BEFORE UPDATE ON task_queue WHEN length(NEW.result_data) > 40 "
            "BEGIN SELECT raise(ABORT, 'too long'); END"
        )
    app = make(queue, lambda row: "x" * 100 if row.id == 1 else "fits")
    app.consume("mail", until_empty=True)
    assert get(queue, "status, result_data") == {1: ("failed", None), 2: ("completed", '"fits"')}
    assert "too long" in get(queue, "error")[1]


def test_progress_may_be_a_count_which_the_end_does_not_touch(queue: Lab) -> None:
    add(queue, 1)
    go = threading.Event()

    def count(ctx: JobContext, row: Row) -> None:
        ctx.progress(3, 12)
        assert go.wait(100)

    app = make(queue, count, {"progress_done": "done"})
    with app.consuming("mail").background():
        eventually(lambda: get(queue, "done")[1] == 3)
        go.set()
        eventually(lambda: get(queue, "status, done")[1] == ("completed", 3))


@pytest.mark.parametrize(
    ("there", "written"),
    [
        (None, "____-__-__ __:__:__"),
        ("2020-01-01 10:00:00", "____-__-__ __:__:__"),
        ("2020-01-01T10:00:00Z", "____-__-__T__:__:__Z"),
        ("2020-01-01T10:00:00.123456+00:00", "____-__-__T__:__:__.______+00:00"),
        ("someday", "____-__-__ __:__:__"),
    ],
)
def test_sqlite_writes_times_as_the_column_has_them(queue: Lab, there: str | None, written: str) -> None:
    if not queue.is_sqlite:
        pytest.skip("PostgreSQL's columns have types of their own")
    add(queue, 1, 2)
    queue.execute("UPDATE task_queue SET status = 'other', updated_at = ? WHERE id = 2", (there,))
    make(queue).consume("mail", until_empty=True)
    assert queue.execute("SELECT updated_at LIKE ? FROM task_queue WHERE id = 1", (written,)) == [(1,)]


@pytest.mark.parametrize("strict", ["", "STRICT"])
@pytest.mark.parametrize("shown", ["progress", "progress_done"])
def test_columns_of_whole_numbers_get_whole_numbers(lab: Lab, strict: str, shown: str) -> None:
    table, whole = f"{lab.prefix}renders", "INTEGER" if lab.is_sqlite else "bigint"
    lab.execute(
        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, status TEXT, started {whole}, updated {whole}, "
        f"finished {whole}, shown INTEGER) {strict if lab.is_sqlite else ''}"
    )
    lab.execute(f"INSERT INTO {table} (id, status) VALUES (1, 'pending')")
    app, seen = lab.app(), []
    at = {"started_at": "started", "updated_at": "updated", "finished_at": "finished"}

    def render(ctx: JobContext, row: Row) -> None:
        ctx.progress(1.7, 3)
        with ctx.checkpoint():
            pass
        seen.extend(lab.execute(f"SELECT shown FROM {table}"))

    before = int(time.time())
    status = Status("status", **at, **{shown: "shown"})
    app.consumer("render", table=table, status=status, retry=False)(render)
    assert app.consume("render", until_empty=True).completed == 1
    assert seen == [(57 if shown == "progress" else 2,)]
    (ended,) = lab.execute(f"SELECT started, updated, finished, shown FROM {table}")
    assert all(type(one) is int for one in ended)
    assert all(before <= one <= time.time() + 1 for one in ended[:3])


def test_a_flag_has_whole_seconds_in_a_column_of_whole_numbers(lab: Lab) -> None:
    table = f"{lab.prefix}photos"
    lab.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, done BOOLEAN, done_at BIGINT)")
    lab.execute(f"INSERT INTO {table} (id) VALUES (1)")
    app = lab.app()
    app.consumer("upload", table=table, flag=Flag("done", at="done_at"))(nothing)
    app.consume("upload", until_empty=True)
    ((done_at,),) = lab.execute(f"SELECT done_at FROM {table}")
    assert type(done_at) is int


def test_a_time_format_overrides_what_the_column_has(queue: Lab) -> None:
    if not queue.is_sqlite:
        pytest.skip("PostgreSQL's columns have types of their own")
    add(queue, 1)
    make(queue, books={"updated_at": "updated_at", "time_format": "%Y/%m"}).consume("mail", until_empty=True)
    assert get(queue, "updated_at LIKE '____/__'") == {1: 1}


def test_the_form_of_a_time_is_told_from_one_value() -> None:
    assert time_form(1_700_000_000) == "integer"
    assert time_form(1_700_000_000.5) == "real"
    assert time_form("2020-01-01 10:00") == "%Y-%m-%d %H:%M"
    assert time_form("2020-01-01 10:00:00.123") == "%Y-%m-%d %H:%M:%f"


def test_what_the_books_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"either progress= .* or progress_done="):
        Status("status", progress="a", progress_done="b")
    for wrong in ({"time_format": "'"}, {"attempts": "a%b"}, {"result": ""}):
        with pytest.raises(ConfigurationError, match="Status"):
            Status("status", **wrong)
