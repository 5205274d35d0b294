"""Several rows in one run: how a function's answer is taken apart, so that each row is settled on its own.

In between, the answer is JSON like any result: for each row ["ok", value] or ["error", text, event, never,
wait].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import msgspec

from rowlock.consumers.row import Row
from rowlock.endings import Event, Facts, event_of, settled, text_of
from rowlock.errors import Fail, RetryLater
from rowlock.job import Ending, Outcome
from rowlock.retry import Retry

Member = tuple[int, int]  # a claim of the batch, and its failures so far


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
    """The argument that holds the rows: a list of nothing else."""
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
    return [_answer(one, retry) for one in result]


def _answer(value: Any, retry: Retry) -> list[Any]:
    if not isinstance(value, BaseException):
        return ["ok", value]
    wait = value.seconds if isinstance(value, RetryLater) else None
    return ["error", text_of(value), event_of(value), isinstance(value, retry.never), wait]


def taken_apart(outcome: Outcome, members: Sequence[Member], retry: Retry) -> list[Outcome]:
    """What the outcome of a batch is for each of its rows."""
    answers = [] if outcome.result is None else msgspec.json.decode(outcome.result)
    if outcome.ending is not Ending.COMPLETED or len(answers) != len(members):
        return [msgspec.structs.replace(outcome, id=claim, claim=claim) for claim, _ in members]
    return [
        _one(outcome, claim, failures, answer, retry)
        for (claim, failures), answer in zip(members, answers, strict=True)
    ]


def _one(outcome: Outcome, claim: int, failures: int, answer: list[Any], retry: Retry) -> Outcome:
    plain = msgspec.structs.replace(outcome, id=claim, claim=claim, result=None)
    if answer[0] == "ok":
        return msgspec.structs.replace(plain, result=msgspec.json.encode(answer[1]).decode())
    _, said, event, never, wait = answer
    facts = Facts(failures=failures, never=never, wait=wait)
    return settled(plain, Event(event), facts, retry, said)
