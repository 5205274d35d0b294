"""The generators of `@app.around` around a run: plain ones and async ones, in one order.

An async generator has no place around a plain function; `execute.py` leaves it out there.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, cast

import msgspec

from rowlock.execution.context import JobContext
from rowlock.job import Outcome

log = logging.getLogger("rowlock.run")

# A generator is sent the outcome; most hooks are annotated by what they yield.
Hook = Callable[[JobContext], Iterator[None] | AsyncIterator[None]]
Entered = list[Generator[None, Outcome, None] | AsyncGenerator[None, Outcome]]


def is_async(hook: Hook) -> bool:
    """Whether it is an async generator, for async tasks and consumers alone."""
    return inspect.isasyncgenfunction(hook)


async def enter(context: JobContext, hooks: Sequence[Hook]) -> tuple[Entered, BaseException | None]:
    """The hooks that were entered, and what one of them raised instead."""
    entered: Entered = []
    try:
        for hook in hooks:
            generator: Any = hook(context)
            if isinstance(generator, AsyncGenerator):
                await anext(cast("AsyncGenerator[None, Outcome]", generator))
            else:
                next(generator)
            entered.append(generator)
    except asyncio.CancelledError as error:
        return entered, error
    except GeneratorExit:
        raise
    except BaseException as error:
        log.exception("%s: a hook raised before the run", context.job.title)
        return entered, error
    return entered, None


async def leave(context: JobContext, entered: Entered, outcome: Outcome) -> None:
    """Tell them the outcome, the last one first; what they raise changes nothing about it."""
    if not entered:
        return
    theirs = msgspec.structs.replace(outcome)  # to keep: ours is completed in place
    for generator in reversed(entered):
        try:
            if isinstance(generator, AsyncGenerator):
                await generator.asend(theirs)
                await generator.aclose()
            else:
                generator.send(theirs)
                generator.close()
        except (StopIteration, StopAsyncIteration):
            continue
        except GeneratorExit:
            raise
        except BaseException:
            log.exception("%s: a hook raised after the run", context.job.title)
        else:
            log.error("%s: a hook yielded more than once", context.job.title)
