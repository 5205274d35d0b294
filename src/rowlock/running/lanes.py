"""Threads for the transactions of async tasks: each has one of its own, and only so many are open at once.

A statement may wait for a lock that another run holds. If both had to share a few threads, that one could not
go on, and with a connection for each of a thousand coroutines a server would have none left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from rowlock.stores.base import on_behalf_of

T = TypeVar("T")
_AT_ONCE = 16  # transactions of one event loop; the others wait for their turn, and hold nothing
_GRACE = 2.0  # seconds that a statement may take to end after its run was cancelled

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Lane:
    """One transaction's thread; entered on the event loop, left from anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore) -> None:
        self._loop = loop
        self._slots = slots
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rowlock-transaction")
        self._lock = threading.Lock()
        self._open = True

    @classmethod
    async def enter(cls) -> Lane:
        """Wait for a place."""
        loop = asyncio.get_running_loop()
        slots = _slots.setdefault(loop, asyncio.Semaphore(_AT_ONCE))
        await slots.acquire()
        return cls(loop, slots)

    def leave(self) -> None:
        """Make room for the next."""
        with self._lock:
            if not self._open:
                return
            self._open = False
        self._executor.shutdown(wait=False)
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._slots.release)

    async def run(self, function: Callable[..., T], *given: Any, stop: Callable[[], None] | None = None) -> T:
        """Call it in the thread, to its end: a cancel is heeded after that, and `stop` may bring it about."""
        told, result = await self._to_the_end(function, given, stop)
        if told is not None:
            result.exception()  # of no interest any more
            raise told
        return result.result()

    async def finish(self, function: Callable[..., T], *given: Any) -> T:
        """Call what ends the transaction: whether a cancel comes meanwhile makes no difference."""
        _, result = await self._to_the_end(function, given, None)
        return result.result()

    async def _to_the_end(
        self, function: Callable[..., T], given: tuple[Any, ...], stop: Callable[[], None] | None
    ) -> tuple[asyncio.CancelledError | None, asyncio.Future[T]]:
        context = copy_context()
        context.run(on_behalf_of.set, threading.get_ident())
        work = partial(context.run, function, *given)
        future = asyncio.ensure_future(self._loop.run_in_executor(self._executor, work))
        told: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future}, timeout=_GRACE if told and stop else None)
                if told and stop and not future.done():
                    # In no executor: they take nothing any more once the interpreter waits for their threads.
                    threading.Thread(target=stop, name="rowlock-transaction-stop", daemon=True).start()
                    stop = None
            except asyncio.CancelledError as error:
                told = error
        return told, future
