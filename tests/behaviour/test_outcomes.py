"""What a run came to, and what it said, is written: once, in order, and not later than it has to be."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from rowlock import JobContext, Rowlock
from rowlock.errors import StoreUnreachable
from tests.behaviour.exchanges import Exchanges
from tests.consumers.lab import Lab
from tests.eventually import eventually
from tests.stores.steps import worker as register


def test_a_worker_whose_last_outcomes_cannot_be_written_does_not_retire(
    app: Rowlock, exchanges: Exchanges
) -> None:
    """To retire is to give back what it holds: a job that is done would run again at once."""
    entered, leave, refused = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def pay() -> str:
        entered.set()
        leave.wait(30)
        return "paid"

    def refuse() -> None:
        refused.set()
        raise StoreUnreachable("the server is away")

    job = pay.enqueue()
    with app.worker(concurrency=1, worker_id="w").background() as worker:
        assert entered.wait(30)
        exchanges.before = refuse
        leave.set()
        assert refused.wait(30)
        worker.stop(now=True)
    exchanges.before = lambda: None
    found = app.job(job.id)
    assert (found.state, found.claim, found.claimed_by) == ("running", 1, "w")
    assert [record.ended for record in app.store.workers()] == [None]
    late = time.time() + 61.0  # after its lease
    rescuer = register(app.store, "rescuer", now=late)
    assert app.store.rescue(rescuer, careful_age=20.0, now=late).workers == ["w"]


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)
def test_log_lines_that_the_heartbeat_holds_are_written_before_the_outcome(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that comes after the end of its claim would be refused, and lost."""
    app = lab.app(lease=3.0)  # so that the heartbeat looks often at what was said
    said, held, leave = threading.Event(), threading.Event(), threading.Event()
    report = app.store.report

    def slowly(*given: Any, **named: Any) -> None:
        if said.is_set() and all(given) and not held.is_set():
            held.set()
            leave.wait(30)
            for _ in range(20):  # the job has the time to end, and must not
                if app.stats()["completed"] or threading.Event().wait(0.01):
                    break
        report(*given, **named)

    @app.task
    def work(ctx: JobContext) -> None:
        ctx.log("first")
        said.set()
        assert held.wait(30)
        ctx.log("second")
        leave.set()

    monkeypatch.setattr(app.store, "report", slowly)
    job = work.enqueue()
    with app.worker(concurrency=1).background():
        app.result(job.id, timeout=30)
    assert [line.message for line in app.logs(job.id)] == ["first", "second"]


def test_a_run_that_ends_while_another_thread_makes_the_exchange_is_written_soon(
    lab: Lab, app: Rowlock, exchanges: Exchanges
) -> None:
    """Not with the next poll: whoever makes the exchange has already taken along what is to be written."""
    running, first_ends, second_ends = threading.Barrier(2), threading.Event(), threading.Event()

    @app.task
    def work(first: bool) -> None:
        running.wait(30)
        if first:
            first_ends.set()
        else:
            second_ends.wait(30)

    def meanwhile() -> None:
        if first_ends.is_set() and not second_ends.is_set():
            second_ends.set()
            threading.Event().wait(0.1)  # the runner tries to make an exchange, and cannot

    with app.worker(concurrency=2, prefetch=0, poll_interval=600.0, worker_id="w").background():
        exchanges.rest()
        eventually(lambda: lab.sleeps("w"))  # from now on, nothing else wakes it
        exchanges.before = meanwhile
        jobs = work.enqueue_many([{"first": True}, {"first": False}])
        for job in jobs:
            app.result(job, timeout=30)
    assert second_ends.is_set() and [app.job(job).claim for job in jobs] == [1, 1]


def test_claims_that_come_in_the_order_of_a_strategy_that_was_changed_meanwhile_go_back(
    app: Rowlock, exchanges: Exchanges
) -> None:
    worker, order = app.worker(concurrency=1, prefetch=0, strategy="FIFO"), list[int]()

    @app.task
    def note(n: int) -> None:
        order.append(n)

    def change() -> None:
        if worker.strategy == "FIFO" and app.stats()["running"]:
            thread = threading.Thread(target=setattr, args=(worker, "strategy", "LIFO"))
            thread.start()
            thread.join(30)

    exchanges.after = change
    ids = note.enqueue_many([(n,) for n in range(5)])
    assert worker.run(until_empty=True).completed == 5
    assert order == [4, 3, 2, 1, 0]
    assert [(app.job(id).claim, app.job(id).failures) for id in ids] == [(2, 0), *[(1, 0)] * 4]


@pytest.mark.parametrize("slots", [1, 4])
def test_outcomes_of_quick_jobs_are_written_although_others_of_them_hang(app: Rowlock, slots: int) -> None:
    """While many are left, outcomes wait for each other; but not for runs that do not end."""
    leave = threading.Event()

    @app.task
    def work(hangs: bool = False) -> None:
        if hangs:
            leave.wait(60)

    work.enqueue_many([{}] * 1_000)
    app.worker(concurrency=slots).run(until_empty=True)
    work.enqueue_many([*[{}] * 300, *[{"hangs": True}] * slots, *[{}] * 300])
    with app.worker(concurrency=slots).background():
        eventually(lambda: app.stats()["completed"] >= 1_300)
        assert app.stats()["running"] >= slots
        leave.set()
        eventually(lambda: app.stats()["completed"] == 1_600 + slots)
