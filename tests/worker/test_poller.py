"""The poller by itself: claims, outcomes, counts, waits, and a database that is busy."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rowlock import Fail, Poller, Retry, RetryLater, Rowlock
from rowlock.errors import UnknownTask
from rowlock.job import EVERY_TASK
from tests.eventually import eventually


@pytest.fixture
def poller(app: Rowlock) -> Any:
    made = Poller(app, worker_id="w1")
    yield made
    made.close()


def enqueue(app: Rowlock, **options: Any) -> int:
    return Rowlock(app.store.url).enqueue("work", {"a": 1}, **options).id


def test_an_empty_queue_gives_no_claim(poller: Poller) -> None:
    assert poller.claim() is None
    assert poller.stats() == {
        "polls_total": 1,
        "polls_successful": 0,
        "polls_empty": 1,
        "polls_busy": 0,
        "success_rate": 0.0,
        "consecutive_empty": 1,
        "running": False,
        "strategy": "PRIORITY",
        "worker_id": "w1",
    }


def test_a_poller_counts_as_knowing_every_task(app: Rowlock, poller: Poller) -> None:
    app.task(name="known")(lambda: None)
    assert poller.claim() is None
    (record,) = app.store.workers()
    assert record.tasks == {"known": {"max_attempts": 3}, EVERY_TASK: {}}
    with pytest.raises(UnknownTask, match=r"there is no task '\*'; known ones are: known"):
        app.enqueue(EVERY_TASK)  # which makes no name of it
    other = Rowlock(app.store.url)
    other.task(name="else")(lambda: None)
    job = enqueue(app)
    assert other.worker().run(until_empty=True).released == 1
    assert app.job(job).state == "queued"
    claim = poller.claim()
    assert claim is not None and claim.id == job


def test_a_claim_has_the_jobs_fields_and_can_be_completed(app: Rowlock, poller: Poller) -> None:
    id = enqueue(app, priority=4, queue="q", meta={"tenant": "x"})
    claim = poller.claim()
    assert claim is not None
    assert (claim.id, claim.task, claim.queue, claim.args, claim.priority) == (id, "work", "q", {"a": 1}, 4)
    assert (claim.claim, claim.claimed_by, claim.meta) == (1, "w1", {"tenant": "x"})
    found = app.job(id)
    assert found.state == "running"
    for field in (
        "created_at",
        "run_at",
        "claimed_at",
        "expires_at",
        "failures",
        "max_attempts",
        "unique_key",
    ):
        assert getattr(claim, field) == getattr(found, field)
    assert claim.complete({"answer": 42})
    assert app.result(id) == {"answer": 42}
    assert not claim.complete("again")  # the fence
    assert poller.stats()["success_rate"] == 1.0


def test_a_claim_can_fail_until_its_budget_is_used_up(app: Rowlock, poller: Poller) -> None:
    app.task(name="work", retry=Retry(max_attempts=2, base=0.0))(lambda a: None)
    id = app.enqueue("work", {"a": 1}).id
    for expected in ("scheduled", "failed"):
        claim = eventually(poller.claim)
        assert claim is not None and claim.fail("broken")
        assert app.job(id).state == expected
    assert "broken" in str(app.job(id).error)


def test_a_claim_can_be_released(app: Rowlock, poller: Poller) -> None:
    id = enqueue(app)
    claim = poller.claim()
    assert claim is not None and claim.release()
    assert (app.job(id).state, app.job(id).failures) == ("queued", 0)
    again = poller.claim()
    assert again is not None and again.claim == 2 and again.release(delay=60)
    assert app.job(id).state == "scheduled"


def test_a_result_that_cannot_be_stored_fails_the_claim(app: Rowlock, poller: Poller) -> None:
    id = enqueue(app)
    claim = poller.claim()
    assert claim is not None and claim.complete(b"bytes")
    assert (app.job(id).state, app.job(id).error_kind) == ("failed", "result")


def test_poll_once_completes_or_fails_by_how_the_function_ends(app: Rowlock, poller: Poller) -> None:
    def boom(claim: Any) -> None:
        raise ValueError("boom")

    def give_up(claim: Any) -> None:
        raise Fail("no use")

    def later(claim: Any) -> None:
        raise RetryLater(60)

    ids = [enqueue(app) for _ in range(4)]
    assert [poller.poll_once(on_job) for on_job in (lambda claim: claim.id, boom, give_up, later)] == [
        True
    ] * 4
    states = [str(app.job(id).state) for id in ids]
    assert states == ["completed", "scheduled", "failed", "scheduled"]
    assert app.result(ids[0]) == ids[0]
    assert [app.job(id).failures for id in ids] == [0, 1, 1, 0]
    idle: list[int] = []
    assert not poller.poll_once(boom, on_idle=lambda: idle.append(1))
    assert idle == [1]


def test_an_interrupt_gives_the_job_back(app: Rowlock, poller: Poller) -> None:
    id = enqueue(app)

    def interrupt(claim: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        poller.poll_once(interrupt)
    assert app.job(id).state == "queued"


def test_run_polls_so_many_times_and_retires(app: Rowlock, poller: Poller) -> None:
    for _ in range(3):
        enqueue(app)
    done: list[int] = []
    poller.run(lambda claim: done.append(claim.id), max_iterations=3)
    assert done == [1, 2, 3]
    assert poller.stats()["polls_total"] == 3
    assert [worker.ended for worker in app.store.workers()] == ["stopped"]


def test_stop_from_another_thread_ends_the_run_at_once(app: Rowlock) -> None:
    poller = Poller(app, poll_interval=600.0)
    thread = threading.Thread(target=poller.run, args=(lambda claim: None,))
    thread.start()
    eventually(lambda: poller.polls_total)
    assert poller.stats()["running"]
    poller.stop()
    thread.join(timeout=50)
    assert not thread.is_alive() and not poller.stats()["running"]


def test_a_commit_by_somebody_else_ends_the_wait(app: Rowlock) -> None:
    poller = Poller(app, poll_interval=600.0)
    done = threading.Event()
    thread = threading.Thread(target=poller.run, args=(lambda claim: done.set(),))
    thread.start()
    eventually(lambda: poller.polls_empty)
    enqueue(app)
    assert done.wait(50)
    poller.stop()
    thread.join()


def test_a_wait_is_no_longer_than_until_the_next_due_job(app: Rowlock) -> None:
    poller = Poller(app, poll_interval=600.0)
    done = threading.Event()
    thread = threading.Thread(target=poller.run, args=(lambda claim: done.set(),))
    thread.start()
    enqueue(app, delay=0.3)
    assert done.wait(50)
    poller.stop()
    thread.join()


def test_the_wait_grows_with_empty_polls_up_to_a_minute(app: Rowlock) -> None:
    poller = Poller(app, poll_interval=2.0, max_idle_polls=3)
    waits = []
    for _ in range(12):
        poller.claim()
        waits.append(poller.idle_wait())
    assert waits[:3] == [2.0] * 3
    assert 3.0 <= waits[3] <= 4.0 and 6.0 <= waits[4] <= 8.0
    assert all(45 <= wait <= 60 for wait in waits[8:])
    assert len(set(waits[8:])) > 1  # jitter
    enqueue(app, delay=40.0)
    assert 10.0 < poller.idle_wait() <= 40.0  # and not what it has grown to
    enqueue(app)
    assert poller.claim() is not None
    poller.claim()
    assert poller.idle_wait() == 2.0
    poller.close()


def test_scheduled_jobs_are_promoted_by_a_poller_alone(app: Rowlock, poller: Poller) -> None:
    id = enqueue(app, delay=0.1)
    claim = eventually(poller.claim)
    assert claim is not None and claim.id == id


def test_a_busy_database_is_a_counted_empty_poll_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db", busy_timeout=0.05)
    poller = Poller(app)
    enqueue(app)
    poller._polls.maintenance.take()
    blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING):
        assert [poller.claim() for _ in range(5)] == [None] * 5
    assert len([record for record in caplog.records if record.name == "rowlock.poller"]) == 1
    stats = poller.stats()
    assert (stats["polls_total"], stats["polls_empty"], stats["polls_busy"]) == (5, 5, 5)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert poller.claim() is not None
    poller.close()
    app.close()


def test_a_database_that_is_busy_when_a_job_ends_gets_its_outcome_later(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db", busy_timeout=0.05)
    poller = Poller(app)
    ids = [enqueue(app) for _ in range(2)]
    blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)

    def block(claim: Any) -> str:
        blocker.execute("BEGIN IMMEDIATE")
        return "done"

    for id, deliver in zip(ids, (poller.claim, poller.close), strict=True):
        assert poller.poll_once(block)
        assert app.job(id).state == "running"
        blocker.execute("ROLLBACK")
        held = deliver()
        assert app.result(id, timeout=0) == "done"
        if held is not None:
            held.release()
    blocker.close()
    app.close()


def test_a_disk_that_cannot_be_written_when_a_job_ends_gets_its_outcome_later(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")
    poller = Poller(app)
    id = enqueue(app)

    def writable(yes: bool) -> None:
        with app.store.database.connections.borrowed() as connection:  # type: ignore[attr-defined]
            connection.execute(f"PRAGMA query_only = {'OFF' if yes else 'ON'}")

    def spoil(claim: Any) -> str:
        writable(False)
        return "done"

    assert poller.poll_once(spoil)
    assert app.job(id).state == "running"
    assert not poller.poll_once(spoil)
    writable(True)
    poller.close()
    assert app.result(id, timeout=0) == "done"
    app.close()


def test_the_strategy_can_be_changed_between_polls(app: Rowlock, poller: Poller) -> None:
    first, second, third = enqueue(app), enqueue(app, priority=9), enqueue(app)
    order = []
    for strategy in ("LIFO", "PRIORITY", "FIFO"):
        poller.strategy = strategy
        claim = poller.claim()
        assert claim is not None
        order.append(claim.id)
    assert order == [third, second, first]
    with pytest.raises(ValueError, match="valid ones are: FIFO, LIFO, PRIORITY, WEIGHTED_RANDOM"):
        poller.strategy = "RANDOM"


def test_a_poller_beats_while_its_user_works(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db", lease=6.0)
    slow, other = Poller(app, worker_id="slow"), Poller(app, worker_id="other")
    enqueue(app)
    claim = slow.claim()
    assert claim is not None
    beats: set[datetime] = set()

    def has_beaten_twice() -> bool:
        assert other.claim() is None
        beats.update(one.beat_at for one in app.store.workers() if one.id == "slow")
        return len(beats) > 2

    eventually(has_beaten_twice)
    assert claim.complete()
    slow.close()
    other.close()
    app.close()


def test_a_poller_that_was_declared_dead_registers_anew(app: Rowlock, poller: Poller) -> None:
    id = enqueue(app)
    old = poller.claim()
    assert old is not None
    rescuer = Poller(app, worker_id="rescuer")
    rescuer.claim()
    later = time.time() + 1000
    app.store.beat("rescuer", "FIFO", now=later)
    assert app.store.rescue("rescuer", careful_age=20, now=later).workers == ["w1"]
    assert poller.claim() is None
    again = poller.claim()
    assert again is not None and again.id == id and again.claim == 2
    assert again.claimed_by == poller.worker_id != "w1"
    assert not old.complete("late")
    assert again.complete("new")
    assert app.result(id) == "new"
    rescuer.close()


@pytest.mark.parametrize(
    "options",
    [{"poll_interval": 0}, {"poll_interval": "1"}, {"strategy": "NO"}, {"worker_id": ""}, {"queues": "gpu"}],
)
def test_bad_options_are_refused(app: Rowlock, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|unknown strategy"):
        Poller(app, **options)


def test_a_late_answer_about_an_earlier_incarnation_is_ignored(app: Rowlock, poller: Poller) -> None:
    poller.claim()
    poller._heartbeat.declared_dead("somebody else")
    poller.claim()
    assert poller.worker_id == "w1"
    poller._heartbeat.declared_dead("w1")
    poller.claim()
    assert poller.worker_id != "w1"


def test_a_job_enqueued_by_the_pollers_own_thread_ends_its_wait(app: Rowlock) -> None:
    poller, done = Poller(app, poll_interval=600.0), threading.Event()

    def add_one() -> None:
        if not app.jobs():
            app.enqueue("work")

    thread = threading.Thread(target=poller.run, args=(lambda claim: done.set(), add_one))
    thread.start()
    assert done.wait(50)
    poller.stop()
    thread.join()


def test_a_stop_before_the_run_ends_it(app: Rowlock) -> None:
    poller = Poller(app, poll_interval=30.0)
    enqueue(app)
    poller.stop()
    poller.run(lambda claim: None)
    assert poller.polls_total == 0
    poller.run(lambda claim: None, max_iterations=1)  # it may run again
    assert poller.polls_successful == 1


def test_a_poller_of_the_app_polls_as_its_settings_say(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db", poll_interval=7)
    assert app.poller().poll_interval == 7
    assert app.poller(poll_interval=2).poll_interval == 2


def test_a_job_that_falls_due_between_two_claims_is_claimed_and_counts_as_one_poll(
    app: Rowlock, poller: Poller
) -> None:
    assert poller.claim() is None
    job = enqueue(app, delay=0.05)
    due = app.job(job).run_at
    eventually(lambda: datetime.now(timezone.utc) > due)
    claim = poller.claim()
    assert claim is not None and claim.id == job
    assert (poller.polls_total, poller.polls_empty, poller.polls_successful) == (2, 1, 1)


def test_the_number_of_idle_polls_is_checked(app: Rowlock) -> None:
    with pytest.raises(ValueError, match="max_idle_polls=-1: must be"):
        Poller(app, max_idle_polls=-1)
