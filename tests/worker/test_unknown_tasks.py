"""Workers that do not know a task, beside those that do: two apps in one database, or two versions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rowlock import Poller, Rowlock, State, endings
from rowlock.stores.sql import scan_marks
from rowlock.worker import unknown_tasks
from tests.eventually import eventually


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_queue"))


@pytest.fixture
def app(url: str) -> Iterator[Rowlock]:
    """The app that knows the task `work`, under an old name, too."""
    with closing(Rowlock(url)) as made:
        made.task(name="work", aliases=["toil"])(lambda: None)
        yield made


@pytest.fixture
def other(url: str) -> Iterator[Rowlock]:
    """An app in the same database that does not know it."""
    with closing(Rowlock(url)) as made:
        made.task(name="else")(lambda: None)
        yield made


@pytest.fixture
def producer(url: str) -> Iterator[Rowlock]:
    """An app without any code, whose jobs have the names that they are given."""
    with closing(Rowlock(url)) as made:
        yield made


def test_a_worker_that_does_not_know_a_task_leaves_its_jobs_to_those_who_do(
    app: Rowlock, other: Rowlock, producer: Rowlock
) -> None:
    """The one that knows it is held up, so that the other has every chance to take the jobs again.

    It claims nothing ahead: what it gave back because it had to wait would be counted, too.
    """
    held = threading.Event()
    app.task(name="slow")(lambda: held.wait(200))
    app.enqueue("slow")
    with app.worker(concurrency=1).background():
        eventually(lambda: app.stats()["running"])
        ids = [producer.enqueue(name).id for name in ("work", "toil") for _ in range(15)]
        with other.worker(concurrency=2, prefetch=0, poll_interval=0.01).background() as worker:
            eventually(lambda: worker.tally.released >= 2)
            mine = [other.enqueue("else").id for _ in range(10)]  # behind those that it leaves to others
            eventually(lambda: worker.tally.completed == 10)
            assert {app.job(id).state for id in ids} == {State.QUEUED}
            held.set()
            eventually(lambda: app.stats()["completed"] == 41)
            assert worker.tally.released <= 4
    assert {app.job(id).claim for id in mine} == {1}
    assert {app.job(id).failures for id in ids} == {0}


def test_a_worker_finds_what_comes_back_before_many_jobs_that_it_does_not_know(
    app: Rowlock, other: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first another has it; by the time it comes back, the worker's scans begin behind its place."""
    monkeypatch.setattr(scan_marks, "SLOW_SECONDS", 0.0)
    poller = Poller(app)  # it counts as knowing every task
    mine = other.enqueue("else")
    held = poller.claim()
    assert held is not None and held.id == mine.id
    for _ in range(50):
        app.enqueue("work")
    with other.worker(concurrency=1, poll_interval=60.0).background() as worker:
        later = [other.enqueue("else") for _ in range(3)]
        eventually(lambda: worker.tally.completed == 3)
        held.release()
        eventually(lambda: other.job(mine.id).state is State.COMPLETED)
    assert {other.job(job.id).state for job in later} == {State.COMPLETED}
    poller.close()


@pytest.fixture
def _for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody knows is put off for so long that it cannot become due by itself."""
    monkeypatch.setattr(endings, "_UNKNOWN_FIRST", 300.0)


@pytest.mark.usefixtures("_for_long")
def test_a_job_that_nobody_knows_is_due_as_soon_as_somebody_does(
    app: Rowlock, other: Rowlock, producer: Rowlock
) -> None:
    jobs = [producer.enqueue("toil", queue="q").id for _ in range(3)]
    with other.worker().background():
        eventually(lambda: app.job(jobs[0]).error_kind == "unknown_task")
        assert app.job(jobs[0]).state is State.SCHEDULED
        with app.worker().background():
            eventually(lambda: all(app.job(job).state is State.COMPLETED for job in jobs))


def test_a_worker_ends_when_only_jobs_are_left_that_it_does_not_know(app: Rowlock, other: Rowlock) -> None:
    poller = Poller(app)  # it counts as knowing every task, so that nothing is put off
    app.enqueue("work")
    assert poller.claim() is not None  # and runs while the others end
    jobs = [app.enqueue("work").id for _ in range(20)]
    other.enqueue("else")
    tally = other.worker(concurrency=2).run(until_empty=True)
    assert (tally.completed, tally.released) == (1, 2)
    assert {app.job(job).state for job in jobs} == {State.QUEUED}
    poller.close()


@pytest.mark.usefixtures("_for_long")
def test_a_task_that_becomes_known_is_claimed_again(app: Rowlock, other: Rowlock) -> None:
    with other.worker(poll_interval=0.05).background():
        job = app.enqueue("work")
        eventually(lambda: app.job(job.id).error_kind == "unknown_task")
        late = app.enqueue("work")
        other.task(name="work")(lambda: None)
        eventually(lambda: app.job(late.id).state is State.COMPLETED)
        # Its row says so, too: what was put off because nobody knew it is due.
        eventually(lambda: app.job(job.id).state is State.COMPLETED)


def test_there_are_only_so_many_tasks_that_a_worker_leaves_out_and_the_others_wait(
    app: Rowlock, other: Rowlock, producer: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take them, and give them back, again and again."""
    monkeypatch.setattr(unknown_tasks, "_MOST_LEFT_OUT", 1)
    poller = Poller(app)
    assert poller.claim() is None  # registered: it knows every task
    one, two = producer.enqueue("toil"), producer.enqueue("work")
    assert other.worker().run(until_empty=True).released == 2
    assert [app.job(job.id).state for job in (one, two)] == [State.QUEUED, State.SCHEDULED]
    poller.close()
