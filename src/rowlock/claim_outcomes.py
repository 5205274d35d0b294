"""From a claim and what happened to it to its outcome, with each sentence that users read about an ending.

What it costs is decided in `endings.py`; who ends a claim asks here and writes what it is given.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rowlock.endings import DEATHS, Event, Facts, Verdict, budget, decide
from rowlock.error_text import describe, storable
from rowlock.errors import CancelRequested, Fail, RetryLater, RunTimedOut
from rowlock.job import Claim, Ending, Outcome
from rowlock.retry import DEFAULT, Retry


def ended(claim: Claim, event: Event, retry: Retry, said: str = "", **facts: Any) -> Outcome:
    """What a claim comes to; `facts` are those that the claim does not know itself."""
    known = Facts(failures=claim.failures, max_attempts=claim.max_attempts, claims=claim.claim, **facts)
    return decided(claim.ended(Ending.RELEASED), event, known, retry, said)


def decided(claim: Outcome, event: Event, facts: Facts, retry: Retry, said: str = "") -> Outcome:
    """The same for a claim that is known by its row; `said` is what the task, process or database said."""
    verdict = decide(event, facts, retry)
    return msgspec.structs.replace(
        claim,
        ending=verdict.ending,
        result=None,
        error=_reason(verdict, event, facts, retry, said),
        error_kind=verdict.kind,
        delay=verdict.delay,
        charge=verdict.charge,
        isolate=verdict.isolate,
        pause=facts.pause and verdict.ending is Ending.RETRY,
    )


def given_back(job: int, claim: int) -> Outcome:
    """What becomes of a claim that is known by its numbers only: it goes back as it came."""
    outcome = Outcome(id=job, claim=claim, ending=Ending.RELEASED)
    return decided(outcome, Event.RELEASED, Facts(claims=claim), DEFAULT)


def event_of(error: BaseException) -> Event:
    """What an exception is that a task raised."""
    if isinstance(error, RetryLater):
        return Event.RETRY_LATER
    if isinstance(error, CancelRequested):
        return Event.CANCELLED
    if isinstance(error, Fail):
        return Event.FAIL
    return Event.TIMEOUT if isinstance(error, RunTimedOut) else Event.RAISED


def text_of(error: BaseException) -> str:
    """What is kept of an exception: of one that steers its job the reason, of any other the traceback."""
    steers = event_of(error) is not Event.RAISED
    return storable(str(error) or type(error).__name__ if steers else describe(error))


def after_error(
    claim: Claim, error: BaseException, retry: Retry, *, cancel_requested: bool = False, lost: bool = False
) -> Outcome:
    """What an error raised by a run makes of its claim."""
    asked = asked_by(error, retry)
    said = text_of(error)
    return ended(claim, event_of(error), retry, said, cancel_requested=cancel_requested, lost=lost, **asked)


def asked_by(error: BaseException, retry: Retry) -> dict[str, Any]:
    """What an exception that a task raised asks for: the facts that it alone knows."""
    later = error if isinstance(error, RetryLater) else None
    return {
        "never": isinstance(error, retry.never),
        "wait": later.seconds if later else None,
        "pause": later is not None and later.pause,
    }


class Answers(list[Any]):
    """What a run came to that had several rows, for each of them; `pause` if one asks for that."""

    pause = False


def put_off(claim: Claim, unless_known: bool = False) -> Outcome:
    """What becomes of a job whose task its worker does not know: given back for later, and later each time.

    With `unless_known` it goes back at once if another living worker knows the task: the store looks.
    """
    said = f"worker {claim.claimed_by} knows no task {claim.task!r}; the job waits for one that does"
    outcome = ended(claim, Event.UNKNOWN_TASK, DEFAULT, said)
    return msgspec.structs.replace(outcome, unless_known=unless_known)


# -- what users read about it --------------------------------------------------------------------

EXPIRED = "its deadline to start (expires) has passed"
CANCELLED = "cancelled while it ran"
_CANCELLED_WAITING = "cancelled before it began"
_STOPPED = "its worker ended while it ran, and it is run at most once"


def overdue(seconds: float) -> str:
    """Why a job failed that no living worker had for too long."""
    return f"no living worker had it {seconds:g} s after it was first due (FAILED_JOB_TIMEOUT_SECONDS)"


def not_begun_within(seconds: float) -> str:
    """Why a row of a user's table failed that nobody began in time."""
    return f"it was not begun within {seconds:g} s"


def timed_out(timeout: float, stopped: bool = True) -> str:
    """Why a run was ended that took too long."""
    ran_on = "" if stopped else " and did not stop when told to"
    return f"it ran longer than its timeout of {timeout:g} s{ran_on}"


def lost(claim: int, title: str, undone: bool = False) -> str:
    """Why nothing is kept of what a run came to."""
    kept = "what it wrote is undone" if undone else "its result will not be kept"
    return f"claim {claim} of {title} was lost; {kept}"


def _reason(verdict: Verdict, event: Event, facts: Facts, retry: Retry, said: str) -> str | None:
    """Why it ended so, for its row and its history."""
    if verdict.kind is None:
        return None
    if verdict.ending is Ending.CANCELLED:
        if event is Event.CHILD_DIED:
            return f"{CANCELLED}; it did not stop when told to, and {said}"
        return said or (CANCELLED if facts.began else _CANCELLED_WAITING)
    if event is Event.STOPPED:
        return _STOPPED
    if event is Event.ARGUMENTS:
        return storable(f"its arguments do not fit the task any more: {said}")
    if event is Event.REFUSED:
        return storable(f"refused by the database: {said}")
    if event in DEATHS and verdict.ending is Ending.FAILED:
        attempts = budget(facts.max_attempts, retry)
        said = said or _died(facts.deaths + 1)
        return f"{said}; its budget of {attempts} attempt{'s' if attempts > 1 else ''} is used up"
    if event is Event.WORKER_DIED:  # the history tells it; the row keeps the error of its last run
        return None
    return said or None


def _died(deaths: int) -> str:
    """What is said of the deaths of a job's workers."""
    return f"its worker died {'once' if deaths == 1 else f'{deaths} times'} under it"
