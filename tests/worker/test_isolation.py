"""Jobs that a dead worker had: each runs alone next time, and does not wait for an idle worker to do so."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rowlock import Rowlock, State
from rowlock.execution.context import JobContext
from rowlock.pools.base import Run
from rowlock.worker import isolation
from rowlock.worker.isolation import Isolation
from tests.eventually import eventually
from tests.stores.steps import add, take, worker
from tests.test_strategies import claim


def run(isolate: int = 0) -> Run:
    held = claim(1, 0, isolate=isolate)
    return Run(held, None, JobContext(held, None))


def after_a_rescue(app: Rowlock, soon_over: bool, looks: bool = True) -> Isolation:
    """The view of a worker that has just brought back a dead one's job."""
    add(app.store)
    take(app.store, worker(app.store, "dead", lease=0.0))
    late = worker(app.store, "late")
    assert eventually(lambda: app.store.rescue(late, careful_age=60.0).workers) == ["dead"]
    made = Isolation(app.store, (), lambda: soon_over)
    if looks:
        made.look()
    return made


def test_a_worker_with_quick_jobs_claims_nothing_until_they_are_done(app: Rowlock) -> None:
    view = after_a_rescue(app, soon_over=True)
    assert view.blocks([run(), run()])
    assert not view.may_start([run()])
    assert view.may_start([])


def test_it_looks_at_once_on_a_machine_that_was_just_started(
    app: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = after_a_rescue(app, soon_over=True, looks=False)
    monkeypatch.setattr(isolation, "time", SimpleNamespace(monotonic=lambda: 0.01))
    assert not view.may_start([run()])
    assert view.blocks([run()])


def test_a_worker_with_a_slow_job_goes_on(app: Rowlock) -> None:
    assert not after_a_rescue(app, soon_over=False).blocks([run()])


def test_it_makes_way_only_for_what_is_next_in_line(app: Rowlock) -> None:
    view = after_a_rescue(app, soon_over=True)
    view.took([claim(1, 0, isolate=1)])
    assert view.blocks([run()])
    view.took([claim(1, 0)])  # others come first, or the queue is paused
    assert not view.blocks([run()])


def test_runs_that_are_lost_hold_up_nothing(app: Rowlock) -> None:
    view = after_a_rescue(app, soon_over=True)
    lost = run()
    lost.context.lost = True
    assert view.may_start([lost])
    assert not view.blocks([lost])


def test_while_one_runs_nothing_else_is_claimed(app: Rowlock) -> None:
    view = Isolation(app.store, (), lambda: False)
    assert view.blocks([run(isolate=1)])
    assert not view.blocks([run()])


def test_a_quick_task_that_hangs_for_once_does_not_keep_others_from_being_claimed(app: Rowlock) -> None:
    """Only the job that has to run alone waits for it."""
    hangs, on = threading.Event(), threading.Event()

    @app.task
    def work(hang: bool = False) -> None:
        if hang:
            hangs.set()
            on.wait(30)

    with app.worker(concurrency=2, queues=("default", "elsewhere")).background():
        first = list(work.enqueue_many([{}] * 50))
        eventually(lambda: app.job(first[-1]).state is State.COMPLETED)
        work.enqueue(hang=True)
        assert hangs.wait(10)
        add(app.store, queue="elsewhere")
        take(app.store, worker(app.store, "dead", lease=0.0), queues=("elsewhere",))
        eventually(lambda: app.store.isolated_waiting(["elsewhere"]))
        more = list(work.enqueue_many([{}] * 20))
        eventually(lambda: {app.job(id).state for id in more} == {State.COMPLETED})
        on.set()
