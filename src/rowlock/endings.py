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
    """What happened to a claim."""

    RETURNED = "returned"
    CANCELLED = "cancelled"  # the run stopped because it was asked to
    ARGUMENTS = "arguments"
    RESULT = "result"
    INTERNAL = "internal"
    EXPIRED = "expired"
    OVERDUE = "overdue"
    KNOWN_ELSEWHERE = "known elsewhere"  # this worker does not know the task, a living one does
    UNKNOWN_TASK = "unknown task"  # no living worker knows it
    REFUSED = "refused"  # the database refuses to write what it came to
    UNWRITABLE = "unwritable"  # its failure was refused, too, and now its worker has ended
    RETRY_LATER = "retry later"
    FAIL = "fail"
    RAISED = "raised"
    TIMEOUT = "timeout"
    CHILD_DIED = "child died"  # a process of a pool
    STOPPED = "stopped"  # its worker ended in good order
    RELEASED = "released"  # its holder gave it back
    WORKER_DIED = "worker died"

    __str__ = str.__str__


_KINDS: dict[Event, str] = {
    Event.ARGUMENTS: "arguments",
    Event.RESULT: "result",
    Event.INTERNAL: "internal",
    Event.EXPIRED: "expired",
    Event.OVERDUE: "overdue",
    Event.UNKNOWN_TASK: "unknown_task",
    Event.REFUSED: "refused",
    Event.UNWRITABLE: "refused",
    Event.RETRY_LATER: "retry_later",
    Event.FAIL: "fail",
    Event.RAISED: "exception",
    Event.TIMEOUT: "timeout",
    Event.CHILD_DIED: "worker_died",
    Event.WORKER_DIED: "worker_died",
}
_ERRORS = (Event.RAISED, Event.TIMEOUT, Event.CHILD_DIED, Event.UNWRITABLE)
DEATHS = (Event.CHILD_DIED, Event.WORKER_DIED)


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

    def uses_up(self, charge: int) -> bool:
        """Whether this charge leaves nothing of the budget."""
        return self.facts.failures + charge >= self.budget


class Rule(NamedTuple):
    """A line of the table; `what` and `then` are for people."""

    what: str
    then: str
    ending: Ending
    charge: int
    fits: Callable[[_Case], bool]
    delay: Callable[[_Case], float | None] = lambda case: None
    isolate: Callable[[_Case], int] = lambda case: 0


def _on(*events: Event) -> Callable[[_Case], bool]:
    return lambda case: case.event in events


def _died(fits: Callable[[_Case], bool]) -> Callable[[_Case], bool]:
    return lambda case: case.event is Event.WORKER_DIED and fits(case)


def _would_go_back(case: _Case) -> bool:
    """Whether it would come back if nobody had asked to cancel it."""
    asked = msgspec.structs.replace(case.facts, cancel_requested=False)
    return _rule(case._replace(facts=asked)).ending in (Ending.RETRY, Ending.RELEASED)


def _isolation(case: _Case) -> int:
    return max(1, min(math.ceil(case.facts.lived), LONGEST_ISOLATION))


def _unknown_delay(case: _Case) -> float:
    return min(LONGEST_UNKNOWN, _UNKNOWN_FIRST * 2.0 ** min(case.facts.claims - 1, 10))


