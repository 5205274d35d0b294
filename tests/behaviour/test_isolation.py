"""What a dead worker had runs without company next time, also while others keep coming."""

from __future__ import annotations

import threading

import pytest

from rowlock import JobContext, Rowlock, State
from tests.consumers.lab import Lab
from tests.eventually import eventually
from tests.stores.steps import take, worker


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)
def test_what_a_dead_worker_had_claimed_ahead_runs_alone_while_others_keep_coming(
    lab: Lab, app: Rowlock
) -> None:
    """The worker makes way for them while it has quick jobs; one that got in unasked would have company."""
    enough = threading.Event()
    running: set[int] = set()
    beside: dict[int, int] = {}

    @app.task
    def work(ctx: JobContext, again: bool = False) -> None:
        running.add(ctx.id)
        if again and not enough.wait(0.001):
            work.enqueue(again=True)
        beside[ctx.id] = len(running)
        running.discard(ctx.id)

    left = list(work.enqueue_many([{}] * 10))
    assert len(take(app.store, worker(app.store, "dead", lease=600.0), 10)) == 10
    work.enqueue_many([{"again": True}] * 20)
    with app.worker(concurrency=4).background():
        eventually(lambda: len(beside) > 20)  # there are others all the time
        lab.execute("UPDATE rowlock_workers SET beat_at = 0, beat_mono = -1e9 WHERE id = 'dead'")
        eventually(lambda: {app.job(id).state for id in left} == {State.COMPLETED}, timeout=30)
        enough.set()
    assert {beside[id] for id in left} == {1}
    assert {app.job(id).failures for id in left} == {0}
