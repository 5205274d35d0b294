from __future__ import annotations

import msgspec
import pytest

from rowlock.job import Claim, ClaimRequest, Ending, LogLine, Progress, Report
from rowlock.monitoring import Minute
from rowlock.stores.sql.store import Store
from tests.stores.steps import add, end, events, job, outcome, state, take, worker

NOW = 1_800_000_000.0


@pytest.fixture
def claim(store: Store) -> Claim:
    who = worker(store)
    add(store, now=NOW)
    return take(store, who, now=NOW)[0]


@pytest.mark.file_mode
def test_a_completed_job_keeps_its_result_and_writes_no_history(store: Store, claim: Claim) -> None:
    assert end(store, claim, result='{"masks":12}', now=NOW + 3)
    found = job(store, claim.id)
    assert (found.state, found.result, found.claimed_by) == ("completed", {"masks": 12}, claim.claimed_by)
    assert found.finished_at is not None and found.finished_at.timestamp() == NOW + 3
    assert store.history(claim.id) == []


@pytest.mark.file_mode
def test_a_retry_waits_as_scheduled_and_is_charged(store: Store, claim: Claim) -> None:
    assert end(
        store, claim, Ending.RETRY, delay=30.0, charge=1, error="boom", error_kind="exception", now=NOW
    )
    found = job(store, claim.id)
    assert (found.state, found.failures, found.error, found.error_kind) == (
        "scheduled",
        1,
        "boom",
        "exception",
    )
    assert found.run_at.timestamp() == NOW + 30
    assert found.claimed_by is None and found.started_at is None
    assert events(store, claim.id) == ["retry"]


def test_a_completion_after_a_retry_is_told_in_the_history(store: Store, claim: Claim) -> None:
    end(store, claim, Ending.RETRY, charge=1, error="boom", error_kind="exception")
    store.promote(1)
    again = take(store, claim.claimed_by)[0]
    assert again.claim == 2 and again.failures == 1
    end(store, again)
    assert events(store, claim.id) == ["retry", "completed"]
    assert job(store, claim.id).error is None


@pytest.mark.file_mode
def test_a_failure_keeps_its_reason(store: Store, claim: Claim) -> None:
    end(store, claim, Ending.FAILED, charge=1, error="it broke", error_kind="exception")
    found = job(store, claim.id)
    assert (found.state, found.failures, found.error) == ("failed", 1, "it broke")
    assert store.history(claim.id)[0].error == "it broke"


def test_a_release_is_free_and_immediate_and_with_a_delay_it_waits(store: Store, claim: Claim) -> None:
    end(store, claim, Ending.RELEASED)
    assert (job(store, claim.id).state, job(store, claim.id).failures) == ("queued", 0)
    again = take(store, claim.claimed_by)[0]
    end(store, again, Ending.RELEASED, delay=15.0, error="unknown", error_kind="unknown_task", now=NOW)
    found = job(store, claim.id)
    assert (found.state, found.failures, found.error_kind) == ("scheduled", 0, "unknown_task")
    assert found.run_at.timestamp() == NOW + 15


@pytest.mark.file_mode
@pytest.mark.parametrize("ending", list(Ending))
def test_a_stale_claim_number_is_refused_and_changes_nothing(
    store: Store, claim: Claim, ending: Ending
) -> None:
    end(store, claim, Ending.RELEASED)
    newer = take(store, claim.claimed_by)[0]
    before, history = job(store, claim.id), store.history(claim.id)
    assert not end(store, claim, ending, result="1", error="late")
    assert job(store, claim.id) == before and store.history(claim.id) == history
    assert end(store, newer)


@pytest.mark.parametrize("ending", list(Ending))
def test_a_job_that_is_not_running_cannot_be_finished(store: Store, claim: Claim, ending: Ending) -> None:
    end(store, claim, result="1")
    before = job(store, claim.id)
    assert not end(store, claim, ending, result="2")
    assert job(store, claim.id) == before


@pytest.mark.file_mode
def test_a_batch_says_which_of_its_outcomes_came_too_late(store: Store) -> None:
    who = worker(store)
    add(store, 3)
    first, second, third = take(store, who, 3)
    end(store, second, Ending.RELEASED)
    outcomes = [outcome(one, Ending.COMPLETED, result="1") for one in (first, second, third)]
    assert store.exchange(who, outcomes).lost == [outcomes[1]]
    assert [state(store, one.id) for one in (first, second, third)] == ["completed", "queued", "completed"]


def test_a_batch_of_all_kinds_is_written_but_for_what_is_lost(store: Store) -> None:
    after = {
        Ending.COMPLETED: ("completed", []),
        Ending.RETRY: ("scheduled", ["retry"]),
        Ending.FAILED: ("failed", ["failed"]),
        Ending.CANCELLED: ("cancelled", ["cancelled"]),
        Ending.RELEASED: ("queued", ["released"]),
    }
    who = worker(store)
    add(store, 2 * len(after))
    claims = take(store, who, 2 * len(after), strategy="FIFO")
    delays = {Ending.RETRY: 60.0}
    outcomes = [
        outcome(claim, ending, error="why", delay=delays.get(ending))
        for claim, ending in zip(claims, [*after, *after], strict=True)
    ]
    in_time, late = claims[: len(after)], claims[len(after) :]
    for claim in late:
        end(store, claim, Ending.RELEASED)
    before = [job(store, claim.id) for claim in late]
    assert store.exchange(who, outcomes).lost == outcomes[len(after) :]
    assert [(state(store, claim.id), events(store, claim.id)) for claim in in_time] == list(after.values())
    assert [job(store, claim.id) for claim in late] == before
    assert [events(store, claim.id) for claim in late] == [["released"]] * len(late)


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.RELEASED])
def test_the_timeline_of_what_came_back_to_be_cancelled_says_so(
    store: Store, claim: Claim, ending: Ending
) -> None:
    store.cancel(claim.id)
    end(store, claim, ending)
    assert events(store, claim.id) == ["cancel asked for", "cancelled"]


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.RELEASED])
def test_what_would_come_back_is_cancelled_if_a_cancel_was_asked_for(
    store: Store, claim: Claim, ending: Ending
) -> None:
    store.cancel(claim.id)
    assert job(store, claim.id).cancelling
    end(store, claim, ending)
    assert state(store, claim.id) == "cancelled"


