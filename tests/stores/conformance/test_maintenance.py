from __future__ import annotations

import logging
import time

import pytest

from rowlock.errors import JobNotFound, WrongState
from rowlock.job import Ending, LogLine, Progress, Report
from rowlock.liveness import Lease
from rowlock.maintenance import Maintenance
from rowlock.monitoring import Minute
from rowlock.stores.base import Retention
from rowlock.stores.sql.store import Store
from tests.stores.steps import add, end, events, job, run_sql, state, table, take, worker

NOW = 1_800_000_000.0
DAY = 86_400.0
WEEK = Retention(completed=7 * DAY, failed=30 * DAY)


@pytest.mark.file_mode
def test_due_jobs_are_promoted_and_the_others_wait(store: Store) -> None:
    (soon,) = add(store, delay=10.0, now=NOW)
    (later,) = add(store, delay=20.0, now=NOW)
    assert store.promote(10, now=NOW + 9) == 0
    assert store.promote(10, now=NOW + 10) == 1
    assert (state(store, soon), state(store, later)) == ("queued", "scheduled")


def test_promotion_is_bounded_and_earliest_first(store: Store) -> None:
    ids = [add(store, delay=float(30 - number), now=NOW)[0] for number in range(5)]
    assert store.promote(2, now=NOW + 60) == 2
    assert [state(store, id) for id in ids] == ["scheduled"] * 3 + ["queued"] * 2


def test_a_clock_that_jumps_back_runs_nothing_early_twice_or_never(store: Store) -> None:
    who = worker(store)
    (id,) = add(store, delay=60.0, now=NOW)
    assert store.promote(10, now=NOW - 3600) == 0
    assert store.promote(10, now=NOW + 60) == 1
    assert store.promote(10, now=NOW - 3600) == 0
    assert [claim.id for claim in take(store, who, 2, now=NOW - 3600)] == [id]
    assert take(store, who, now=NOW) == []


@pytest.mark.file_mode
def test_waiting_jobs_expire_and_running_ones_do_not(store: Store) -> None:
    who = worker(store)
    (running,) = add(store, expires=5.0, now=NOW)
    take(store, who, now=NOW)
    (queued,) = add(store, expires=5.0, now=NOW)
    (scheduled,) = add(store, expires=5.0, delay=10.0, now=NOW)
    assert store.expire(10, now=NOW + 6) == 1
    assert store.expire(10, now=NOW + 16) == 1
    assert state(store, running) == "running"
    for id in (queued, scheduled):
        assert (state(store, id), job(store, id).error_kind, events(store, id)) == (
            "failed",
            "expired",
            ["expired"],
        )


def test_jobs_that_nobody_has_long_after_they_were_due_fail(store: Store) -> None:
    gone = worker(store, "gone", now=NOW)
    (running,) = add(store, now=NOW)
    claim = take(store, gone, now=NOW)[0]
    run_sql(store, f"DELETE FROM {table(store, 'rowlock_workers')}")  # as by somebody who tidies up
    queued = add(store, 45, priority=-3, now=NOW)
    (scheduled,) = add(store, delay=500.0, now=NOW)
    (young,) = add(store, now=NOW + 50)
    assert store.fail_overdue(120.0, 20, now=NOW + 119) == 0
    assert [store.fail_overdue(120.0, 20, now=NOW + 121) for _ in range(4)] == [21, 20, 5, 0]
    for id in (running, *queued):
        assert (state(store, id), job(store, id).error_kind) == ("failed", "overdue")
    assert (state(store, scheduled), state(store, young)) == ("scheduled", "queued")
    assert not end(store, claim)


def test_a_job_that_a_living_worker_has_is_never_overdue(store: Store) -> None:
    """Its timeout alone bounds how long it runs; one that waits in its worker is given back in a moment."""
    add(store, 2, now=NOW, task="t")
    claims = take(store, worker(store, now=NOW), 2, now=NOW)
    assert store.fail_overdue(3.0, 20, now=NOW + 9) == 0
    assert all(end(store, claim, now=NOW + 9) for claim in claims)


def test_a_job_whose_worker_fell_silent_is_taken_back_and_overdue_in_one_round(store: Store) -> None:
    (id,) = add(store, now=NOW)
    claim = take(store, worker(store, "silent", now=NOW), now=NOW)[0]
    me = worker(store, "me", now=NOW + 100)
    maintenance = Maintenance(store, lease=Lease(60.0), keep=WEEK, failed_after=50.0)
    assert maintenance.run_once(me, now=NOW + 100).overdue == 1
    assert (state(store, id), events(store, id)) == ("failed", ["rescued", "failed"])
    assert not end(store, claim)


def test_an_overdue_job_keeps_its_last_error(store: Store) -> None:
    (id,) = add(store, now=NOW)
    claim = take(store, worker(store, now=NOW), now=NOW)[0]
    end(store, claim, Ending.RETRY, error="boom", delay=100.0, charge=1, now=NOW)
    store.promote(1, now=NOW + 100)
    assert store.fail_overdue(50.0, 20, now=NOW + 100) == 1
    assert job(store, id).error == (
        "no living worker had it 50 s after it was first due (FAILED_JOB_TIMEOUT_SECONDS); "
        "its last error was: boom"
    )


