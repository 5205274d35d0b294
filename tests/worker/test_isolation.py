"""Jobs that a dead worker had: each runs alone next time, and does not wait for an idle worker to do so."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace

import pytest

from rowlock import Rowlock, State
from rowlock.execution.context import JobContext
from rowlock.job import ClaimRequest, Ending
from rowlock.liveness import Lease, Liveness
from rowlock.pools.base import Run
from rowlock.worker import isolation
from rowlock.worker.demand import Demand
from rowlock.worker.profile import Profile
from rowlock.worker.runs import Runs
from rowlock.worker.unwritten_outcomes import Unwritten
from tests.eventually import eventually
from tests.stores.steps import add, take, worker
from tests.test_strategies import claim


def run(isolate: int = 0) -> Run:
    held = claim(1, 0, isolate=isolate, task="work")
    return Run(held, None, JobContext(held, None), pool_name="thread")


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no time passes between the start of a run and what is asked about it."""
    moment = time.monotonic()
    monkeypatch.setattr(isolation, "time", SimpleNamespace(monotonic=lambda: moment))


class View:
    """What a worker may claim while it has these runs."""

    def __init__(self, app: Rowlock, seconds: float = 0.0) -> None:
        self.runs = Runs(Unwritten(), queue.SimpleQueue(), 2.0)
        liveness = Liveness(Lease(app.settings.lease))
        liveness.registered(time.monotonic())
        self.demand = Demand(app.workload(), Profile(None, (), "FIFO", 1.0), liveness, self.runs)
        self.demand.reset({"thread": 9}, None)
        self.demand.learn([claim(1, 0, task="work").ended(Ending.COMPLETED, run_seconds=seconds)])

    def request(self, *runs: Run) -> ClaimRequest | None:
        self.runs.in_flight = dict(enumerate(runs))  # type: ignore[arg-type]
        return self.demand.request()


def after_a_rescue(app: Rowlock, seconds: float = 0.0) -> View:
    """The view of a worker whose tasks take so long, and that has just brought back a dead one's job."""
    add(app.store)
    take(app.store, worker(app.store, "dead", lease=0.0))
    late = worker(app.store, "late")
    assert eventually(lambda: app.store.rescue(late, careful_age=60.0).workers) == ["dead"]
    return View(app, seconds)


@pytest.mark.usefixtures("_at_once")
def test_a_worker_with_quick_jobs_claims_nothing_until_they_are_done(app: Rowlock) -> None:
    view = after_a_rescue(app)
    assert view.request(run(), run()) is None
    assert view.request() == ClaimRequest(count=9, strategy="FIFO", may_isolate=True)


def test_it_looks_at_once_on_a_machine_that_was_just_started(
    app: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = after_a_rescue(app)
    monkeypatch.setattr(isolation, "time", SimpleNamespace(monotonic=lambda: 0.01))
    assert view.request(run()) is None


def test_a_worker_with_a_slow_job_goes_on(app: Rowlock) -> None:
    assert after_a_rescue(app, seconds=60.0).request(run()) is not None


@pytest.mark.usefixtures("_at_once")
def test_it_makes_room_only_for_what_comes_next(app: Rowlock) -> None:
    view = after_a_rescue(app)
    asked = view.request()
    assert asked is not None
    view.demand.claimed(asked, [claim(1, 0, isolate=1)])
    view.demand.look_for_isolated()
    assert view.request(run()) is None
    view.demand.claimed(asked, [claim(1, 0)])  # others come first, or the queue is paused
    assert view.request(run()) is not None


def test_runs_that_are_lost_hold_up_nothing(app: Rowlock) -> None:
    view = after_a_rescue(app)
    lost = run()
    lost.context.lost = True
    asked = view.request(lost)
    assert asked is not None and asked.may_isolate


def test_while_one_runs_nothing_else_is_claimed(app: Rowlock) -> None:
    view = View(app)
    assert view.request(run(isolate=1)) is None
    assert view.request(run()) is not None


def test_a_quick_task_that_hangs_for_once_does_not_keep_others_from_being_claimed(app: Rowlock) -> None:
    """Only the job that has to run alone waits for it."""
    hangs, on = threading.Event(), threading.Event()

    @app.task
    def work(hang: bool = False) -> None:
        if hang:
            hangs.set()
            on.wait(100)

    with app.worker(concurrency=2, queues=("default", "elsewhere")).background():
        first = list(work.enqueue_many([{}] * 50))
        eventually(lambda: app.job(first[-1]).state is State.COMPLETED)
        work.enqueue(hang=True)
        assert hangs.wait(30)
        add(app.store, queue="elsewhere")
        take(app.store, worker(app.store, "dead", lease=0.0), queues=("elsewhere",))
        eventually(lambda: app.store.isolated_waiting(["elsewhere"]))
        more = list(work.enqueue_many([{}] * 20))
        eventually(lambda: {app.job(id).state for id in more} == {State.COMPLETED})
        on.set()