def test_a_run_that_ends_normally_completes_in_spite_of_a_cancel(store: Store, claim: Claim) -> None:
    store.cancel(claim.id)
    end(store, claim, result="1")
    assert state(store, claim.id) == "completed"


def test_progress_and_lines_are_kept_with_the_job(store: Store, claim: Claim) -> None:
    lines = [LogLine(NOW, "one", '{"x":1}'), LogLine(NOW + 1, "two")]
    store.report([Report(id=claim.id, claim=claim.claim, progress=Progress(1, 4, "a"), lines=lines)])
    store.report([Report(id=claim.id, claim=claim.claim, progress=Progress(2, 4, "b"))])
    assert job(store, claim.id).progress == Progress(2, 4, "b")
    assert [(line.message, line.fields) for line in store.logs(claim.id)] == [("one", {"x": 1}), ("two", {})]


@pytest.mark.file_mode
def test_reports_of_a_lost_claim_are_refused(store: Store, claim: Claim) -> None:
    end(store, claim, Ending.RELEASED)
    take(store, claim.claimed_by)
    store.report([Report(id=claim.id, claim=claim.claim, progress=Progress(9), lines=[LogLine(NOW, "late")])])
    assert job(store, claim.id).progress is None and store.logs(claim.id) == []


def test_the_last_report_is_written_with_the_outcome(store: Store, claim: Claim) -> None:
    report = Report(id=claim.id, claim=claim.claim, progress=Progress(4, 4), lines=[LogLine(NOW, "done")])
    store.exchange(claim.claimed_by, [outcome(claim, Ending.COMPLETED)], reports=[report])
    assert job(store, claim.id).progress == Progress(4, 4)
    assert [line.message for line in store.logs(claim.id)] == ["done"]


def test_only_the_last_500_lines_are_kept(store: Store, claim: Claim) -> None:
    lines = [LogLine(NOW, str(number)) for number in range(300)]
    for start in (0, 300):
        some = [LogLine(NOW, str(start + int(line.message))) for line in lines]
        store.report([Report(id=claim.id, claim=claim.claim, lines=some)])
    kept = [line.message for line in store.logs(claim.id)]
    assert kept == [str(number) for number in range(100, 600)]


def test_minutes_add_up(store: Store) -> None:
    who = worker(store)
    one = Minute(minute=7, worker=who, queue="q", task="t", completed=2, run_seconds=0.5)
    store.exchange(who, minutes=[one])
    store.exchange(who, minutes=[one, Minute(minute=7, worker=who, queue="q", task="u", failed=1)])
    assert [(row.task, row.completed, row.failed, row.run_seconds) for row in store.minutes(since=7)] == [
        ("t", 4, 0, 1.0),
        ("u", 0, 1, 0.0),
    ]
    assert store.minutes(since=8) == []


def test_an_exchange_without_a_want_claims_nothing(store: Store) -> None:
    who = worker(store)
    add(store)
    assert (
        store.exchange(who).claims == [] and store.exchange(who, request=ClaimRequest(count=0)).claims == []
    )
    assert state(store, 1) == "queued"


def test_a_batch_keeps_every_result_as_it_was_and_takes_the_next_claims(store: Store) -> None:
    texts = ["plain", 'a "quote"', "back\\slash", "{brace, comma}", "NULL", "", "new\nline", "ünï ✓", "'"]
    worker(store)
    add(store, 2 * len(texts) + 1)
    held = take(store, "w", count=len(texts) + 1)
    outcomes = [
        outcome(claim, Ending.COMPLETED, result=msgspec.json.encode(text).decode())
        for claim, text in zip(held, texts, strict=False)
    ]
    outcomes.append(outcome(held[-1], Ending.COMPLETED))  # no result at all
    outcomes.reverse()
    got = store.exchange("w", outcomes, ClaimRequest(count=len(texts)))
    assert (got.lost, len(got.claims)) == ([], len(texts))
    assert [job(store, claim.id).result for claim in held] == [*texts, None]
    assert {state(store, claim.id) for claim in held} == {"completed"}


def test_a_large_batch_with_some_lost_claims_writes_all_the_others(store: Store) -> None:
    worker(store)
    add(store, 12)
    held = take(store, "w", count=10)
    for lost in held[3:5]:
        assert end(store, lost, Ending.RELEASED)
    got = store.exchange(
        "w", [outcome(claim, Ending.COMPLETED, result="1") for claim in held], ClaimRequest(count=1)
    )
    assert [one.id for one in got.lost] == [claim.id for claim in held[3:5]]
    assert [state(store, claim.id) for claim in held[:3] + held[5:]] == ["completed"] * 8
    assert len(got.claims) == 1
