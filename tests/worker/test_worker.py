"""The worker: runs, retries, time limits, cancel, progress, hooks, stop, and trouble with the store."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rowlock import ConfigurationError, Fail, JobContext, JobFailed, Outcome, Retry, RetryLater, Rowlock
from rowlock.errors import CancelRequested, ClaimLost, RunTimedOut, StoreBusy
from rowlock.execution.context import JobLogFilter
from rowlock.pools.thread import ThreadPool
from rowlock.worker.next_cycle import NextCycle
from rowlock.worker.worker import Worker
from tests.eventually import eventually
from tests.forks import end_child

QUICK = Retry(max_attempts=3, base=0.01, cap=0.02)


def drain(app: Rowlock, **options: Any) -> Any:
    """Run until all jobs are final, retries included."""

    def done() -> bool:
        stats = app.stats()
        return stats["queued"] + stats["running"] + stats["scheduled"] == 0

    with app.worker(**options).background() as worker:
        eventually(done)
    return worker


# -- outcomes ----------------------------------------------------------------------------------------


def test_jobs_run_and_their_results_are_kept(app: Rowlock) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    ids = add.enqueue_many([(number, 1) for number in range(50)])
    tally = app.worker(concurrency=4).run(until_empty=True)
    assert tally.completed == 50
    assert [app.result(id) for id in ids] == [number + 1 for number in range(50)]
    assert app.stats()["completed"] == 50


def test_a_failing_task_is_tried_again_and_then_fails(app: Rowlock) -> None:
    attempts: list[int] = []

    @app.task(retry=QUICK)
    def bad(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("boom")

    job = bad.enqueue()
    drain(app)
    assert attempts == [1, 2, 3]
    found = app.job(job.id)
    assert (found.state, found.failures, found.claim, found.error_kind) == ("failed", 3, 3, "exception")
    assert str(found.error).endswith("ValueError: boom") and "in bad" in str(found.error)
    assert [entry.event for entry in app.history(job.id)] == ["retry", "retry", "failed"]
    with pytest.raises(JobFailed, match=f"job {job.id} \\(bad\\) failed: ValueError: boom"):
        app.result(job.id)


def test_a_task_that_recovers_completes(app: Rowlock) -> None:
    @app.task(retry=QUICK)
    def flaky(ctx: JobContext) -> int:
        if ctx.attempt < 3:
            raise ConnectionError
        return ctx.attempt

    job = flaky.enqueue()
    drain(app)
    assert app.result(job.id) == 3
    assert app.job(job.id).error is None


def test_errors_named_in_never_and_fail_end_it_at_once(app: Rowlock) -> None:
    @app.task(retry=Retry(max_attempts=9, never=(KeyError,)))
    def never() -> None:
        raise KeyError("x")

    @app.task
    def give_up() -> None:
        raise Fail("the customer is gone")

    @app.task(retry=False)
    def once() -> None:
        raise ValueError

    jobs = [task.enqueue() for task in (never, give_up, once)]
    app.worker().run(until_empty=True)
    assert [str(app.job(job.id).state) for job in jobs] == ["failed"] * 3
    assert app.job(jobs[1].id).error == "the customer is gone"
    assert app.job(jobs[1].id).error_kind == "fail"


def test_retry_later_comes_back_without_charge(app: Rowlock) -> None:
    calls: list[int] = []

    @app.task(retry=Retry(max_attempts=2))
    def wait() -> None:
        calls.append(1)
        if len(calls) < 6:
            raise RetryLater(0)

    job = wait.enqueue()
    drain(app)
    assert len(calls) == 6
    assert (app.job(job.id).state, app.job(job.id).failures) == ("completed", 0)


def test_a_task_that_raises_system_exit_does_not_end_the_worker(app: Rowlock) -> None:
    @app.task(retry=False)
    def leave() -> None:
        raise SystemExit(3)

    @app.task
    def fine() -> int:
        return 1

    job, after = leave.enqueue(), fine.enqueue()
    app.worker(concurrency=1).run(until_empty=True)
    assert app.job(job.id).state == "failed"
    assert app.result(after.id) == 1


def test_an_error_that_no_database_would_take_is_kept_readable(app: Rowlock) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @app.task(retry=False)
    def nul() -> None:
        raise ValueError("a\x00b \ud800 " + "x" * 100_000)

    @app.task(retry=False)
    def odd() -> None:
        raise Odd

    one, two = nul.enqueue(), odd.enqueue()
    app.worker().run(until_empty=True)
    error = str(app.job(one.id).error)
    assert (
        "a\\x00b" in error and "\\ud800" in error and "characters left out" in error and len(error) < 40_000
    )
    assert app.job(two.id).state == "failed"


def test_an_unknown_task_goes_back_to_scheduled_and_is_never_discarded(app: Rowlock) -> None:
    from rowlock.insights import doctor

    app.task(name="known")(lambda: None)
    job = Rowlock(app.store.url).enqueue("mystery")
    tally = app.worker().run(until_empty=True)
    assert tally.released == 1
    found = app.job(job.id)
    assert (found.state, found.failures, found.error_kind) == ("scheduled", 0, "unknown_task")
    assert "knows no task 'mystery'" in str(found.error)
    assert (found.run_at - found.created_at).total_seconds() >= 5
    (finding,) = [one for one in doctor(app.store) if one.check == "unknown tasks"]
    assert finding.level == "warning" and "mystery (1)" in finding.message


# -- who makes the exchange ----------------------------------------------------------------------------


def test_one_job_at_a_time_needs_no_other_thread(app: Rowlock, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, makers = app.store.exchange, list[str]()

    def noted(*given: Any, **named: Any) -> Any:
        makers.append(threading.current_thread().name)
        return exchange(*given, **named)

    monkeypatch.setattr(app.store, "exchange", noted)
    app.task(name="nothing")(lambda: None).enqueue_many([{}] * 50)
    assert app.worker(concurrency=1, prefetch=0).run(until_empty=True).completed == 50
    assert sum(name.startswith("rowlock-run") for name in makers) > 25


def test_a_worker_does_not_end_while_a_thread_of_its_pool_claims(
    app: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.task(name="nothing")(lambda: None).enqueue_many([{}] * 500)
    worker, exchange = app.worker(concurrency=1, prefetch=0), app.store.exchange
    claimed, ended = threading.Event(), threading.Event()
    early: list[bool] = []

    def stopped_meanwhile(*given: Any, **named: Any) -> Any:
        got = exchange(*given, **named)
        if threading.current_thread().name.startswith("rowlock-run") and not claimed.is_set():
            claimed.set()
            worker.stop()
            early.append(ended.wait(0.2))
        return got

    monkeypatch.setattr(app.store, "exchange", stopped_meanwhile)
    worker.run()
    ended.set()
    assert early == [False]
    assert app.stats()["running"] == 0
    assert [one.ended for one in app.store.workers()] == ["stopped"]


def test_an_error_in_a_thread_of_the_pool_ends_the_worker(
    app: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.task(name="nothing")(lambda: None).enqueue_many([{}] * 100)
    exchange = app.store.exchange

    def broken(*given: Any, **named: Any) -> Any:
        if threading.current_thread().name.startswith("rowlock-run"):
            raise ZeroDivisionError("a mistake of ours")
        return exchange(*given, **named)

    monkeypatch.setattr(app.store, "exchange", broken)
    with pytest.raises(ZeroDivisionError, match="ours"):
        app.worker(concurrency=1, prefetch=0).run(until_empty=True)
    assert app.stats()["running"] == 0


# -- progress, log lines, cancel, timeout ------------------------------------------------------------


def test_progress_and_log_lines_are_seen_while_it_runs_and_kept_after(app: Rowlock) -> None:
    leave = threading.Event()

    @app.task
    def work(ctx: JobContext) -> None:
        ctx.progress(1, 4, "first")
        ctx.log("started", image=7)
        leave.wait(30)
        ctx.progress(4, 4, "last")
        ctx.log("ended")

    job = work.enqueue()
    with app.worker().background():
        halfway = eventually(lambda: app.job(job.id).progress)
        assert (halfway.done, halfway.total, halfway.note) == (1, 4, "first")
        leave.set()
        app.result(job.id, timeout=30)
    last = app.job(job.id).progress
    assert last is not None and (last.done, last.note) == (4, "last")
    assert list(last) == [4, 4, "last"]
    assert [(line.message, line.fields) for line in app.logs(job.id)] == [
        ("started", {"image": 7}),
        ("ended", {}),
    ]


@pytest.mark.parametrize("done", [float("nan"), "half", None])
def test_progress_takes_numbers_only(done: Any) -> None:
    from rowlock.execution.context import local_context

    if done is None:
        local_context("t").progress(1, None)
        return
    with pytest.raises(TypeError, match="must be a finite number"):
        local_context("t").progress(done)


def test_a_running_job_is_cancelled_where_it_checks(app: Rowlock) -> None:
    entered = threading.Event()

    @app.task
    def loop(ctx: JobContext) -> None:
        entered.set()
        while True:
            ctx.check_cancelled()
            try:
                time.sleep(0.005)  # noqa: TID251 - this is the work
            except Exception:  # pragma: no cover
                raise AssertionError from None

    job = loop.enqueue()
    with app.worker().background():
        assert entered.wait(30)
        assert app.cancel(job.id).cancelling
        eventually(lambda: app.job(job.id).state.final)
    assert app.job(job.id).state == "cancelled"
    assert [entry.event for entry in app.history(job.id)] == ["cancel asked for", "cancelled"]
    with pytest.raises(Exception, match="was cancelled"):
        app.result(job.id)


def test_except_exception_does_not_swallow_what_stops_a_run() -> None:
    for stop in (CancelRequested, RunTimedOut, ClaimLost):
        assert not issubclass(stop, Exception)


def test_a_run_over_its_timeout_is_told_at_its_next_call(app: Rowlock) -> None:
    @app.task(timeout=0.05, retry=False)
    def slow(ctx: JobContext) -> None:
        while True:
            ctx.progress(1)

    job = slow.enqueue()
    Worker(app, app.workload(), timeout_grace=100.0).run(until_empty=True)
    found = app.job(job.id)
    assert (found.state, found.error_kind) == ("failed", "timeout")
    assert found.error == "it ran longer than its timeout of 0.05 s"  # told, not given up on


def test_a_run_that_ignores_its_timeout_is_given_up_and_its_place_is_free(app: Rowlock) -> None:
    leave = threading.Event()

    @app.task(timeout=0.05, retry=False)
    def stuck() -> str:
        leave.wait(30)
        return "late"

    @app.task
    def fine() -> int:
        return 1

    job, after = stuck.enqueue(), fine.enqueue()
    with Worker(app, app.workload(), concurrency=1, timeout_grace=0.05).background():
        assert app.result(after.id, timeout=30) == 1
        found = app.job(job.id)
        assert (found.state, found.error_kind, found.failures) == ("failed", "timeout", 1)
        leave.set()
    assert app.job(job.id).result is None


def test_a_timeout_uses_up_an_attempt_and_is_tried_again(app: Rowlock) -> None:
    @app.task(timeout=0.05, retry=Retry(max_attempts=2, base=0.0))
    def slow(ctx: JobContext) -> int:
        while ctx.attempt == 1:
            ctx.check_cancelled()
        return ctx.attempt

    job = slow.enqueue()
    drain(app)
    assert app.result(job.id) == 2
    assert [entry.error_kind for entry in app.history(job.id)] == ["timeout", None]


def test_a_job_past_its_deadline_to_start_is_not_run(app: Rowlock) -> None:
    ran: list[int] = []

    @app.task(expires=0)
    def late() -> None:
        ran.append(1)

    job = late.enqueue()
    app.worker().run(until_empty=True)
    assert (app.job(job.id).state, app.job(job.id).error_kind, ran) == ("failed", "expired", [])


# -- hooks and logs ----------------------------------------------------------------------------------


def test_an_outcome_that_a_hook_keeps_does_not_change(app: Rowlock) -> None:
    kept: dict[Outcome, int] = {}

    @app.around
    def keep(ctx: JobContext) -> Iterator[None]:
        outcome: Outcome = yield  # type: ignore[misc,assignment]
        kept[outcome] = ctx.id

    app.task(name="good")(lambda: 1)
    app.enqueue("good")
    app.worker(concurrency=1).run(until_empty=True)
    (outcome,) = kept
    assert outcome in kept  # by the hash that it had when it was kept


def test_around_is_told_the_outcome_of_every_run(app: Rowlock) -> None:
    seen: list[Any] = []

    @app.around
    def outer(ctx: JobContext) -> Iterator[None]:
        seen.append(("enter", ctx.task))
        outcome: Outcome = yield  # type: ignore[misc,assignment]
        seen.append(("leave", str(outcome.ending), outcome.error_kind))

    @app.around
    def inner(ctx: JobContext) -> Iterator[None]:
        seen.append("inner")
        yield
        seen.append("inner out")

    app.task(name="good")(lambda: 1)

    @app.task(retry=False)
    def bad() -> None:
        raise ValueError

    app.enqueue("good")
    bad.enqueue()
    app.worker(concurrency=1, strategy="FIFO").run(until_empty=True)
    assert seen == [
        ("enter", "good"),
        "inner",
        "inner out",
        ("leave", "completed", None),
        ("enter", "bad"),
        "inner",
        "inner out",
        ("leave", "failed", "exception"),
    ]


def test_a_hook_that_raises_before_fails_the_run_and_after_is_only_logged(
    app: Rowlock, caplog: pytest.LogCaptureFixture
) -> None:
    mode = ["before"]

    @app.around
    def hook(ctx: JobContext) -> Iterator[None]:
        if mode[0] == "before":
            raise ValueError("no session")
        yield
        raise ValueError("cannot report")

    app.task(name="good", retry=False)(lambda: 1)
    first = app.enqueue("good")
    app.worker().run(until_empty=True)
    assert app.job(first.id).state == "failed" and "no session" in str(app.job(first.id).error)
    mode[0] = "after"
    second = app.enqueue("good")
    app.worker().run(until_empty=True)
    assert app.result(second.id) == 1
    assert "a hook raised after the run" in caplog.text
    with pytest.raises(ConfigurationError, match="generator function"):
        app.around(lambda ctx: None)  # type: ignore[arg-type,return-value]


def test_every_log_line_of_a_run_carries_its_job(app: Rowlock) -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    handler.addFilter(JobLogFilter())
    logger = logging.getLogger("shop.orders")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    @app.task
    def work() -> None:
        logger.info("packing")

    job = work.enqueue()
    app.worker().run(until_empty=True)
    logger.info("outside")
    logger.removeHandler(handler)
    inside, outside = records
    assert (inside.job, inside.task, inside.claim) == (job.id, "work", 1)  # type: ignore[attr-defined]
    assert (outside.job, outside.task) == (None, None)  # type: ignore[attr-defined]


# -- concurrency, strategies, queues -----------------------------------------------------------------


def test_as_many_jobs_run_at_once_as_there_are_threads(app: Rowlock) -> None:
    barrier = threading.Barrier(3)

    @app.task
    def meet() -> int:
        return barrier.wait(30)

    ids = meet.enqueue_many([{}] * 6)
    app.worker(concurrency=3).run(until_empty=True)
    assert sorted(app.result(id) for id in ids) == [0, 0, 1, 1, 2, 2]


def test_the_strategy_of_a_running_worker_can_be_changed(app: Rowlock) -> None:
    order: list[int] = []
    worker = app.worker(concurrency=1, strategy="FIFO")

    @app.task
    def note(n: int) -> None:
        order.append(n)
        if n == 1:
            worker.strategy = "LIFO"

    note.enqueue_many([(n,) for n in range(5)])
    worker.run(until_empty=True)
    assert order == [0, 1, 4, 3, 2]
    with pytest.raises(ValueError, match="unknown strategy 'first'; valid ones are"):
        worker.strategy = "first"


def test_a_queues_strategy_and_pause_reach_a_running_worker(app: Rowlock) -> None:
    order: list[int] = []

    @app.task
    def note(n: int) -> None:
        order.append(n)
        if n == 0:
            app.set_strategy("default", "LIFO")

    note.enqueue_many([(n,) for n in range(4)])
    app.worker(concurrency=1, strategy="FIFO").run(until_empty=True)
    assert order == [0, 3, 2, 1]
    app.pause("default")
    job = note.enqueue(9)
    app.worker().run(until_empty=True)
    assert app.job(job.id).state == "queued"
    app.resume("default")
    app.worker().run(until_empty=True)
    assert app.job(job.id).state == "completed"


def test_a_worker_serves_only_its_queues(app: Rowlock) -> None:
    work = app.task(name="work")(lambda: 1)
    mine, other = work.configure(queue="gpu").enqueue(), work.enqueue()
    app.worker(queues=["gpu"]).run(until_empty=True)
    assert (app.job(mine.id).state, app.job(other.id).state) == ("completed", "queued")


def test_until_empty_leaves_future_jobs(app: Rowlock) -> None:
    work = app.task(name="work")(lambda: 1)
    later = work.configure(delay=3600).enqueue()
    now = work.enqueue()
    app.worker().run(until_empty=True)
    assert (app.job(later.id).state, app.job(now.id).state) == ("scheduled", "completed")


def test_jobs_enqueued_by_jobs_are_done_too(app: Rowlock) -> None:
    @app.task
    def countdown(n: int) -> None:
        if n:
            countdown.enqueue(n - 1)

    countdown.enqueue(5)
    assert app.worker().run(until_empty=True).completed == 6


def test_included_modules_are_imported_by_the_worker_and_for_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_queue.py").write_text(
        f"from rowlock import Rowlock\n"
        f"app = Rowlock('sqlite:///{tmp_path}/jobs.db', include=['shop_tasks'])\n"
    )
    (tmp_path / "shop_tasks.py").write_text(
        "from shop_queue import app\n@app.task\ndef pack(order: int) -> int:\n    return order * 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from shop_queue import app  # type: ignore[import-not-found]

    assert dict(app.tasks) == {}
    job = app.enqueue("pack", {"order": 4})
    app.worker().run(until_empty=True)
    assert app.result(job.id) == 8
    app.close()


def test_minutes_count_what_was_done(app: Rowlock) -> None:
    @app.task(retry=False)
    def work(ok: bool) -> None:
        if not ok:
            raise ValueError

    work.enqueue_many([(True,), (True,), (False,)])
    app.worker().run(until_empty=True)
    rows = app.store.minutes(since=0)
    assert sum(row.completed for row in rows) == 2 and sum(row.failed for row in rows) == 1
    assert {(row.queue, row.task) for row in rows} == {("default", "work")}
    assert all(row.run_seconds > 0 and row.wait_seconds > 0 for row in rows)


# -- stopping and trouble ----------------------------------------------------------------------------


def test_stop_finishes_what_runs_and_claims_nothing_more(app: Rowlock) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.task
    def work(n: int) -> int:
        entered.set()
        leave.wait(30)
        return n

    first, second = work.enqueue(1), work.enqueue(2)
    with app.worker(concurrency=1, strategy="FIFO").background() as worker:
        assert entered.wait(30)
        worker.stop()
        leave.set()
    assert app.result(first.id) == 1
    assert app.job(second.id).state == "queued"
    assert [record.ended for record in app.store.workers()] == ["stopped"]


def test_stop_now_gives_back_what_runs_and_refuses_its_late_result(app: Rowlock) -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def work() -> str:
        entered.set()
        leave.wait(30)
        left.set()
        return "late"

    job = work.enqueue()
    with app.worker(concurrency=1).background() as worker:
        assert entered.wait(30)
        worker.stop(now=True)
    found = app.job(job.id)
    assert (found.state, found.failures, found.claimed_by) == ("queued", 0, None)
    leave.set()
    assert left.wait(30)
    assert app.job(job.id).state == "queued"


def test_a_worker_can_run_again_after_it_was_stopped(app: Rowlock) -> None:
    work = app.task(name="work")(lambda: 1)
    worker = app.worker()
    for _ in range(2):
        job = work.enqueue()
        with worker.background():
            assert app.result(job.id, timeout=30) == 1


def test_reports_that_could_not_be_written_are_kept_for_the_next_time() -> None:
    from rowlock.execution.context import local_context

    context = local_context("t")
    context.progress(1)
    context.log("one")
    report = context.take_report()
    assert report is not None
    context.log("two")
    context.give_back(report)
    again = context.take_report()
    assert again is not None and again.progress == report.progress
    assert [line.message for line in again.lines] == ["one", "two"]


def test_an_error_in_a_background_worker_reaches_its_owner(app: Rowlock) -> None:
    broken = Rowlock(app.store.url, include=["no_such_module_anywhere"])
    with pytest.raises(ModuleNotFoundError), broken.worker().background():
        pass
    broken.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"pool": "fibre"}, "pool='fibre': must be one of thread"),
        ({"strategy": "NEWEST"}, "unknown strategy 'NEWEST'"),
        ({"queues": "gpu"}, "queues='gpu'"),
    ],
)
def test_a_worker_that_cannot_work_is_refused(app: Rowlock, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        app.worker(**options)


def test_a_worker_keeps_its_outcomes_while_the_database_is_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db", busy_timeout=0.05)
    entered, leave = threading.Event(), threading.Event()

    @app.task
    def work() -> int:
        entered.set()
        leave.wait(30)
        return 7

    job = work.enqueue()
    blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
    with caplog.at_level(logging.INFO, logger="rowlock"), app.worker(concurrency=1).background():
        assert entered.wait(30)
        blocker.execute("BEGIN IMMEDIATE")
        leave.set()
        eventually(lambda: "goes on trying" in caplog.text)
        blocker.execute("ROLLBACK")
        assert app.result(job.id, timeout=30) == 7
    blocker.close()
    assert (
        len([one for one in caplog.records if one.name == "rowlock.worker" and one.levelname == "ERROR"]) == 1
    )
    assert app.job(job.id).claim == 1
    app.close()


def test_a_worker_declared_dead_drops_its_claims_tells_its_tasks_and_goes_on(app: Rowlock) -> None:
    entered, leave, told = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def work(ctx: JobContext) -> str:
        if ctx.claim > 1:
            return "second"
        entered.set()
        leave.wait(30)
        try:
            ctx.check_cancelled()
        except ClaimLost:
            told.set()
            raise
        return "first"

    job = work.enqueue()
    with app.worker(concurrency=2).background() as worker:
        assert entered.wait(30)
        old = worker.id
        rescuer = app.poller(worker_id="rescuer")
        rescuer.claim()
        later = time.time() + 1000
        app.store.beat("rescuer", "FIFO", now=later)
        assert app.store.rescue("rescuer", careful_age=20, now=later).workers == [old]
        worker._heartbeat.run_once(time.monotonic() + 60)  # its next beat
        assert eventually(lambda: worker.id != old or None)
        assert app.result(job.id, timeout=30) == "second"
        eventually(lambda: any(run.context.lost for run in worker.runs.in_flight.values()) or told.is_set())
        leave.set()
        assert told.wait(30)
    assert app.result(job.id) == "second"
    assert app.job(job.id).claim == 2
    rescuer.close()


def test_a_job_whose_worker_died_runs_without_company_at_first(app: Rowlock) -> None:
    from tests.stores.steps import take
    from tests.stores.steps import worker as register

    other_ran, company = threading.Event(), []

    @app.task
    def other() -> None:
        other_ran.set()

    @app.task
    def suspect() -> None:
        other.enqueue_many([{}] * 3)  # which also wakes the worker
        company.append(other_ran.wait(0.4))

    job = suspect.enqueue()
    moment = time.time() - 100
    dead = register(app.store, "dead", lease=6.0, now=moment)
    take(app.store, dead, now=moment)
    tally = app.worker(concurrency=4).run(until_empty=True)
    assert (app.job(job.id).claim, tally.completed) == (2, 4)
    assert company == [False]


def test_no_run_ends_without_an_outcome(app: Rowlock) -> None:
    class Model:
        def model_dump(self, mode: str) -> Any:
            raise RuntimeError("no JSON today")

    @app.around
    def hook(ctx: JobContext) -> Iterator[None]:
        yield
        if ctx.task == "slow":
            ctx.log("too late")  # raises what is no Exception

    @app.task
    def odd_result() -> Any:
        return Model()

    @app.task(timeout=0.05, retry=False)
    def slow(ctx: JobContext) -> None:
        while True:
            ctx.check_cancelled()

    one, two = odd_result.enqueue(), slow.enqueue()
    app.worker().run(until_empty=True)
    assert (app.job(one.id).error_kind, app.job(two.id).error_kind) == ("result", "timeout")
    assert "no JSON today" in str(app.job(one.id).error)


def test_a_run_given_up_after_it_ended_costs_no_place_and_no_outcome() -> None:
    from rowlock.pools.base import Run
    from rowlock.pools.thread import ThreadPool
    from tests.test_strategies import claim

    pool = ThreadPool(1, lambda pool: None)
    run = Run(claim(1, 0), None, JobContext(claim(1, 0)))
    pool.submit([run])
    assert pool.next() is run
    assert pool.ended(run)
    pool.abandon(run)
    pool.submit([run])
    assert (pool.stuck, pool.threads) == (0, 1)  # the one thread still counts


def test_what_runs_at_most_once_is_not_run_again_after_a_stop_at_once(app: Rowlock) -> None:
    entered, leave, told = threading.Event(), threading.Event(), threading.Event()

    @app.task(retry=False)
    def charge(ctx: JobContext) -> None:
        entered.set()
        leave.wait(30)
        try:
            ctx.check_cancelled()
        except ClaimLost:
            told.set()

    job = charge.enqueue()
    with app.worker().background() as worker:
        assert entered.wait(30)
        worker.stop(now=True)
    assert (app.job(job.id).state, app.job(job.id).error_kind) == ("failed", "worker_stopped")
    leave.set()
    assert told.wait(30)


def test_a_queue_strategy_of_a_newer_version_does_not_stop_the_worker(app: Rowlock, tmp_path: Path) -> None:
    job = app.task(name="work")(lambda: 1).enqueue()
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    other.execute("INSERT INTO rowlock_queues (name, strategy) VALUES ('default', 'FAIREST')")
    other.close()
    app.worker().run(until_empty=True)
    assert app.result(job.id) == 1


def test_a_new_run_does_not_show_the_progress_of_the_one_before(app: Rowlock) -> None:
    entered, leave = threading.Event(), threading.Event()

    @app.task(retry=QUICK)
    def work(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            ctx.progress(7, 10)
            raise ValueError
        entered.set()
        leave.wait(30)

    job = work.enqueue()
    with app.worker().background():
        assert entered.wait(30)
        assert app.job(job.id).progress is None
        leave.set()
        app.result(job.id, timeout=30)


def test_what_ended_before_a_stop_at_once_is_written_although_the_database_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db", busy_timeout=0.3)
    entered, leave = threading.Event(), threading.Event()
    exchange = app.store.exchange

    def free_after_the_first_try(*given: Any, **named: Any) -> Any:
        try:
            return exchange(*given, **named)
        except StoreBusy:
            if worker.ended and blocker.in_transaction:  # of its last tries, the first
                blocker.execute("ROLLBACK")
            raise

    monkeypatch.setattr(app.store, "exchange", free_after_the_first_try)

    @app.task
    def pay() -> str:
        entered.set()
        leave.wait(100)
        return "paid"

    job = pay.enqueue()
    blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
    with app.worker(concurrency=2).background() as worker:
        assert entered.wait(30)
        app.enqueue("pay")
        blocker.execute("BEGIN IMMEDIATE")
        eventually(lambda: worker.cycle.backoff.failing)
        leave.set()
        eventually(lambda: not worker.runs.in_flight)
        worker.stop(now=True)
    assert not blocker.in_transaction
    assert app.result(job.id, timeout=0) == "paid"
    assert app.job(job.id).claim == 1
    blocker.close()
    app.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_a_task_forked_and_forgot_ends(app: Rowlock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", end_child)

    @app.task
    def forker() -> int:
        return os.fork()

    job = forker.enqueue()
    app.worker(concurrency=1).run(until_empty=True)
    child = app.result(job.id)
    assert child > 0
    assert os.waitpid(child, 0) == (child, 0)


def test_a_runner_that_is_late_claims_nothing_for_a_worker_that_has_ended(
    app: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held up between the outcome of its run and the look at whether it makes the next cycle."""
    is_alone, late, leave, left = ThreadPool.is_alone, threading.Event(), threading.Event(), threading.Event()

    def held_up(pool: ThreadPool) -> bool:
        late.set()
        leave.wait(30)
        return is_alone(pool)

    after_run = NextCycle.after_run

    def noticed(next_cycle: NextCycle, *given: Any) -> None:
        try:
            after_run(next_cycle, *given)
        finally:
            left.set()

    monkeypatch.setattr(ThreadPool, "is_alone", held_up)
    monkeypatch.setattr(NextCycle, "after_run", noticed)

    @app.task
    def work() -> None: ...

    work.enqueue()
    with app.worker(concurrency=1).background():
        assert late.wait(30)
    second = work.enqueue()
    leave.set()
    assert left.wait(30)
    assert app.job(second.id).state == "queued"
    assert [one for one in app.store.workers() if one.dead_at is None] == []
