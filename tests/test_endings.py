"""What every ending costs: every event under every fact that could matter, and the page that tells it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from rowlock import Fail, Retry, RetryLater, claim_outcomes, endings
from rowlock.endings import Event, Facts, Verdict, decide
from rowlock.errors import CancelRequested, RunTimedOut
from rowlock.job import Ending
from tests.test_strategies import claim

COMPLETED, RETRY, FAILED, CANCELLED, RELEASED = Ending
POLICY = Retry(max_attempts=3, backoff="constant", base=7.0, jitter=False)
PLAIN = Facts(failures=0, wait=11.0, lived=2.5)
AS_IT_IS: dict[Event, Verdict] = {  # a first run of a job with three attempts
    Event.RETURNED: Verdict(COMPLETED),
    Event.CANCELLED: Verdict(CANCELLED, kind="cancelled"),
    Event.ARGUMENTS: Verdict(FAILED, kind="arguments"),
    Event.RESULT: Verdict(FAILED, kind="result"),
    Event.INTERNAL: Verdict(FAILED, kind="internal"),
    Event.EXPIRED: Verdict(FAILED, kind="expired"),
    Event.OVERDUE: Verdict(FAILED, kind="overdue"),
    Event.KNOWN_ELSEWHERE: Verdict(RELEASED),
    Event.UNKNOWN_TASK: Verdict(RELEASED, delay=5.0, kind="unknown_task"),
    Event.REFUSED: Verdict(FAILED, 1, kind="refused"),
    Event.UNWRITABLE: Verdict(RETRY, 1, delay=0.0, kind="refused"),
    Event.RETRY_LATER: Verdict(RETRY, delay=11.0, kind="retry_later"),
    Event.FAIL: Verdict(FAILED, 1, kind="fail"),
    Event.RAISED: Verdict(RETRY, 1, delay=7.0, kind="exception"),
    Event.TIMEOUT: Verdict(RETRY, 1, delay=7.0, kind="timeout"),
    Event.CHILD_DIED: Verdict(RETRY, 1, delay=7.0, kind="worker_died"),
    Event.STOPPED: Verdict(RELEASED, delay=11.0),
    Event.RELEASED: Verdict(RELEASED, delay=11.0),
    Event.WORKER_DIED: Verdict(RELEASED, isolate=3, kind="worker_died"),
}
ERRORS = (Event.RAISED, Event.TIMEOUT, Event.CHILD_DIED, Event.UNWRITABLE)


def expected(event: Event, **facts: object) -> Verdict:
    return decide(event, msgspec.structs.replace(PLAIN, **facts), POLICY)


def test_every_event_has_its_line() -> None:
    assert set(AS_IT_IS) == set(Event)
    assert {event: decide(event, PLAIN, POLICY) for event in Event} == AS_IT_IS


def test_an_event_without_a_rule_is_an_error_and_charges_nothing() -> None:
    new = cast("Event", "new")
    for facts in all_facts():
        if not facts.lost:
            with pytest.raises(LookupError, match="has no rule for 'new'"):
                decide(new, facts, POLICY)


def test_without_an_attempt_left_an_error_fails_its_job_and_nothing_else_changes() -> None:
    for event, usual in AS_IT_IS.items():
        failed = Verdict(FAILED, 1, kind=usual.kind)
        assert expected(event, failures=2) == (failed if event in ERRORS else usual), event
        assert expected(event, failures=1).ending is usual.ending, event


def test_a_job_that_may_run_only_once_does_not_run_again_once_it_has_begun() -> None:
    for event, usual in AS_IT_IS.items():
        failed = Verdict(FAILED, 1, kind=usual.kind)
        if event is Event.STOPPED:
            failed = Verdict(FAILED, 0, delay=None, kind="worker_stopped")
        goes_on = event not in (*ERRORS, Event.STOPPED, Event.WORKER_DIED)
        assert expected(event, max_attempts=1) == (usual if goes_on else failed), event
        once = decide(event, msgspec.structs.replace(PLAIN, max_attempts=None), Retry(max_attempts=1))
        assert once == expected(event, max_attempts=1), event
    assert expected(Event.STOPPED, max_attempts=1, began=False) == AS_IT_IS[Event.STOPPED]


def test_a_cancel_ends_what_died_or_would_come_back() -> None:
    for event, usual in AS_IT_IS.items():
        ends = usual.ending in (RETRY, RELEASED)
        kind = "cancelled" if event is Event.CHILD_DIED else usual.kind
        cancelled = Verdict(CANCELLED, kind=kind or "cancelled")
        assert expected(event, cancel_requested=True) == (cancelled if ends else usual), event
    for event in (Event.CHILD_DIED, Event.WORKER_DIED):  # also without an attempt left
        assert expected(event, cancel_requested=True, failures=2).ending is CANCELLED
    assert expected(Event.RAISED, cancel_requested=True, failures=2) == Verdict(FAILED, 1, kind="exception")


def test_a_lost_claim_writes_nothing_whatever_happened() -> None:
    for event in Event:
        assert expected(event, lost=True, cancel_requested=True) == Verdict(RELEASED), event


def test_never_is_about_what_a_task_raises() -> None:
    for event, usual in AS_IT_IS.items():
        fails = event in (Event.RAISED, Event.TIMEOUT)
        assert expected(event, never=True) == (Verdict(FAILED, 1, kind=usual.kind) if fails else usual), event


def test_a_task_that_nobody_knows_is_offered_less_and_less_often() -> None:
    delays = [expected(Event.UNKNOWN_TASK, claims=claims).delay for claims in (1, 2, 3, 6, 7, 999)]
    assert delays == [5, 10, 20, 160, 300, 300]


def test_a_death_is_free_the_first_time_costs_two_the_second_and_one_from_then_on() -> None:
    alone = {"isolate": 3, "kind": "worker_died"}
    charges = {0: 0, 1: 2, 2: 1, 3: 1}
    for deaths, charge in charges.items():
        went_back = Verdict(RELEASED, charge, **alone)  # type: ignore[arg-type]
        assert expected(Event.WORKER_DIED, deaths=deaths, max_attempts=9) == went_back
        left = expected(Event.WORKER_DIED, deaths=deaths, max_attempts=9, failures=8)
        # With one attempt left no more than that one is charged.
        assert left == (Verdict(FAILED, 1, kind="worker_died") if charge else went_back)
    assert expected(Event.WORKER_DIED, began=False, deaths=5, max_attempts=1) == Verdict(
        RELEASED, kind="worker_died"
    )


def test_what_died_runs_alone_for_as_long_as_it_may_have_lived() -> None:
    lived = {0.0: 1, -4.0: 1, 0.2: 1, 30.1: 31, 60.0: 60, 7200.0: 60}
    assert {one: expected(Event.WORKER_DIED, lived=one).isolate for one in lived} == lived


def all_facts() -> Iterator[Facts]:
    flags = ("began", "cancel_requested", "lost", "never")
    for values in itertools.product((False, True), repeat=len(flags)):
        for failures, max_attempts, deaths in itertools.product((0, 1, 2, 5), (None, 1, 2, 3), (0, 1, 2)):
            known = dict(zip(flags, values, strict=True))
            yield Facts(failures=failures, max_attempts=max_attempts, deaths=deaths, wait=1.0, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("event", Event)
def test_no_combination_of_facts_is_without_an_answer_or_out_of_bounds(event: Event) -> None:
    for facts in all_facts():
        verdict = decide(event, facts, POLICY)
        comes_back = verdict.ending in (RETRY, RELEASED)
        left = facts.failures + verdict.charge < (facts.max_attempts or 3)
        assert verdict.charge in (0, 1, 2)
        assert not verdict.isolate or (event is Event.WORKER_DIED and comes_back)
        assert not verdict.charge or not comes_back or left, facts  # never beyond its budget
        assert not (comes_back and facts.cancel_requested and not facts.lost), facts


def test_every_rule_is_reached() -> None:
    cases = [endings._Case(event, facts, POLICY) for event in Event for facts in all_facts()]
    assert {endings._rule(case).what for case in cases} == {rule.what for rule in endings.RULES}


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (RetryLater(3), Event.RETRY_LATER),
        (CancelRequested(), Event.CANCELLED),
        (Fail("no"), Event.FAIL),
        (RunTimedOut("late"), Event.TIMEOUT),
        (OSError("x"), Event.RAISED),
        (KeyboardInterrupt(), Event.RAISED),
    ],
)
def test_what_a_task_raises_is_one_event(error: BaseException, event: Event) -> None:
    assert claim_outcomes.event_of(error) is event
    outcome = claim_outcomes.after_error(claim(1, 0), error, POLICY)
    assert (outcome.ending, outcome.error_kind) == (AS_IT_IS[event].ending, AS_IT_IS[event].kind)
    assert outcome.error


def test_the_page_shows_the_table_that_counts() -> None:
    page = Path(__file__).parents[1].joinpath("docs", "retries.md").read_text(encoding="utf-8")
    assert endings.table() in page, "python -c 'from rowlock import endings; print(endings.table())'"
