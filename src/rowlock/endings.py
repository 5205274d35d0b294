"""What every ending of a claim costs: one table of rules.

Pure decisions: no clock, no store. `claim_outcomes.py` writes them into outcomes, and says in words why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import msgspec

from rowlock.job import Ending
from rowlock.retry import Retry

LONGEST_ISOLATION = 60  # seconds that a job may ask to run without company
_UNKNOWN_FIRST, LONGEST_UNKNOWN = 5.0, 300.0  # seconds that a job waits whose task no living worker knows


class Event(str, Enum):
    """What happened to a claim. If that is an error, the event's word is what users find as `error_kind`."""

    RETURNED = "returned"
    CANCELLED = "cancelled"  # the run stopped because it was asked to
    ARGUMENTS = "arguments"
    RESULT = "result"
    INTERNAL = "internal"
    EXPIRED = "expired"
    OVERDUE = "overdue"
    KNOWN_ELSEWHERE = "known_elsewhere"  # this worker does not know the task, a living one does
    UNKNOWN_TASK = "unknown_task"  # no living worker knows it
    REFUSED = "refused"  # the database refuses to write what it came to
    UNWRITABLE = "unwritable"  # its failure was refused, too, and now its worker has ended
    RETRY_LATER = "retry_later"
    FAIL = "fail"
    RAISED = "exception"
    TIMEOUT = "timeout"
    CHILD_DIED = "child_died"  # a process of a pool
    STOPPED = "worker_stopped"  # its worker ended in good order
    RELEASED = "released"  # its holder gave it back
    WORKER_DIED = "worker_died"

    __str__ = str.__str__


