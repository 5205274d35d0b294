"""`RetryLater(seconds, pause=True)` in a worker: what was claimed ahead goes back, and it waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from rowlock import JobContext, RetryLater, Rowlock
from tests.eventually import eventually
from tests.stores.conformance.conftest import postgres, sqlite


@pytest.fixture(params=[sqlite, postgres], ids=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest) -> Iterator[Rowlock]:
    with closing(Rowlock(request.param(request), poll_interval=600)) as made:
        yield made


def test_what_was_claimed_ahead_goes_back_and_is_not_run(app: Rowlock) -> None:
    ran: list[int] = []

    @app.task(queue="upload")
    def upload(number: int) -> None:
        if number == 100:
            raise RetryLater(300, "the other side is away", pause=True)
        ran.append(number)

    upload.enqueue_many([{"number": number} for number in range(300)])
    with app.worker(concurrency=1).background():
        eventually(lambda: {str(one.state) for one in app.jobs(limit=200)} == {"scheduled", "queued"})
    assert ran == list(range(100))
    assert [one.failures for one in app.jobs(state="scheduled")] == [0]


def test_until_empty_leaves_a_paused_queue_alone(app: Rowlock) -> None:
    @app.task(queue="upload")
    def upload() -> None:
        raise RetryLater(300, pause=True)

    upload.enqueue_many([{}, {}])
    app.worker(concurrency=1).run(until_empty=True)
    assert sorted(str(one.state) for one in app.jobs()) == ["queued", "scheduled"]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_an_idle_wait_ends_with_the_pause(app: Rowlock, kind: str) -> None:
    def once(ctx: JobContext) -> None:
        if ctx.claim == 1 and ctx.id == ids[0]:
            raise RetryLater(0.3, pause=True)

    if kind == "thread":
        upload = app.task(queue="upload", name="upload")(once)
    else:

        @app.task(queue="upload", name="upload")
        async def upload(ctx: JobContext) -> None:
            once(ctx)

    ids = upload.enqueue_many([{}, {}])
    with app.worker(concurrency=1).background():
        eventually(lambda: {str(one.state) for one in app.jobs()} == {"completed"})
    assert {one.name: one.paused for one in app.store.queues()} == {"upload": False}
