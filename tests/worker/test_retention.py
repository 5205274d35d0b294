"""Retention as a user has it: workers delete what is older than the app says, a little at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.base import Retention
from tests.eventually import eventually
from tests.stores.steps import add, end, job, outcome, take, worker

DAY = 86_400.0
PAGE = 500  # jobs that one transaction of maintenance looks at


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rowlock]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        url = request.getfixturevalue("postgres_schema")
    made = Rowlock(url, keep_completed_days=2, keep_failed_days=5, poll_interval=0.05)
    yield made
    made.close()


def finished(app: Rowlock, count: int, days_ago: float, ending: Ending = Ending.COMPLETED) -> list[int]:
    then = time.time() - days_ago * DAY
    who = worker(app.store, f"w{days_ago}{ending}", now=then)
    ids = add(app.store, count, now=then)
    claims = take(app.store, who, count, now=then)
    app.store.exchange(who, [outcome(claim, ending) for claim in claims], now=then)
    return ids


def test_a_worker_deletes_what_is_older_than_the_app_says_in_small_steps(
    app: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = add(app.store, 1, now=time.time() - 9 * DAY, delay=30 * DAY)
    gone = finished(app, 1, days_ago=6, ending=Ending.CANCELLED)
    old = finished(app, 1_200, days_ago=3)
    kept = [
        *waiting,
        *finished(app, 1, days_ago=3, ending=Ending.FAILED),
        *finished(app, 1, days_ago=1),
    ]
    steps: list[int] = []
    prune = app.store.prune

    def watched(keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        deleted, page_end = prune(keep, after, most, now)
        steps.append(deleted)
        return deleted, page_end

    monkeypatch.setattr(app.store, "prune", watched)
    with app.worker(concurrency=1).background():
        eventually(lambda: app.store.get(old[-1]) is None and app.store.get(gone[0]) is None)
    assert sum(steps) == len(old) + 1
    assert max(steps) <= PAGE and sum(step > 0 for step in steps) >= 3
    assert [found.id for found in app.store.find(limit=2_000)] == sorted(kept, reverse=True)


def test_jobs_can_be_enqueued_and_claimed_between_two_steps(app: Rowlock) -> None:
    """No step holds the others up for the whole of a long past: each ends before the next begins."""
    finished(app, 1_200, days_ago=3)
    who, after, pages = worker(app.store, "w"), 0, 0
    while True:
        deleted, after = app.store.prune(Retention(DAY, DAY), after, PAGE)
        (id,) = add(app.store)
        got = app.store.exchange(who, request=ClaimRequest(count=1))
        assert [claim.id for claim in got.claims] == [id] and end(app.store, got.claims[0])
        assert job(app.store, id).state == "completed"
        assert deleted <= PAGE
        pages += 1
        if not after:
            break
    assert pages == 3


def test_the_rows_that_belong_to_a_job_go_with_it(app: Rowlock) -> None:
    @app.task
    def talk(ctx: Any) -> None:
        ctx.progress(1, 2)
        ctx.log("hello")
        raise ValueError("no")

    done = talk.enqueue()
    app.worker().run(until_empty=True)
    app.retry(done.id)
    app.cancel(done.id)
    assert app.store.history(done.id) and app.store.logs(done.id)
    later = time.time() + 6 * DAY
    assert app.store.prune(app.retention, 0, PAGE, now=later) == (1, 0)
    assert app.store.history(done.id) == [] and app.store.logs(done.id) == []
