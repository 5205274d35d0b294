"""What every kind of pool has in common: one suite, run against each, as stores have theirs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock, State
from rowlock.pools.process import child_supervisor
from rowlock.pools.process import pool as pool_module
from tests.eventually import eventually
from tests.pools.pool_app import KINDS, app_for

Lines = list[str]


class Place:
    """An app in its folder, and the pool that its workers use."""

    def __init__(self, kind: str, app: Rowlock, folder: Path) -> None:
        self.kind, self.app, self.folder = kind, app, folder

    def worker(self, **options: Any) -> Any:
        return self.app.worker(pool=self.kind, **({"concurrency": 2} | options))

    def drain(self, **options: Any) -> Any:
        """Run until all jobs are final, retries included."""

        def done() -> bool:
            stats = self.app.stats()
            return stats["queued"] + stats["running"] + stats["scheduled"] == 0

        with self.worker(**options).background() as worker:
            eventually(done, timeout=30)
        return worker

    def lines(self, name: str) -> Lines:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def go(self) -> None:
        (self.folder / "go").touch()


def unmeasured(prepared: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """What a child is told at its start, without the object by which coverage begins to measure there."""
    return lambda name: {key: value for key, value in prepared(name).items() if key != "stowaway"}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # for children, too
    app = app_for(request.param, f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    app.store.open()
    with app.store.database.connections.borrowed() as connection:  # type: ignore[attr-defined]
        connection.execute("CREATE TABLE notes (text TEXT)")
    # However busy the machine is, a child has the time to end in good order, and to say where it stands.
    monkeypatch.setattr(child_supervisor, "SHUTDOWN_SECONDS", 60.0)
    monkeypatch.setattr(pool_module, "_STACK_SECONDS", 30.0)
    if request.param == "process":  # test_processes.py measures children, which takes twice as long
        monkeypatch.setattr(spawn, "get_preparation_data", unmeasured(spawn.get_preparation_data))
    place = Place(request.param, app, tmp_path)
    yield place
    place.go()  # nothing is left waiting
    app.close()


def test_results_errors_and_retries_come_to_the_queue(place: Place) -> None:
    app = place.app
    sums = [app.enqueue("add", {"a": n, "b": 1}) for n in range(5)]
    broken, later = app.enqueue("break_down"), app.enqueue("later")
    place.drain()
    assert [app.result(job.id) for job in sums] == [1, 2, 3, 4, 5]
    assert app.result(later.id) == 2
    assert app.job(later.id).failures == 0
    found = app.job(broken.id)
    assert (found.state, found.failures, found.error_kind) == (State.FAILED, 3, "exception")
    assert "in break_down" in str(found.error) and str(found.error).endswith("KeyError: 'no such thing'")
    assert place.lines("tries") == ["1", "2", "3"]
    assert f"{sums[0].id} completed" in place.lines("around")


def test_progress_and_log_lines_are_seen_while_it_runs(place: Place) -> None:
    job = place.app.enqueue("talk")
    with place.worker().background():
        eventually(lambda: place.app.job(job.id).progress is not None, timeout=50)
        found = place.app.job(job.id)
        assert found.progress is not None
        assert (found.state, found.progress.done, found.progress.note) == (State.RUNNING, 1.0, "half way")
        eventually(lambda: len(place.app.logs(job.id)) == 1)
        place.go()
        assert place.app.result(job.id, timeout=30) == "done"
    assert [(line.message, line.fields) for line in place.app.logs(job.id)] == [("hello", {"to": "you"})]


def test_a_running_job_is_cancelled(place: Place) -> None:
    job = place.app.enqueue("obey")
    with place.worker().background():
        begun = place.folder / f"obey-{job.id}"
        eventually(begun.exists, timeout=50)
        place.app.cancel(job.id)
        found = place.app.job(job.id)
        assert found.cancelling or found.state is State.CANCELLED
        eventually(lambda: place.app.job(job.id).state is State.CANCELLED, timeout=50)
    assert place.app.job(job.id).error_kind == "cancelled"


def test_a_run_over_its_timeout_is_told_and_ends_as_such(place: Place) -> None:
    job = place.app.enqueue("too_long")
    place.drain()
    found = place.app.job(job.id)
    assert (found.state, found.error_kind) == (State.FAILED, "timeout")
    assert "timeout of 0.3 s" in str(found.error)


def test_a_run_that_does_not_hear_is_given_up_and_its_place_is_free(place: Place) -> None:
    from rowlock.worker.worker import Worker

    deaf, other = place.app.enqueue("deaf"), place.app.enqueue("add", {"a": 1, "b": 2})
    # Two places: one that is held for ever would not end the worker.
    worker = Worker(place.app, place.app.workload(), pool=place.kind, concurrency=2, timeout_grace=0.2)
    with worker.background():
        eventually(lambda: place.app.job(deaf.id).state is State.FAILED, timeout=50)
        assert place.app.result(other.id, timeout=30) == 3
        again = place.app.enqueue("add", {"a": 2, "b": 2})
        assert place.app.result(again.id, timeout=30) == 4
        place.go()
    assert place.app.job(deaf.id).error_kind == "timeout"


def test_a_worker_all_of_whose_places_are_stuck_ends_and_says_so(place: Place) -> None:
    from rowlock.worker.worker import Worker

    ids = [place.app.enqueue("deaf").id for _ in range(2)]
    worker = Worker(place.app, place.app.workload(), pool=place.kind, concurrency=2, timeout_grace=0.1)
    tally = worker.run(until_empty=True)
    # A child process that hangs is killed, and its place is free again.
    assert worker.ended == ("finished" if place.kind == "process" else "stuck")
    assert tally.failed == 2
    assert [place.app.job(id).error_kind for id in ids] == ["timeout", "timeout"]
    place.go()


def test_what_still_runs_after_the_grace_is_given_back_free_of_charge(place: Place) -> None:
    job = place.app.enqueue("wait")
    with place.worker(grace=0.3).background() as worker:
        eventually(lambda: place.lines("waiting"), timeout=50)
        worker.stop()
    assert worker.ended == "grace"
    found = place.app.job(job.id)
    assert (found.state, found.failures, found.claim) == (State.QUEUED, 0, 1)
    place.go()
    place.drain()
    assert (place.app.result(job.id), place.app.job(job.id).claim) == ("waited", 2)


def test_a_stop_at_once_gives_back_what_runs(place: Place) -> None:
    job = place.app.enqueue("wait")
    with place.worker().background() as worker:
        eventually(lambda: place.lines("waiting"), timeout=50)
        worker.stop(now=True)
    assert worker.ended == "now"
    assert (place.app.job(job.id).state, place.app.job(job.id).failures) == (State.QUEUED, 0)


def test_a_stop_waits_for_what_runs_within_the_grace(place: Place) -> None:
    job = place.app.enqueue("wait")
    with place.worker().background() as worker:
        eventually(lambda: place.lines("waiting"), timeout=50)
        worker.stop()
        place.go()
    assert (worker.ended, place.app.result(job.id)) == ("finished", "waited")


def test_rows_of_a_transaction_commit_with_the_completion_or_not_at_all(place: Place) -> None:
    one = place.app.enqueue("write", {"text": "one"})
    two = place.app.enqueue("write", {"text": "two", "fail": True})
    place.drain()
    assert [place.app.job(job.id).failures for job in (one, two)] == [0, 1]
    with place.app.store.database.connections.borrowed() as connection:  # type: ignore[attr-defined]
        rows = connection.execute("SELECT text FROM notes ORDER BY text").fetchall()
    assert rows == [("one",), ("two",)]


def test_a_resident_is_loaded_once_before_the_first_claim_and_torn_down(place: Place) -> None:
    ids = [place.app.enqueue("count").id for _ in range(6)]
    with place.worker(concurrency=1).background():
        eventually(lambda: place.lines("residents"), timeout=50)
        assert [place.app.result(id, timeout=50) for id in ids] == [1, 2, 3, 4, 5, 6]
    eventually(lambda: place.lines("residents") == ["load", "unload"])


def test_a_task_that_the_worker_does_not_know_goes_back(place: Place) -> None:
    other = Rowlock(place.app.store.url)
    job = other.enqueue("elsewhere")
    with place.worker().background():
        eventually(lambda: place.app.job(job.id).state is State.SCHEDULED, timeout=50)
    found = place.app.job(job.id)
    assert (found.failures, found.error_kind) == (0, "unknown_task")
    other.close()


def test_an_app_without_a_task_for_the_default_pool_gives_back_what_it_does_not_know(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def known() -> None: ...

    job = Rowlock(f"sqlite:///{tmp_path}/jobs.db").enqueue("elsewhere")
    known.enqueue()
    tally = app.worker().run(until_empty=True)
    assert (tally.completed, tally.released, app.job(job.id).error_kind) == (1, 1, "unknown_task")
    app.close()


def test_short_jobs_are_claimed_ahead_and_none_is_lost(place: Place) -> None:
    place.app.tasks["nothing"].enqueue_many([(n,) for n in range(300)])
    tally = place.worker().run(until_empty=True)
    assert (tally.completed, tally.failed, tally.lost) == (300, 0, 0)


def test_no_more_run_at_once_than_the_concurrency_however_quick_they_are(place: Place) -> None:
    place.app.tasks["quick"].enqueue_many([{}] * 100)
    assert place.worker(concurrency=2).run(until_empty=True).completed == 100
    steps = [1 if line == "begin" else -1 for line in place.lines("steps")]
    assert len(steps) == 200
    assert max(itertools.accumulate(steps)) <= 2


def test_a_worker_says_where_its_runs_stand(place: Place) -> None:
    job = place.app.enqueue("wait")
    with place.worker(worker_id="w").background() as worker:
        eventually(lambda: place.lines("waiting"), timeout=50)
        text = eventually(lambda: "in wait" in (found := worker.stacks()) and found)
        assert f"job {job.id} (wait), claim 1, for " in text
        place.app.store.tell("w", {"stacks_asked": "7"})
        info = eventually(lambda: (told := place.app.store.info("w")).get("stacks_answered") == "7" and told)
        assert "in wait" in info["stacks"]
        place.go()