COMPLETED, RETRY, FAILED, CANCELLED, RELEASED = Ending
DEATHS = (Event.CHILD_DIED, Event.WORKER_DIED)
_DIED = (Event.WORKER_DIED,)
_NO_ERRORS = (Event.RETURNED, Event.KNOWN_ELSEWHERE, Event.STOPPED, Event.RELEASED)
_SAME_TO_USERS = {Event.UNWRITABLE: Event.REFUSED, Event.CHILD_DIED: Event.WORKER_DIED}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a claim when it ends: from the claim itself, a job's row or a consumer's row."""

    failures: int = 0
    max_attempts: int | None = None  # None: the policy's
    deaths: int = 0  # of earlier workers, since it was last charged for something else
    claims: int = 1
    began: bool = True
    cancel_requested: bool = False
    lost: bool = False
    never: bool = False  # it is an exception that `Retry(never=...)` names
    wait: float | None = None  # seconds that the task, or who gives it back, asked for
    pause: bool = False  # the task asked that its queue be paused for as long
    lived: float = 0.0  # seconds from its claim to the death of its worker, at most


class Verdict(NamedTuple):
    """What becomes of it."""

    ending: Ending
    charge: int = 0
    delay: float | None = None
    isolate: int = 0
    kind: str | None = None


class _Case(NamedTuple):
    event: Event
    facts: Facts
    retry: Retry

    @property
    def budget(self) -> int:
        return budget(self.facts.max_attempts, self.retry)


class Rule(NamedTuple):
    """A line of the table: it fits these events (none named: all), when the rest of the case is so."""

    what: str  # for people
    ending: Ending
    events: tuple[Event, ...] = ()
    when: Callable[[_Case], bool] = lambda case: True
    charge: int = 0  # what would come back has failed if this uses up its budget
    delay: Callable[[_Case], float | None] = lambda case: None
    isolates: bool = False
    then: str = ""  # for people, where the ending does not say it

    @property
    def needs_budget(self) -> bool:
        """Whether it charges for something that then comes back, if there is an attempt left."""
        return self.charge > 0 and self.ending is not FAILED


def _is_cancelled(case: _Case) -> bool:
    if not case.facts.cancel_requested:
        return case.event is Event.CANCELLED
    unasked = msgspec.structs.replace(case.facts, cancel_requested=False)
    would_be = decide(case.event, unasked, case.retry).ending
    return case.event in DEATHS or would_be in (RETRY, RELEASED, CANCELLED)


def _isolation(case: _Case) -> int:
    return max(1, min(math.ceil(case.facts.lived), LONGEST_ISOLATION))


def _unknown_delay(case: _Case) -> float:
    return min(LONGEST_UNKNOWN, _UNKNOWN_FIRST * 2.0 ** min(case.facts.claims - 1, 10))


# The first rule that fits counts.
RULES = (
    Rule(
        "the claim was lost: its worker was declared dead meanwhile",
        RELEASED,
        when=lambda case: case.facts.lost,
        then="nothing of this run is kept",
    ),
    Rule("the task returned", COMPLETED, (Event.RETURNED,)),
    Rule(
        "a cancel was asked for, and the run stopped, its worker or process died, or it would go back",
        CANCELLED,
        when=_is_cancelled,
    ),
    Rule(
        "the worker died, and the job had been handed over but had not begun",
        RELEASED,
        _DIED,
        lambda case: not case.facts.began,
    ),
    Rule("the arguments do not fit the function any more", FAILED, (Event.ARGUMENTS,)),
    Rule("JSON cannot hold the result, or it is too large", FAILED, (Event.RESULT,)),
    Rule("the run could not be ended as it should", FAILED, (Event.INTERNAL,)),
    Rule("not started before it expired", FAILED, (Event.EXPIRED,)),
    Rule(
        "no living worker has it `failed_after` seconds after it was first due, if that is set; "
        "see [Settings](settings.md)",
        FAILED,
        (Event.OVERDUE,),
    ),
    Rule("the worker does not know the task, another living worker does", RELEASED, (Event.KNOWN_ELSEWHERE,)),
    Rule(
        "no living worker knows the task",
        RELEASED,
        (Event.UNKNOWN_TASK,),
        delay=_unknown_delay,
        then="`scheduled`, offered again in 5 s, then 10 s, up to 5 minutes, "
        "or as soon as a worker starts that knows it",
    ),
    Rule(
        "the database refused the outcome: a constraint, a trigger",
        FAILED,
        (Event.REFUSED,),
        charge=1,
        then="`failed`; see [Operating](operating.md#when-the-database-refuses-an-outcome)",
    ),
    Rule(
        "`RetryLater`",
        RETRY,
        (Event.RETRY_LATER,),
        delay=lambda case: case.facts.wait,
        then="`scheduled`, after its seconds",
    ),
    Rule("`Fail`", FAILED, (Event.FAIL,), charge=1),
    Rule(
        "an exception in `never`",
        FAILED,
        (Event.RAISED, Event.TIMEOUT),
        lambda case: case.facts.never,
        charge=1,
    ),
    Rule(
        "the task raised, the run took longer than its `timeout`, or its process died",
        RETRY,
        (Event.RAISED, Event.TIMEOUT, Event.CHILD_DIED),
        charge=1,
        delay=lambda case: case.retry.delay(case.facts.failures + 1),
        then="`scheduled`, tried again after the wait that the policy says",
    ),
    Rule(
        "the database refused the failure, too, and then its worker ended",
        RETRY,
        (Event.UNWRITABLE,),
        charge=1,
        delay=lambda case: 0.0,
        then="tried again at once",
    ),
    Rule(
        "the worker was stopped while the job ran, and the job may run only once",
        FAILED,
        (Event.STOPPED,),
        lambda case: case.facts.began and case.budget == 1,
    ),
    Rule(
        "the worker was stopped, or gave the job back",
        RELEASED,
        (Event.STOPPED, Event.RELEASED),
        delay=lambda case: case.facts.wait,
    ),
    Rule(
        "the worker died while the job ran, and the job may run only once",
        FAILED,
        _DIED,
        lambda case: case.budget == 1,
        charge=1,
    ),
    Rule(
        "the worker died, the first time", RELEASED, _DIED, lambda case: case.facts.deaths == 0, isolates=True
    ),
    Rule(
        "the worker died, the second time: for both deaths",
        RELEASED,
        _DIED,
        lambda case: case.facts.deaths == 1,
        charge=2,
        isolates=True,
    ),
    Rule("the worker died again", RELEASED, _DIED, charge=1, isolates=True),
)


def _rule(case: _Case) -> Rule:
    for rule in RULES:
        if (not rule.events or case.event in rule.events) and rule.when(case):
            return rule
    raise LookupError(f"endings.RULES has no rule for {case.event!r}")


def decide(event: Event, facts: Facts, retry: Retry) -> Verdict:
    """What becomes of a claim to which this happened."""
    case = _Case(event, facts, retry)
    rule = _rule(case)
    left = case.budget - facts.failures
    charge = min(rule.charge, max(1, left))  # never "3 of 2 attempts"
    if rule.needs_budget and rule.charge >= left:
        return Verdict(FAILED, charge, kind=_kind(event, FAILED))
    isolate = _isolation(case) if rule.isolates else 0
    kind = None if facts.lost else _kind(event, rule.ending)
    return Verdict(rule.ending, charge, rule.delay(case), isolate, kind)


def _kind(event: Event, ending: Ending) -> str | None:
    if ending is CANCELLED and event in (*_NO_ERRORS, Event.CHILD_DIED):  # a child that was killed for it
        return "cancelled"
    if event in _NO_ERRORS and ending is not FAILED:
        return None
    return _SAME_TO_USERS.get(event, event).value


def budget(max_attempts: int | None, retry: Retry) -> int:
    """How many attempts a job has: its own number, or what its task's policy says."""
    return max_attempts or retry.max_attempts


def table() -> str:
    """The rules for people, as Markdown."""
    costs = {0: "nothing", 1: "one attempt", 2: "two attempts"}
    lines = [f"| {rule.what} | {costs[rule.charge]} | {_then(rule)} |" for rule in RULES]
    return "\n".join(["| What happened | Costs | Then |", "|---|---|---|", *lines])


def _then(rule: Rule) -> str:
    back = "back in its queue, at its old position" if rule.ending is RELEASED else f"`{rule.ending}`"
    alone = "; it runs alone next time" if rule.isolates else ""
    failed = "; `failed` if no attempt is left" if rule.needs_budget else ""
    return (rule.then or back) + alone + failed
