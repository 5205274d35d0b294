"""One claim to one outcome: resolve the task, convert the arguments, call, encode the result.

Small steps that return values; no store, no threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from rowlock import claim_outcomes, codec
from rowlock.claim_outcomes import put_off
from rowlock.endings import Event
from rowlock.error_text import describe, headline, storable
from rowlock.errors import CancelRequested, ClaimLost, InvalidPayload, RunTimedOut
from rowlock.execution import hooks as async_hooks
from rowlock.execution.context import JobContext
from rowlock.execution.hooks import Hook as Hook
from rowlock.execution.residents import Residents
from rowlock.job import Claim, Ending, Outcome
from rowlock.retry import DEFAULT
from rowlock.task import Task

log = logging.getLogger("rowlock.run")
T = TypeVar("T")

_NONE = Residents()
_LOOK_AGAIN = 0.005  # seconds between looks of a coroutine at a resident that another run uses


def execute(
    claim: Claim,
    task: Task[..., Any] | None,
    context: JobContext,
    hooks: Sequence[Hook],
    limit: int,
    residents: Residents = _NONE,
) -> Outcome:
    """Run the claim and say what it came to; never raises."""
    locks = residents.locks(task) if task is not None and task.residents else ()
    for lock in locks:
        lock.acquire()
    token = context.begin()
    try:
        if task is None:
            outcome = put_off(claim)
        elif not hooks:
            outcome = _run(claim, task, context, limit, residents)
        elif task.is_async and any(map(async_hooks.is_async, hooks)):  # in a child process
            outcome = asyncio.run(_run_hooked(claim, task, context, hooks, limit, residents))
        else:
            plain = [hook for hook in hooks if not async_hooks.is_async(hook)]
            entered, error = _at_once(async_hooks.enter(claim, context, plain))
            outcome = (
                _run(claim, task, context, limit, residents)
                if error is None
                else _after_error(claim, error, task, context)
            )
            _at_once(async_hooks.leave(claim, entered, outcome))
    except BaseException as error:
        outcome = _internal(claim, error, task)
    finally:
        context.end(token)
        for lock in locks:
            lock.release()
    return _measured(claim, context, outcome)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that has nothing to wait for: the plain hooks go through it, too."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("a plain hook waits for nothing")


async def execute_async(
    claim: Claim,
    task: Task[..., Any],
    context: JobContext,
    hooks: Sequence[Hook],
    limit: int,
    residents: Residents = _NONE,
) -> Outcome:
    """The same on an event loop; cancelling it ends the run as cancelled, late or lost."""
    held: list[Any] = []
    token = context.begin()
    try:
        for lock in residents.locks(task) if task.residents else ():
            await _acquired(lock)
            held.append(lock)
        outcome = await _run_hooked(claim, task, context, hooks, limit, residents)
    except asyncio.CancelledError:  # before it had begun
        outcome = _after_error(claim, _why_cancelled(context), task, context)
    except GeneratorExit:
        raise
    except BaseException as error:
        outcome = _internal(claim, error, task)
    finally:
        context.end(token)
        for lock in held:
            lock.release()
    return _measured(claim, context, outcome)


async def _acquired(lock: threading.Lock) -> None:
    # Runs in threads may hold it, too, so no lock of the event loop would do.
    while not lock.acquire(blocking=False):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_AGAIN)


def _measured(claim: Claim, context: JobContext, outcome: Outcome) -> Outcome:
    if outcome.ending is not Ending.COMPLETED:
        _log(claim, outcome, context.lost)
    # In place, before anybody else has seen it: a copy of all fields would cost 0.6 us more.
    force_setattr(outcome, "run_seconds", time.monotonic() - (context.began or 0.0))
    force_setattr(outcome, "wait_seconds", max(0.0, claim.taken - claim.due))
    return outcome


def _after_error(claim: Claim, error: BaseException, task: Task[..., Any], context: JobContext) -> Outcome:
    return claim_outcomes.after_error(
        claim, error, task.retry, cancel_requested=context.cancelled, lost=context.lost
    )


def _internal(claim: Claim, error: BaseException, task: Task[..., Any] | None) -> Outcome:
    """A run without an outcome would stay running for ever."""
    log.error("%s: its run could not be ended properly", claim.title, exc_info=error)
    retry = task.retry if task is not None else DEFAULT
    return claim_outcomes.ended(claim, Event.INTERNAL, retry, storable(describe(error)))


def _log(claim: Claim, outcome: Outcome, lost: bool) -> None:
    """A line for what somebody may want to look at; nothing for the usual."""
    reason = headline(outcome.error) or ("its claim was lost" if lost else "")
    if outcome.ending is Ending.FAILED:
        log.error("%s failed: %s", claim.title, outcome.error)
    elif outcome.ending is Ending.RETRY and outcome.charge:
        attempt, wait = claim.failures + 1, outcome.delay or 0.0
        log.warning("%s, attempt %d: %s; again in %.1f s", claim.title, attempt, reason, wait)
    elif outcome.ending is Ending.RELEASED:
        log.warning("%s was given back: %s", claim.title, reason)


# -- the call itself -----------------------------------------------------------------------------


def _run(
    claim: Claim, task: Task[..., Any], context: JobContext, limit: int, residents: Residents
) -> Outcome:
    prepared = _prepared(claim, task, context, residents)
    if isinstance(prepared, Outcome):
        return prepared
    args, kwargs = prepared
    try:
        result = task.function(*args, **kwargs)
        if hasattr(result, "__await__"):
            return asyncio.run(_awaited(result, claim, task, context, limit))
    except BaseException as error:
        outcome = _after_error(claim, error, task, context)
    else:
        outcome = _returned(result, claim, task, limit)
    if (transaction := context.open_transaction) is None:
        return outcome
    with _Settling(claim, task, context, outcome) as settling:
        settling.outcome = transaction.settle(outcome, settling.report)
    return settling.outcome


async def _run_hooked(
    claim: Claim,
    task: Task[..., Any],
    context: JobContext,
    hooks: Sequence[Hook],
    limit: int,
    residents: Residents,
) -> Outcome:
    if not hooks:
        return await _run_async(claim, task, context, limit, residents)
    entered, error = await async_hooks.enter(claim, context, hooks)
    if error is None:
        outcome = await _run_async(claim, task, context, limit, residents)
    else:
        asked = isinstance(error, asyncio.CancelledError)
        outcome = _after_error(claim, _why_cancelled(context) if asked else error, task, context)
    await async_hooks.leave(claim, entered, outcome)
    return outcome


async def _run_async(
    claim: Claim, task: Task[..., Any], context: JobContext, limit: int, residents: Residents
) -> Outcome:
    prepared = _prepared(claim, task, context, residents)
    if isinstance(prepared, Outcome):
        return prepared
    args, kwargs = prepared
    try:
        result = task.function(*args, **kwargs)
    except BaseException as error:
        return _after_error(claim, error, task, context)
    if not hasattr(result, "__await__"):
        return _returned(result, claim, task, limit)
    return await _awaited(result, claim, task, context, limit)


def _prepared(
    claim: Claim, task: Task[..., Any], context: JobContext, residents: Residents
) -> tuple[list[Any], dict[str, Any]] | Outcome:
    """The arguments of the call; or the outcome, if they do not fit."""
    try:
        args, kwargs = task.binding.arguments(claim.args_json)
    except Exception as error:  # it would fail the same way each time, so it costs no attempt
        return claim_outcomes.ended(claim, Event.ARGUMENTS, task.retry, str(error))
    if task.binding.takes_context:
        args.insert(0, context)
    if task.residents:
        kwargs.update(residents.values(task))
    return args, kwargs


async def _awaited(
    result: Any, claim: Claim, task: Task[..., Any], context: JobContext, limit: int
) -> Outcome:
    """Its transaction is settled here, while the event loop still runs: it may need that."""
    try:
        outcome = _returned(await result, claim, task, limit)
    except asyncio.CancelledError as error:
        asked = context.cancelled or context.lost or context.is_late
        outcome = _after_error(claim, _why_cancelled(context) if asked else error, task, context)
    except GeneratorExit:
        raise
    except BaseException as error:
        outcome = _after_error(claim, error, task, context)
    if (transaction := context.open_transaction) is None:
        return outcome
    with _Settling(claim, task, context, outcome) as settling:
        settling.outcome = await transaction.asettle(outcome, settling.report)
    return settling.outcome


def _why_cancelled(context: JobContext) -> BaseException:
    """What the cancelled coroutine was told by it."""
    if context.cancelled:
        return CancelRequested(claim_outcomes.CANCELLED)
    if context.lost:
        return ClaimLost(claim_outcomes.lost(context.claim, context.job.title))
    return RunTimedOut(claim_outcomes.timed_out(context.timeout or 0.0))


class _Settling:
    """The end of a run's transaction: what the fence or the database refuses becomes the run's outcome."""

    def __init__(self, claim: Claim, task: Task[..., Any], context: JobContext, outcome: Outcome) -> None:
        self._claim = claim
        self._task = task
        self._context = context
        self.outcome = outcome
        completed = outcome.ending is Ending.COMPLETED
        self.report = context.take_report(final=True) if completed else None

    def __enter__(self) -> _Settling:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            return False
        if isinstance(error, ClaimLost):
            log.warning("%s", error)
            self.outcome = msgspec.structs.replace(self.outcome, written=True, lost=True)
            return True
        if self.report is not None:
            self._context.give_back(self.report)
        self.outcome = _after_error(self._claim, error, self._task, self._context)
        return True


def _returned(result: Any, claim: Claim, task: Task[..., Any], limit: int) -> Outcome:
    try:
        text = codec.encode(result, f"the result of {task.name}", limit)
    except Exception as error:  # whatever a model raises when it is asked for its JSON
        reason = str(error) if isinstance(error, InvalidPayload) else describe(error)
        return claim_outcomes.ended(claim, Event.RESULT, task.retry, storable(reason))
    pause = isinstance(result, claim_outcomes.Answers) and result.pause
    return claim.ended(Ending.COMPLETED, result=text, pause=pause)
