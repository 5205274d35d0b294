"""`ctx.checkpoint()` in a consumer's function: rows that are committed while the row's claim is held."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from rowlock import ClaimLost, JobContext, Retry, Status
from rowlock.consumers.row import Row
from rowlock.stores.sql.store import Store
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import worker as register


def rescue(store: Store) -> None:
    """Somebody declares every worker dead, a long time from now, and takes its rows back."""
    later = time.time() + 1000.0
    assert store.rescue(register(store, "rescuer", now=later), 10.0, now=later).requeued


def test_rows_and_progress_are_seen_when_the_block_ends(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.create(1)
    app, seen = lab.app(), []
    progress = f"SELECT done, note FROM {lab.prefix}rowlock_consumer_claims"

    @app.consumer("birdnet", table=lab.table, state="analysis_state", retry=False)
    def birdnet(ctx: JobContext, recording: Row) -> None:
        for number in (1, 2):
            ctx.progress(number, 2, "heard")
            ctx.log(f"heard {number}")
            with ctx.checkpoint() as tx:
                lab.detect(tx, number, "birdnet")
            seen.append((lab.count_detections(), *lab.execute(progress)))
        with ctx.transaction() as tx:
            lab.detect(tx, "end", "birdnet")

    with caplog.at_level(logging.INFO, logger="rowlock.consumer"):
        app.consume("birdnet", until_empty=True)
    assert seen == [(1, (1, "heard")), (2, (2, "heard"))]
    assert (lab.marks("birdnet"), lab.count_detections()) == ({1: True}, 3)
    assert [line for line in caplog.messages if "heard" in line] == [
        "consumer birdnet, row 1: heard 1",
        "consumer birdnet, row 1: heard 2",
    ]


def test_the_progress_of_a_status_row_is_committed_with_it(lab: Lab) -> None:
    lab.execute(f"CREATE TABLE {lab.prefix}jobs (id {lab.types['id']}, status TEXT, percent INTEGER)")
    lab.execute(f"INSERT INTO {lab.prefix}jobs VALUES (1, 'pending', NULL)")
    app, seen = lab.app(), []
    status = Status(
        "status", due="pending", running="running", done="done", failed="failed", progress="percent"
    )

    @app.consumer("video", table=f"{lab.prefix}jobs", status=status, retry=False)
    def video(ctx: JobContext, row: Row) -> None:
        ctx.progress(1, 2)
        with ctx.checkpoint():
            pass
        seen.extend(lab.execute(f"SELECT status, percent FROM {lab.prefix}jobs"))

    app.consume("video", until_empty=True)
    assert seen == [("running", 50)]


@pytest.mark.parametrize("undone", ["raises", "raises, async", "refused"])
def test_progress_said_in_a_block_that_is_undone_is_undone_with_it(lab: Lab, undone: str) -> None:
    """Else an attempt that goes on from the row's count would leave out what was undone."""
    if undone == "refused" and lab.is_sqlite:
        pytest.skip("SQLite checks deferred constraints only if its foreign keys are switched on")
    lab.execute(f"CREATE TABLE {lab.prefix}jobs (id {lab.types['id']}, status TEXT, done INTEGER)")
    lab.execute(f"INSERT INTO {lab.prefix}jobs VALUES (1, 'pending', 0)")
    lab.execute(f"CREATE TABLE {lab.prefix}pages (page INTEGER PRIMARY KEY)")
    reference = f"page INTEGER REFERENCES {lab.prefix}pages DEFERRABLE INITIALLY DEFERRED"
    lab.execute(f"CREATE TABLE {lab.prefix}notes ({reference})")
    app, began, insert = lab.app(), [], f"INSERT INTO {lab.prefix}"
    status = Status("status", progress_done="done")
    options = {"table": f"{lab.prefix}jobs", "status": status, "retry": Retry(max_attempts=2, base=0.01)}

    def pages(ctx: JobContext, row: Row) -> Any:
        began.append(row.done)
        for page in range(row.done, 3):
            fails = page == 1 and len(began) == 1
            with ctx.checkpoint() as tx:
                tx.execute(f"{insert}pages VALUES ({page})")
                if fails and undone == "refused":
                    tx.execute(f"{insert}notes VALUES (99)")
                ctx.progress(page + 1, 3)
                if fails and undone == "raises":
                    raise ValueError("no ink")

    async def pages_async(ctx: JobContext, row: Row) -> None:
        began.append(row.done)
        for page in range(row.done, 3):
            async with ctx.checkpoint() as tx:
                await tx.execute(f"{insert}pages VALUES ({page})")
                ctx.progress(page + 1, 3)
                if page == 1 and len(began) == 1:
                    raise ValueError("no ink")

    app.consumer("pages", **options)(pages_async if "async" in undone else pages)

    def worked_off() -> bool:
        app.consume("pages", until_empty=True)
        return bool(lab.execute(f"SELECT 1 FROM {lab.prefix}jobs WHERE status = 'completed'"))

    eventually(worked_off)  # its second attempt may be a moment away when the first consumer ends
    assert began == [0, 1]
    assert lab.execute(f"SELECT page FROM {lab.prefix}pages ORDER BY page") == [(0,), (1,), (2,)]
    assert lab.execute(f"SELECT status, done FROM {lab.prefix}jobs") == [("completed", 3)]


@pytest.mark.parametrize("batch", [None, 2])
def test_a_late_checkpoint_writes_nothing(lab: Lab, batch: int | None) -> None:
    lab.create(3)
    app = lab.app()
    lost: list[BaseException] = []

    @app.consumer("birdnet", table=lab.table, state="analysis_state", batch=batch)
    def birdnet(ctx: JobContext, recording: Any) -> None:
        late = not lab.detections()
        with ctx.checkpoint() as tx:
            lab.detect(tx, "late, first" if late else "first", "birdnet")
        if late:
            rescue(store_of(app, "birdnet"))
        try:
            with ctx.checkpoint() as tx:
                lab.detect(tx, "late, second" if late else "second", "birdnet")
        except ClaimLost as error:
            lost.append(error)
            raise

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert len(lost) == 1 and "was lost" in str(lost[0])
    found = [one for one, _ in lab.detections()]
    assert "late, first" in found and "late, second" not in found and "second" in found
    marks = lab.marks("birdnet")  # what was taken back is due a long time from now
    assert (marks[1], marks[3]) == (None, True)


def test_nothing_is_saved_between_a_workers_death_and_the_return_of_its_rows(lab: Lab) -> None:
    """They may come back one by one, and a batch is several of them."""
    lab.create(2)
    app = lab.app()

    @app.consumer("birdnet", table=lab.table, state="analysis_state", batch=2, retry=False)
    def birdnet(ctx: JobContext, recordings: list[Row]) -> None:
        later = time.time() + 1000.0
        assert app.store.rescue(register(app.store, "other", now=later), 10.0, now=later).workers
        with ctx.checkpoint() as tx:
            lab.detect(tx, recordings[0].id, "birdnet")

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert lab.detections() == []
