"""One claim to one outcome: convert the arguments, call the task's function, encode the result.

Small steps that return values; no store, no threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from rowlock import claim_outcomes, codec
from rowlock.asynchronous import acquire, at_once
from rowlock.endings import Event
from rowlock.error_text import describe, headline, storable
from rowlock.errors import CancelRequested, ClaimLost, InvalidPayload
from rowlock.execution.context import JobContext, current
from rowlock.execution.hooks import Hook, enter, is_async, leave
from rowlock.execution.residents import Residents
from rowlock.job import Ending, Outcome
from rowlock.retry import DEFAULT
from rowlock.task import Runnable

log = logging.getLogger("rowlock.run")


class Executor:
    """Runs the claims of one process: with its hooks and residents, and a limit to the size of results."""

    def __init__(self, hooks: Sequence[Hook], max_result_bytes: int, residents: Residents) -> None:
        self._hooks = hooks
        self._max_result_bytes = max_result_bytes
        self.residents = residents

    def execute(self, task: Runnable | None, context: JobContext) -> Outcome:
        """Run the claim of this context and say what it came to; never raises."""
        locks = self.residents.locks(task) if task is not None and task.residents else ()
        for lock in locks:
            lock.acquire()
        token = context.begin()
        try:
            if task is None:
                outcome = claim_outcomes.put_off(context.job)
            elif not self._hooks:
                outcome = self._run(task, context, on_loop=False)
            elif task.is_async and any(map(is_async, self._hooks)):  # in a child process
                outcome = asyncio.run(self._run_hooked(task, context, on_loop=True))
            else:
                outcome = at_once(self._run_hooked(task, context, on_loop=False))
        except BaseException as error:
            outcome = _internal(error, task, context)
        finally:
            current.reset(token)
            for lock in locks:
                lock.release()
        return finished(context, outcome)

    async def execute_async(self, task: Runnable | None, context: JobContext) -> Outcome:
        """The same on an event loop; cancelling it ends the run as cancelled, late or lost."""
        if task is None:  # nothing is awaited
            return self.execute(None, context)
        held: list[threading.Lock] = []
        token = context.begin()
        try:
            for lock in self.residents.locks(task):
                await acquire(lock, on_loop=True)
                held.append(lock)
            outcome = await self._run_hooked(task, context, on_loop=True)
        except asyncio.CancelledError as error:  # before it had begun
            outcome = _after_error(error, task, context)
        except GeneratorExit:
            raise
        except BaseException as error:
            outcome = _internal(error, task, context)
        finally:
            current.reset(token)
            for lock in held:
                lock.release()
        return finished(context, outcome)

    async def _run_hooked(self, task: Runnable, context: JobContext, on_loop: bool) -> Outcome:
        """Run it inside its hooks; without an event loop nothing is awaited."""
        hooks = self._hooks if on_loop else [hook for hook in self._hooks if not is_async(hook)]
        entered, error = await enter(context, hooks)
        if error is not None:
            outcome = _after_error(error, task, context)
        else:
            ran = self._run(task, context, on_loop)
            outcome = ran if isinstance(ran, Outcome) else await ran
        await leave(context, entered, outcome)
        return outcome

    # -- the call itself -------------------------------------------------------------------------

    def _run(self, task: Runnable, context: JobContext, on_loop: bool) -> Any:
        """The outcome; on an event loop, of an async function, what has to be awaited for it."""
        try:
            args, kwargs = task.binding.arguments(context.job.args_json)
        except Exception as error:  # it would fail the same way each time, so it costs no attempt
            return claim_outcomes.ended(context.job, Event.ARGUMENTS, task.retry, str(error))
        if task.binding.takes_context:
            args.insert(0, context)
        if task.residents:
            kwargs.update(self.residents.values(task))
        try:
            result = task.function(*args, **kwargs)
            if result is not None and hasattr(result, "__await__"):
                awaited = self._awaited(result, task, context)
                return awaited if on_loop else asyncio.run(awaited)
        except BaseException as error:
            outcome = _after_error(error, task, context)
        else:
            outcome = self._returned(result, task, context)
        if context.open_transaction is None:
            return outcome
        return at_once(_settled(outcome, task, context, on_loop=False))

    async def _awaited(self, result: Any, task: Runnable, context: JobContext) -> Outcome:
        """Its transaction is settled here, while the event loop still runs: it may need that."""
        try:
            outcome = self._returned(await result, task, context)
        except GeneratorExit:
            raise
        except BaseException as error:
            outcome = _after_error(error, task, context)
        return await _settled(outcome, task, context, on_loop=True)

    def _returned(self, result: Any, task: Runnable, context: JobContext) -> Outcome:
        if result is None:  # as most tasks do: 0.8 us less
            return context.job.ended(Ending.COMPLETED, result="null")
        try:
            text = codec.encode(result, f"the result of {task.name}", self._max_result_bytes)
        except Exception as error:  # whatever a model raises when it is asked for its JSON
            reason = str(error) if isinstance(error, InvalidPayload) else describe(error)
            return claim_outcomes.ended(context.job, Event.RESULT, task.retry, storable(reason))
        pause = isinstance(result, claim_outcomes.Answers) and result.pause
        return context.job.ended(Ending.COMPLETED, result=text, pause=pause)


# -- what it came to -----------------------------------------------------------------------------


async def _settled(outcome: Outcome, task: Runnable, context: JobContext, on_loop: bool) -> Outcome:
    """The outcome after the end of the run's transaction, if it has one: what is refused there counts."""
    if (transaction := context.open_transaction) is None:
        return outcome
    try:
        return await transaction.settle(outcome, on_loop)
    except ClaimLost as error:
        log.warning("%s", error)
        return msgspec.structs.replace(outcome, written=True, lost=True)
    except BaseException as error:
        return _after_error(error, task, context)