# The first rule that fits counts.
RULES = (
    Rule(
        "the claim was lost: its worker was declared dead meanwhile",
        "nothing of this run is kept",
        Ending.RELEASED,
        0,
        lambda case: case.facts.lost,
    ),
    Rule("the task returned", "`completed`", Ending.COMPLETED, 0, _on(Event.RETURNED)),
    Rule(
        "a cancel was asked for, and the run stopped, its worker or process died, or it would go back",
        "`cancelled`",
        Ending.CANCELLED,
        0,
        lambda case: (
            case.event is Event.CANCELLED
            or (case.facts.cancel_requested and (case.event in DEATHS or _would_go_back(case)))
        ),
    ),
    Rule(
        "the worker died, and the job had been handed over but had not begun",
        "back in its queue, at its old position",
        Ending.RELEASED,
        0,
        lambda case: case.event is Event.WORKER_DIED and not case.facts.began,
    ),
    Rule(
        "the arguments do not fit the function any more", "`failed`", Ending.FAILED, 0, _on(Event.ARGUMENTS)
    ),
    Rule("JSON cannot hold the result, or it is too large", "`failed`", Ending.FAILED, 0, _on(Event.RESULT)),
    Rule("the run could not be ended as it should", "`failed`", Ending.FAILED, 0, _on(Event.INTERNAL)),
    Rule("not started before it expired", "`failed`", Ending.FAILED, 0, _on(Event.EXPIRED)),
    Rule(
        "no living worker has it `failed_after` seconds after it was first due, if that is set; "
        "see [Settings](settings.md)",
        "`failed`",
        Ending.FAILED,
        0,
        _on(Event.OVERDUE),
    ),
    Rule(
        "the worker does not know the task, another living worker does",
        "back in its queue, at its old position",
        Ending.RELEASED,
        0,
        _on(Event.KNOWN_ELSEWHERE),
    ),
    Rule(
        "no living worker knows the task",
        "`scheduled`, offered again in 5 s, then 10 s, up to 5 minutes, "
        "or as soon as a worker starts that knows it",
        Ending.RELEASED,
        0,
        _on(Event.UNKNOWN_TASK),
        delay=_unknown_delay,
    ),
    Rule(
        "the database refused the outcome: a constraint, a trigger",
        "`failed`; see [Operating](operating.md#when-the-database-refuses-an-outcome)",
        Ending.FAILED,
        1,
        _on(Event.REFUSED),
    ),
    Rule(
        "`RetryLater`",
        "`scheduled`, after its seconds",
        Ending.RETRY,
        0,
        _on(Event.RETRY_LATER),
        delay=lambda case: case.facts.wait,
    ),
    Rule(
        "`Fail`, or an exception in `never`",
        "`failed`",
        Ending.FAILED,
        1,
        lambda case: (
            case.event is Event.FAIL or (case.event in (Event.RAISED, Event.TIMEOUT) and case.facts.never)
        ),
    ),
    Rule(
        "an error (the lines below), and no attempt is left",
        "`failed`",
        Ending.FAILED,
        1,
        lambda case: case.event in _ERRORS and case.uses_up(1),
    ),
    Rule(
        "the task raised, the run took longer than its `timeout`, or its process died",
        "`scheduled`, tried again after the wait that the policy says",
        Ending.RETRY,
        1,
        _on(Event.RAISED, Event.TIMEOUT, Event.CHILD_DIED),
        delay=lambda case: case.retry.delay(case.facts.failures + 1),
    ),
    Rule(
        "the database refused the failure, too, and then its worker ended",
        "tried again at once",
        Ending.RETRY,
        1,
        _on(Event.UNWRITABLE),
        delay=lambda case: 0.0,
    ),
    Rule(
        "the worker was stopped while the job ran, and the job may run only once",
        "`failed`",
        Ending.FAILED,
        0,
        lambda case: case.event is Event.STOPPED and case.facts.began and case.budget == 1,
    ),
    Rule(
        "the worker was stopped, or gave the job back",
        "back in its queue, at its old position",
        Ending.RELEASED,
        0,
        _on(Event.STOPPED, Event.RELEASED),
        delay=lambda case: case.facts.wait,
    ),
    Rule(
        "the worker died while the job ran, and the job may run only once",
        "`failed`",
        Ending.FAILED,
        1,
        _died(lambda case: case.budget == 1),
    ),
    Rule(
        "the worker died, the first time",
        "back in its queue, at its old position; it runs alone next time",
        Ending.RELEASED,
        0,
        _died(lambda case: case.facts.deaths == 0),
        isolate=_isolation,
    ),
    Rule(
        "the worker died, the second time, and no attempt is left",
        "`failed`",
        Ending.FAILED,
        2,
        _died(lambda case: case.facts.deaths == 1 and case.uses_up(2)),
    ),
    Rule(
        "the worker died, the second time: for both deaths",
        "back in its queue, at its old position; it runs alone next time",
        Ending.RELEASED,
        2,
        _died(lambda case: case.facts.deaths == 1),
        isolate=_isolation,
    ),
    Rule(
        "the worker died again, and no attempt is left",
        "`failed`",
        Ending.FAILED,
        1,
        _died(lambda case: case.uses_up(1)),
    ),
    Rule(
        "the worker died again",
        "back in its queue, at its old position; it runs alone next time",
        Ending.RELEASED,
        1,
        _on(Event.WORKER_DIED),
        isolate=_isolation,
    ),
)


def _rule(case: _Case) -> Rule:
    for rule in RULES:
        if rule.fits(case):
            return rule
    raise LookupError(f"endings.RULES has no rule for {case.event!r}")


def decide(event: Event, facts: Facts, retry: Retry) -> Verdict:
    """What becomes of a claim to which this happened."""
    case = _Case(event, facts, retry)
    rule = _rule(case)
    kind = None if facts.lost else _KINDS.get(event)
    if rule.ending is Ending.CANCELLED:
        kind = "cancelled" if event is Event.CHILD_DIED else kind or "cancelled"  # to be killed is to stop
    elif event is Event.STOPPED and rule.ending is Ending.FAILED:
        kind = "worker_stopped"
    charge = min(rule.charge, max(1, case.budget - facts.failures))  # never "3 of 2 attempts"
    return Verdict(rule.ending, charge, rule.delay(case), rule.isolate(case), kind)


def budget(max_attempts: int | None, retry: Retry) -> int:
    """How many attempts a job has: its own number, or what its task's policy says."""
    return max_attempts or retry.max_attempts


def table() -> str:
    """The rules for people, as Markdown."""
    costs = {0: "nothing", 1: "one attempt", 2: "two attempts"}
    lines = [f"| {rule.what} | {costs[rule.charge]} | {rule.then} |" for rule in RULES]
    return "\n".join(["| What happened | Costs | Then |", "|---|---|---|", *lines])