def test_a_retry_does_not_start_the_long_clock_again(store: Store) -> None:
    who = worker(store, now=NOW)
    (id,) = add(store, now=NOW)
    end(store, take(store, who, now=NOW)[0], Ending.RETRY, delay=100.0, now=NOW)
    store.promote(1, now=NOW + 100)
    assert store.fail_overdue(120.0, 20, now=NOW + 121) == 1
    assert state(store, id) == "failed"


def test_the_next_moment_is_the_earliest_of_due_and_deadline(store: Store) -> None:
    me = worker(store, now=NOW)
    add(store, delay=50.0, now=NOW)
    assert store.next_needed(me, now=NOW) == pytest.approx(50)
    add(store, expires=20.0, now=NOW)
    assert store.next_needed(me, now=NOW) == pytest.approx(20)
    assert store.next_needed(me, now=NOW + 99) == 0


def test_finished_jobs_are_kept_as_long_as_the_policy_says(store: Store) -> None:
    who = worker(store, now=NOW)
    endings = {Ending.COMPLETED: 7, Ending.FAILED: 30, Ending.CANCELLED: 30}
    for ending, days in endings.items():
        (id,) = add(store, now=NOW)
        claim = take(store, who, now=NOW)[0]
        report = Report(id=id, claim=claim.claim, progress=Progress(1), lines=[LogLine(NOW, "x")])
        store.report([report])
        end(store, claim, ending, now=NOW)
        assert store.prune(WEEK, after=0, most=100, now=NOW + days * DAY - 1)[0] == 0
        assert store.prune(WEEK, after=0, most=100, now=NOW + days * DAY + 1)[0] == 1
        assert store.get(id) is None and store.history(id) == [] and store.logs(id) == []


def test_unfinished_jobs_are_never_pruned(store: Store) -> None:
    who = worker(store, now=NOW)
    add(store, 2, now=NOW)
    add(store, delay=1.0, now=NOW)
    take(store, who, now=NOW)
    assert store.prune(Retention(0, 0), after=0, most=100, now=NOW + 999 * DAY) == (0, 0)
    assert len(store.find()) == 3


def test_pruning_goes_page_by_page_and_starts_again(store: Store) -> None:
    who = worker(store, now=NOW)
    add(store, 5, now=NOW)
    for claim in take(store, who, 5, now=NOW, strategy="FIFO")[1:]:
        end(store, claim, now=NOW)
    keep, later = Retention(DAY, DAY), NOW + 2 * DAY
    deleted, after = store.prune(keep, after=0, most=3, now=later)
    assert (deleted, after) == (2, 3)
    assert store.prune(keep, after=after, most=3, now=later) == (2, 0)
    assert [one.id for one in store.find()] == [1]