def _after_error(error: BaseException, task: Runnable, context: JobContext) -> Outcome:
    if isinstance(error, asyncio.CancelledError):
        # If this worker did not cancel the coroutine, the task itself did.
        asked = CancelRequested(claim_outcomes.CANCELLED) if context.cancelled else context.why_over()
        error = asked or error
    return claim_outcomes.after_error(
        context.job, error, task.retry, cancel_requested=context.cancelled, lost=context.lost
    )


def _internal(error: BaseException, task: Runnable | None, context: JobContext) -> Outcome:
    """A run without an outcome would stay running for ever."""
    log.error("%s: its run could not be ended properly", context.job.title, exc_info=error)
    retry = task.retry if task is not None else DEFAULT
    return claim_outcomes.ended(context.job, Event.INTERNAL, retry, storable(describe(error)))


def finished(context: JobContext, outcome: Outcome) -> Outcome:
    """The outcome with its times; what somebody may want to look at is logged."""
    claim = context.job
    if outcome.ending is not Ending.COMPLETED:
        _log(context, outcome)
    # In place, before anybody else has seen it: a copy of all fields would cost 0.6 us more.
    force_setattr(outcome, "run_seconds", time.monotonic() - (context.began or 0.0))
    force_setattr(outcome, "wait_seconds", max(0.0, claim.taken - claim.due))
    return outcome


def _log(context: JobContext, outcome: Outcome) -> None:
    title = context.job.title
    reason = headline(outcome.error) or ("its claim was lost" if context.lost else "")
    if outcome.ending is Ending.FAILED:
        log.error("%s failed: %s", title, outcome.error)
    elif outcome.ending is Ending.RETRY and outcome.charge:
        log.warning(
            "%s, attempt %d: %s; again in %.1f s", title, context.attempt, reason, outcome.delay or 0.0
        )
    elif outcome.ending is Ending.RELEASED:
        log.warning("%s was given back: %s", title, reason)
