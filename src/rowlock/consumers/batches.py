"""Several rows in one run: splits a function's answer, so that each row is settled on its own.

Until then it is JSON like any result: for each row ["ok", value] or ["error", text, event, facts].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import msgspec

from rowlock.claim_outcomes import Answers, asked_by, decided, event_of, text_of
from rowlock.codec import json_text
from rowlock.consumers.row import Row, key_text, own_budget
from rowlock.endings import Event, Facts
from rowlock.errors import Fail, RetryLater
from rowlock.job import Ending, Outcome
from rowlock.retry import Retry


def answering_each(function: Callable[..., Any], retry: Retry, is_async: bool) -> Callable[..., Any]:
    """The function, with an answer for each row instead of one for all."""

    @wraps(function)
    def each(*args: Any, **kwargs: Any) -> list[Any]:
        return _answers(function(*args, **kwargs), _rows(args, kwargs), retry)

    @wraps(function)
    async def each_async(*args: Any, **kwargs: Any) -> list[Any]:
        return _answers(await function(*args, **kwargs), _rows(args, kwargs), retry)

    return each_async if is_async else each


def _rows(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Row]:
    """The argument that holds the rows: the only list in which every item is a Row."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, list) and value and all(isinstance(one, Row) for one in value):
            return value
    raise AssertionError("no rows among the arguments")


def _answers(result: Any, rows: list[Row], retry: Retry) -> list[Any]:
    if result is None:
        return [["ok", None]] * len(rows)
    if not isinstance(result, (list, tuple)) or len(result) != len(rows):
        size = len(result) if isinstance(result, (list, tuple)) else type(result).__name__
        raise Fail(f"a batch of {len(rows)} rows needs a list of as many answers (or None), not {size}")
    answers = Answers(_answer(one, retry) for one in result)
    answers.pause = any(isinstance(one, RetryLater) and one.pause for one in result)
    return answers


def _answer(value: Any, retry: Retry) -> list[Any]:
    if not isinstance(value, BaseException):
        return ["ok", value]
    return ["error", text_of(value), event_of(value), asked_by(value, retry)]


def taken_apart(outcome: Outcome, members: Sequence[Any], retry: Retry) -> list[Outcome]:
    """The outcome of each row of a batch: (claim, key, failures so far, its own max_attempts)."""
    if outcome.single:
        return [outcome]
    answers = [] if outcome.result is None else msgspec.json.decode(outcome.result)
    if outcome.ending is not Ending.COMPLETED or len(answers) != len(members):
        answers = [None] * len(members)  # they all come to the same
    return [_answered(outcome, *one, retry) for one in zip(members, answers, strict=True)]


def _answered(batch: Outcome, member: Sequence[Any], answer: Any, retry: Retry) -> Outcome:
    claim, key, failures, budget = member
    outcome = msgspec.structs.replace(batch, id=claim, claim=claim, single=True, row=key_text(key))
    if answer is None:
        return outcome
    if answer[0] == "ok":
        return msgspec.structs.replace(outcome, result=json_text(answer[1]), pause=False)
    _, said, event, asked = answer
    facts = Facts(failures=failures, max_attempts=own_budget(budget), **asked)
    return decided(outcome, Event(event), facts, retry, said)
