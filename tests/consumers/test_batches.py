"""Functions that get several rows at once; each row is settled on its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock import ConfigurationError, Fail, JobContext, Retry, RetryLater, Rowlock, Status
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register


def test_up_to_n_rows_come_at_once_and_each_gets_its_own_answer(lab: Lab) -> None:
    lab.create(10)
    app, sizes = lab.app(), []

    @app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time", batch=4)
    def birdnet(recordings: list[Row]) -> list[int]:
        sizes.append([recording.id for recording in recordings])
        return [recording.id * 10 for recording in recordings]

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert sizes == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert lab.marks("birdnet") == {n: n * 10 for n in range(1, 11)}
    assert lab.claims() == []


def test_an_exception_in_the_list_is_that_rows_alone(lab: Lab) -> None:
    lab.create(4)
    app, seen = lab.app(), []

    @app.consumer(
        "birdnet",
        table=lab.table,
        state="analysis_state",
        batch=4,
        retry=Retry(max_attempts=2, base=0.0, never=(KeyError,)),
    )
    def birdnet(recordings: list[Row]) -> list[Any]:
        seen.append([recording.id for recording in recordings])
        answers: dict[int, Any] = {1: None, 2: OSError("busy"), 3: Fail("no sound"), 4: KeyError("x")}
        return [answers[recording.id] for recording in recordings]

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert seen == [[1, 2, 3, 4], [2]]
    assert lab.marks("birdnet") == {
        1: True,
        2: {"failed": "OSError: busy", "attempts": 2},
        3: {"failed": "no sound", "attempts": 1},
        4: {"failed": "KeyError: 'x'", "attempts": 1},
    }


def test_a_row_of_a_batch_may_ask_to_be_tried_later_without_charge(lab: Lab) -> None:
    lab.create(2)
    app, seen = lab.app(), []

    @app.consumer("birdnet", table=lab.table, state="analysis_state", batch=2, retry=False)
    def birdnet(recordings: list[Row]) -> list[Any]:
        seen.append([recording.id for recording in recordings])
        return [RetryLater(0.0) if one.id == 1 and len(seen) == 1 else one.id for one in recordings]

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert (seen, lab.marks("birdnet")) == ([[1, 2], [1]], {1: 1, 2: 2})


def test_what_is_raised_is_raised_for_all_and_the_tried_do_not_mix_with_the_new(lab: Lab) -> None:
    lab.create(3)
    app, seen = lab.app(), []

    @app.consumer(
        "birdnet", table=lab.table, state="analysis_state", batch=8, retry=Retry(max_attempts=2, base=0.0)
    )
    def birdnet(ctx: JobContext, recordings: list[Row]) -> None:
        seen.append((ctx.attempt, sorted(recording.id for recording in recordings)))
        if ctx.attempt == 1 and recordings[0].id == 1:
            lab.fill(4, 5)
            raise OSError("the model is busy")

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert sorted(seen) == [(1, [1, 2, 3]), (1, [4, 5]), (2, [1, 2, 3])]
    assert set(lab.marks("birdnet").values()) == {True}


def test_a_batch_commits_its_rows_and_all_of_its_marks_together(lab: Lab) -> None:
    lab.create(4)
    app = lab.app()

    @app.consumer("birdnet", table=lab.table, state="analysis_state", batch=2, retry=Retry(max_attempts=1))
    async def birdnet(ctx: JobContext, recordings: list[Row]) -> list[Any]:
        await asyncio.sleep(0)
        async with ctx.transaction() as tx:
            for recording in recordings:
                mark = lab.mark
                statement = f"INSERT INTO {lab.prefix}detections VALUES ({mark}, {mark})"
                await tx.execute(statement, (str(recording.id), "birdnet"))
        return [ValueError("three") if recording.id == 3 else None for recording in recordings]

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert lab.detections() == [(str(n), "birdnet") for n in range(1, 5)]
    assert lab.marks("birdnet") == {
        1: True,
        2: True,
        3: {"failed": "ValueError: three", "attempts": 1},
        4: True,
    }
    assert lab.claims() == []


def test_a_wrong_number_of_answers_fails_the_batch(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()

    @app.consumer("birdnet", table=lab.table, state="analysis_state", batch=2)
    def birdnet(recordings: list[Row]) -> list[int]:
        return [1]

    app.consume("birdnet", until_empty=True)
    assert all("a list of as many answers" in mark["failed"] for mark in lab.marks("birdnet").values())


def test_a_batch_of_a_lost_claim_changes_nothing(lab: Lab) -> None:
    lab.execute(f"CREATE TABLE {lab.prefix}jobs (id INTEGER PRIMARY KEY, status TEXT)")
    lab.execute(f"INSERT INTO {lab.prefix}jobs VALUES (1, 'pending'), (2, 'pending'), (3, 'pending')")
    app = lab.app()

    @app.consumer("video", table=f"{lab.prefix}jobs", status=Status("status"), batch=2)
    def video(jobs: list[Row]) -> None: ...

    store = store_of(app, "video")
    worker = register(app.store, "w")
    claims = store.exchange(worker, request=ClaimRequest(count=2)).claims
    assert len(claims) == 2
    assert len(store.held(worker)) == 2
    store.retire(worker)
    statuses = f"SELECT DISTINCT status FROM {lab.prefix}jobs"
    assert lab.execute(statuses) == [("pending",)]
    answers = '[["ok", null], ["ok", null]]'
    lost = store.exchange(worker, [claims[0].ended(Ending.COMPLETED, result=answers)]).lost
    assert len(lost) == 1
    assert lab.execute(statuses) == [("pending",)]


@pytest.mark.parametrize("batch", [0, -1, True, "8", 1001])
def test_a_batch_that_is_no_number_is_refused(app: Rowlock, batch: Any) -> None:
    with pytest.raises(ConfigurationError, match="batch="):
        app.consumer("birdnet", table="recordings", state="s", batch=batch)(lambda rows: None)
