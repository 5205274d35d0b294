"""`RetryLater(seconds, pause=True)` in a consumer's function: its rows wait, whoever asks for them."""

from __future__ import annotations

import time

import pytest

from rowlock import JobContext, RetryLater, insights
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import worker as register


@pytest.mark.parametrize("batch", [None, 2, "for one row"])
def test_a_consumer_claims_nothing_until_the_time_is_over(lab: Lab, batch: int | str | None) -> None:
    lab.create(3)
    app, seen = lab.app(), []

    away = RetryLater(300, "the other side is away", pause=True)
    rows = 2 if batch == "for one row" else batch

    @app.consumer("upload", table=lab.table, state="analysis_state", batch=rows)
    def upload(ctx: JobContext, recording: object) -> list[RetryLater | None]:
        seen.append(ctx.attempt)
        if batch == "for one row":
            return [None, away]
        raise away

    app.consume("upload", until_empty=True, concurrency=1)
    assert seen == [1]
    assert {failures for *_, failures in lab.claims()} == {0}
    store = store_of(app, "upload")
    who = register(app.store, "another worker")
    assert store.exchange(who, request=ClaimRequest(count=5)).claims == []
    (record,) = insights.consumers(app)
    assert record.paused and record.paused_until is not None
    app.resume("consumer:upload")
    (record,) = insights.consumers(app)
    assert (record.paused, record.paused_until) == (False, None)
    assert store.exchange(who, request=ClaimRequest(count=5)).claims


def test_a_pause_that_nobody_ended_is_over_for_claims(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()

    @app.consumer("upload", table=lab.table, state="analysis_state")
    def upload(recording: Row) -> None:
        raise RetryLater(300, pause=True)

    app.consume("upload", until_empty=True, concurrency=1)
    store = store_of(app, "upload")
    who = register(app.store, "another worker")
    later = ClaimRequest(count=5)
    assert store.exchange(who, request=later, now=time.time() + 290).claims == []
    assert store.exchange(who, request=later, now=time.time() + 310).claims


def test_an_idle_wait_ends_with_the_pause(lab: Lab) -> None:
    lab.create(2)
    app, seen = lab.app(poll_interval=600), []

    @app.consumer("upload", table=lab.table, state="analysis_state")
    def upload(recording: Row) -> None:
        seen.append(recording.id)
        if len(seen) == 1:
            raise RetryLater(0.3, pause=True)

    with app.consuming("upload", concurrency=1).background():
        eventually(lambda: lab.marks("upload") == {1: True, 2: True})
    assert seen[0] == 1 and sorted(seen) == [1, 1, 2]


def test_a_pause_that_a_batch_commits_with_its_rows_comes_to_its_end(lab: Lab) -> None:
    """It is written by the run's own transaction, and not by an exchange."""
    lab.create(4)
    app, seen = lab.app(poll_interval=0.1), []

    @app.consumer("upload", table=lab.table, state="analysis_state", batch=2)
    def upload(ctx: JobContext, recordings: list[Row]) -> list[RetryLater | None]:
        seen.append([one.id for one in recordings])
        answers: list[RetryLater | None] = [None] * len(recordings)
        if len(seen) == 1:
            answers[-1] = RetryLater(0.1, pause=True)
        with ctx.transaction():
            return answers

    with app.consuming("upload", concurrency=1).background() as worker:
        eventually(lambda: lab.marks("upload") == dict.fromkeys(range(1, 5), True))
    assert len(seen) <= 4
    assert worker.tally.released <= 4


def test_batches_that_were_claimed_ahead_go_back_when_a_row_asks_for_a_pause(lab: Lab) -> None:
    lab.create(400)
    app, seen = lab.app(), []

    @app.consumer("upload", table=lab.table, state="analysis_state", batch=2)
    def upload(recordings: list[Row]) -> list[RetryLater | None]:
        seen.append(recordings)
        return [RetryLater(300, pause=True) if len(seen) == 30 else None, None]

    app.consume("upload", until_empty=True, concurrency=1)
    assert len(seen) == 30
    assert [mark for mark in lab.marks("upload").values() if mark] == [True] * 59