def test_what_is_pruned_at_once_is_bounded_also_for_jobs_with_many_log_lines(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held for as long as the deletion takes, and a job may have 500 lines."""
    monkeypatch.setattr("rowlock.stores.sql.pruning._SIDE_ROWS", 10)
    who = worker(store, now=NOW)
    ids = add(store, 6, now=NOW)
    for claim, lines in zip(take(store, who, 6, now=NOW, strategy="FIFO"), (4, 4, 4, 30, 0, 0), strict=True):
        store.report([Report(id=claim.id, claim=claim.claim, lines=[LogLine(NOW, "x")] * lines)])
        end(store, claim, now=NOW)
    keep, later, after = Retention(DAY, DAY), NOW + 2 * DAY, 0
    batches = []
    while not batches or after:
        deleted, after = store.prune(keep, after=after, most=100, now=later)
        batches.append(deleted)
    assert batches == [2, 1, 1, 2]  # 8 lines, 4, 30 of one job alone, none
    assert store.find() == [] and [store.logs(id) for id in ids] == [[]] * 6


def test_old_records_are_deleted_in_bounded_batches_oldest_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowlock.stores.sql.pruning._SIDE_ROWS", 3)
    first = int(NOW // 60)
    for name in ("a", "b", "c", "d"):
        store.retire(worker(store, name, now=NOW), now=NOW)
    minutes = [Minute(minute=first + n, worker="a", queue="q", task="t", completed=1) for n in range(5)]
    store.exchange(worker(store, "e", now=NOW), minutes=minutes, now=NOW)
    seen = []
    for _ in range(2):
        store.prune_records(DAY, now=NOW + 2 * DAY)
        seen.append((len(store.minutes(0)), len(store.workers(now=NOW))))
    assert seen == [(2, 2), (0, 1)]


def test_one_round_of_maintenance_does_all_of_it_and_says_when_the_next_is_needed(store: Store) -> None:
    me = worker(store, "me", now=NOW + 100)
    worker(store, "silent", now=NOW - 100)
    add(store, delay=90.0, now=NOW)
    add(store, expires=5.0, now=NOW)
    add(store, delay=130.0, now=NOW)
    add(store, now=NOW - 900)
    maintenance = Maintenance(store, lease=Lease(60.0), keep=WEEK, failed_after=800.0)
    done = maintenance.run_once(me, now=NOW + 100)
    assert (done.promoted, done.expired, done.overdue, done.rescue.workers) == (1, 1, 1, ["silent"])
    assert done.next_in == 0
    maintenance = Maintenance(store, lease=Lease(60.0), keep=WEEK)
    done = maintenance.run_once(me, now=NOW + 100)
    assert done.next_in == pytest.approx(30)
    assert maintenance.run_once(me, now=NOW + 101).promoted == 0


@pytest.mark.file_mode
def test_cancel_ends_a_waiting_job_at_once(store: Store) -> None:
    (queued,) = add(store)
    (scheduled,) = add(store, delay=60.0)
    for id in (queued, scheduled):
        store.cancel(id)
        assert (state(store, id), events(store, id)) == ("cancelled", ["cancelled"])
        assert job(store, id).finished_at is not None
    assert take(store, worker(store)) == []


def test_cancel_leaves_a_finished_job_as_it_is(store: Store) -> None:
    add(store)
    claim = take(store, worker(store))[0]
    end(store, claim)
    before = job(store, claim.id)
    store.cancel(claim.id)
    assert job(store, claim.id) == before


@pytest.mark.file_mode
@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED])
def test_an_operators_retry_starts_a_finished_job_over(store: Store, ending: Ending) -> None:
    who = worker(store)
    (id,) = add(store, expires=3600.0)
    claim = take(store, who)[0]
    end(store, claim, ending, result="1", error="boom", charge=1)
    store.retry(id)
    found = job(store, id)
    assert (found.state, found.failures, found.result, found.error) == ("queued", 0, None, None)
    assert found.finished_at is None and found.cancel_requested_at is None
    assert events(store, id)[-1] == "retried"
    again = take(store, who)[0]
    assert again.claim == 2
    assert not end(store, claim)


def test_an_operators_retry_makes_a_scheduled_job_due_now(store: Store) -> None:
    (id,) = add(store, delay=3600.0)
    store.retry(id)
    assert state(store, id) == "queued"


def test_a_retry_of_an_expired_job_does_not_expire_again(store: Store) -> None:
    (id,) = add(store, expires=1.0, now=time.time() - 10)
    store.expire(10)
    store.retry(id)
    assert store.expire(10) == 0 and state(store, id) == "queued"


def test_a_retry_of_an_overdue_job_starts_its_long_clock_again(store: Store) -> None:
    (id,) = add(store, now=NOW)
    store.fail_overdue(60.0, 20, now=NOW + 100)
    store.retry(id, now=NOW + 200)
    assert store.fail_overdue(60.0, 20, now=NOW + 210) == 0
    assert store.fail_overdue(60.0, 20, now=NOW + 261) == 1


def test_a_deadline_that_passes_before_a_retry_keeps_the_last_error(store: Store) -> None:
    who = worker(store, now=NOW)
    (id,) = add(store, expires=5.0, now=NOW)
    end(store, take(store, who, now=NOW)[0], Ending.RETRY, delay=60.0, error="boom", now=NOW)
    assert store.expire(10, now=NOW + 6) == 1
    found = job(store, id)
    assert found.error == "its deadline to start (expires) has passed; its last error was: boom"


def test_what_is_queued_or_running_cannot_be_retried(store: Store) -> None:
    (id,) = add(store)
    with pytest.raises(WrongState, match="is queued"):
        store.retry(id)
    take(store, worker(store))
    with pytest.raises(WrongState, match="is running"):
        store.retry(id)
    with pytest.raises(JobNotFound, match="no job 99"):
        store.retry(99)


def test_a_silent_worker_that_held_nothing_is_no_warning(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    rescuer = worker(store, "rescuer", now=NOW)
    add(store, now=NOW)
    worker(store, "idle", now=NOW - 100.0)
    maintenance = Maintenance(store, lease=Lease(60.0), keep=WEEK)
    with caplog.at_level(logging.INFO, "rowlock.maintenance"):
        assert maintenance.run_once(rescuer, now=NOW).rescue.workers == ["idle"]
        assert caplog.messages == []
        take(store, worker(store, "busy", now=NOW - 100.0), now=NOW - 100.0)
        assert maintenance.run_once(rescuer, now=NOW).rescue.workers == ["busy"]
        assert "busy: 1 back" in caplog.text


def test_idle_means_that_nothing_is_due_or_running(store: Store) -> None:
    who = worker(store)
    assert store.idle([])
    add(store, delay=60.0, queue="a")
    assert store.idle([]) and not store.idle([], now=time.time() + 61)
    add(store, queue="a")
    assert not store.idle([]) and not store.idle(["a"]) and store.idle(["b"])
    claim = take(store, who)[0]
    assert not store.idle(["a"]) and store.idle(["b"])
    end(store, claim)
    assert store.idle([])
