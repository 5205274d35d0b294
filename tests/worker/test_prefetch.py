"""How many jobs are claimed ahead, and that nobody waits for them: decisions first, then real workers."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rowlock import ConfigurationError, JobContext, Retry, Rowlock, State
from rowlock.job import Ending
from rowlock.task import Task
from rowlock.worker.prefetch import HORIZON, MAX_PREFETCHED, Prefetch, may_wait
from tests.eventually import eventually
from tests.test_strategies import claim


def task(**options: Any) -> Task[..., Any]:
    return Task(Rowlock(), lambda: None, name="work", **options)


def experienced(slots: int = 2, most: int | None = None, **seconds: float) -> Prefetch:
    made = Prefetch(slots, most)
    for name, took in seconds.items():
        made.learn([claim(1, 0, task=name).ended(Ending.COMPLETED, run_seconds=took)] * 1000)
    return made


def test_what_is_not_known_to_be_quick_is_claimed_for_free_places_only() -> None:
    prefetch = Prefetch(4)
    assert prefetch.wanted(slow=0, quick=0) == 4
    assert prefetch.wanted(slow=3, quick=0) == 1
    assert prefetch.wanted(slow=4, quick=0) == 0
    assert math.isinf(prefetch.cost("work"))


def test_quick_jobs_come_by_the_hundreds_after_a_few_exchanges() -> None:
    prefetch = experienced(slots=2, work=0.00001)
    seen = []
    for _ in range(12):
        wanted = prefetch.wanted(slow=0, quick=0)
        prefetch.adapt([prefetch.cost("work")] * wanted, wanted)
        seen.append(prefetch.ahead)
    assert seen[:3] == [2, 6, 14]
    assert seen[-1] == MAX_PREFETCHED


def test_no_more_is_claimed_ahead_than_a_moment_of_work() -> None:
    prefetch = experienced(slots=2, work=0.005)
    for _ in range(12):
        wanted = prefetch.wanted(slow=0, quick=0)
        prefetch.adapt([0.005] * wanted, wanted)
    assert prefetch.ahead == int(HORIZON * 2 / 0.005)


def test_no_more_is_claimed_ahead_than_a_few_quick_runs_can_vouch_for() -> None:
    prefetch = Prefetch(slots=2)
    for runs in (1, 2, 3):
        prefetch.learn([claim(1, 0, task="work").ended(Ending.COMPLETED, run_seconds=0.0)])
        for _ in range(12):
            wanted = prefetch.wanted(slow=0, quick=0)
            prefetch.adapt([prefetch.cost("work")] * wanted, wanted)
        assert prefetch.ahead == 2 * runs


def test_what_had_not_begun_says_nothing_about_how_long_it_takes() -> None:
    prefetch = experienced(work=0.05)
    prefetch.learn([claim(1, 0, task="work").ended(Ending.RELEASED)] * 100)
    assert not prefetch.is_quick("work")


def test_one_slow_job_ends_claiming_ahead() -> None:
    prefetch = experienced(slots=2, work=0.00001)
    prefetch.adapt([0.00001] * 2, 2)
    assert prefetch.ahead == 2
    prefetch.adapt([0.00001, math.inf], 2)
    assert prefetch.ahead == 0


def test_more_is_asked_for_by_itself_only_if_a_place_is_idle_or_half_of_the_stock_is_gone() -> None:
    """With outcomes to write, claims come along for nothing; without, they cost a commit of their own."""
    prefetch = Prefetch(4)
    assert prefetch.is_short(slow=3, quick=0) and not prefetch.is_short(slow=4, quick=0)
    prefetch.ahead = 16
    assert prefetch.is_short(slow=0, quick=9) and not prefetch.is_short(slow=0, quick=10)
    assert prefetch.is_short(slow=2, quick=8) and not prefetch.is_short(slow=2, quick=9)


def test_claims_beyond_the_places_belong_to_others() -> None:
    prefetch = Prefetch(2)
    assert prefetch.fitting([math.inf, 0.001, math.inf, math.inf, 0.001], slow=0) == 3
    assert prefetch.fitting([math.inf, 0.001], slow=2) == 0
    assert prefetch.fitting([0.001] * 50, slow=1) == 50


def test_what_may_run_only_once_or_was_claimed_before_waits_for_no_place() -> None:
    first = msgspec.structs.replace(claim(1, 0), max_attempts=None)
    assert may_wait(first, task(retry=Retry(max_attempts=2)))
    assert not may_wait(first, task(retry=False))
    assert not may_wait(msgspec.structs.replace(first, max_attempts=1), task())
    assert not may_wait(msgspec.structs.replace(first, claimed_before=True), task())


def test_a_task_that_became_slow_is_forgotten_as_quick() -> None:
    prefetch = experienced(work=0.00001)
    prefetch.slower_than_thought([("work", 5.0)])
    assert prefetch.ahead == 0
    assert math.isinf(prefetch.cost("work"))


@pytest.mark.parametrize("most", [0, 3])
def test_the_knob_bounds_what_is_claimed_ahead(app: Rowlock, most: int) -> None:
    held: list[int] = []

    @app.task
    def work() -> None:
        held.append(app.stats()["running"])

    work.enqueue_many([{}] * 60)
    assert app.worker(concurrency=1, prefetch=most).run(until_empty=True).completed == 60
    assert max(held) <= 1 + most


def test_a_knob_that_cannot_be_is_refused(app: Rowlock) -> None:
    with pytest.raises(ConfigurationError, match="prefetch=-1: must be a whole number >= 0"):
        app.worker(prefetch=-1)


def test_jobs_that_wait_behind_a_slow_one_are_left_to_idle_workers(app: Rowlock) -> None:
    """The first worker takes many for quick; then one of them hangs, and the second worker gets the rest."""
    hang, seen = threading.Event(), threading.Event()

    @app.task
    def work(ctx: JobContext, n: int) -> str | None:
        if n == 200:
            seen.set()
            hang.wait(100)
        return ctx.job.claimed_by

    work.enqueue_many([(n,) for n in range(600)])
    with app.worker(concurrency=1, worker_id="first", strategy="FIFO").background():
        assert seen.wait(100)
        with app.worker(concurrency=1, worker_id="second", strategy="FIFO").background():
            eventually(lambda: app.stats()["completed"] == 599, timeout=50)
        hang.set()
        eventually(lambda: app.stats()["completed"] == 600)
    assert app.job(600).failures == 0


def test_no_short_job_waits_behind_a_prefetched_long_one_while_a_place_is_free(tmp_path: Path) -> None:
    """90 % short, 10 % long ones that hold their place until all short ones are done; two workers."""
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")
    release = threading.Event()

    @app.task
    def short() -> None: ...

    @app.task
    def long() -> None:
        release.wait(30)

    for _ in range(6):  # as many long ones as leave each worker a place
        short.enqueue_many([{}] * 9)
        long.enqueue()
    with (
        app.worker(concurrency=4, strategy="FIFO", worker_id="a").background(),
        app.worker(concurrency=4, strategy="FIFO", worker_id="b").background(),
    ):
        eventually(lambda: app.stats()["completed"] == 54, timeout=50)
        assert {job.task for job in app.jobs(state="completed", limit=100)} == {"short"}
        release.set()
        eventually(lambda: app.stats()["completed"] == 60)
    assert all(job.failures == 0 for job in app.jobs(limit=100))
    app.close()


def test_one_quick_run_does_not_make_a_slow_transactional_task_quick(app: Rowlock) -> None:
    """Its other runs are written by their own transactions: they teach how long it takes all the same."""

    @app.task
    def work(ctx: JobContext, n: int) -> None:
        if n:
            threading.Event().wait(0.05)
            with ctx.transaction():
                pass

    work.enqueue_many([(n,) for n in range(40)])
    tally = app.worker(concurrency=4, strategy="FIFO").run(until_empty=True)
    assert tally.completed == 40 and tally.released <= 5


def test_a_change_of_strategy_gives_back_what_was_claimed_ahead(app: Rowlock) -> None:
    order: list[int] = []
    worker = app.worker(concurrency=1, strategy="FIFO")

    @app.task
    def note(n: int) -> None:
        order.append(n)
        if n == 100:
            worker.strategy = "LIFO"

    note.enqueue_many([(n,) for n in range(300)])
    worker.run(until_empty=True)
    assert order == [*range(101), *range(299, 100, -1)]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_stop_gives_back_what_has_not_begun(app: Rowlock, kind: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def begin(n: int) -> bool:
        if n == 150:
            entered.set()
        return n == 150

    if kind == "thread":

        @app.task
        def work(n: int) -> None:
            if begin(n):
                leave.wait(100)

    else:

        @app.task
        async def work(n: int) -> None:
            if begin(n):
                await asyncio.to_thread(leave.wait, 100)

    work.enqueue_many([(n,) for n in range(300)])
    with app.worker(concurrency=1, strategy="FIFO").background() as worker:
        assert entered.wait(100)
        worker.stop()
        eventually(lambda: app.stats()["running"] == 1)
        leave.set()
    stats = app.stats()
    assert (stats["completed"], stats["queued"]) == (151, 149)
    assert all(job.failures == 0 for job in app.jobs(state=State.QUEUED, limit=200))


@pytest.mark.parametrize(("in_threads", "ahead"), [(True, 300), (False, 500)])
def test_of_tiny_jobs_no_more_are_claimed_ahead_than_one_thread_does_in_time(
    in_threads: bool, ahead: int
) -> None:
    """Several threads would not do more of them: 300 take 30 ms."""
    prefetch = Prefetch(4, in_threads=in_threads)
    for _ in range(12):
        count = prefetch.wanted(0, 0)
        prefetch.adapt([0.0001] * count, count)
    assert prefetch.ahead == ahead
