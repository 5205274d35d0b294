"""One body for callers with an event loop and for those without: what either kind needs for that.

No call has a second body here; what a call does is written where it is defined.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
_LOOK_AGAIN_SECONDS = 0.005  # of a coroutine at a lock that somebody else holds


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a thread, with the caller's context variables."""
    import asyncio  # here, so that `import rowlock` stays light

    return await asyncio.to_thread(function, *args, **kwargs)


def awaited(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The async twin of a method: the same parameters, the same answer."""
    name = verb.__name__

    @wraps(verb)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        method: Callable[P, R] = getattr(self, name)  # a subclass may have its own
        return await in_thread(method, *args, **kwargs)

    twin.__name__, twin.__doc__ = f"a{name}", f"`{name}` for async callers."
    twin.__qualname__ = f"{verb.__qualname__.removesuffix(name)}a{name}"
    return twin


def at_once(coroutine: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns that has nothing to wait for, because its caller has no event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: R = end.value
        return value
    raise AssertionError("it waits for something, and there is no event loop")


async def acquire(lock: threading.Lock, on_loop: bool) -> None:
    """Acquire a lock that threads use, too, so that no lock of the event loop would do."""
    if not on_loop:
        lock.acquire()
        return
    import asyncio

    while not lock.acquire(blocking=False):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
