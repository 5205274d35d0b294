"""Threads for the transactions of async tasks: each has one of its own, and only so many are open at once.

A statement may wait for a lock that another run holds. If both had to share a few threads, that one could not
go on, and with a connection for each of a thousand coroutines a server would have none left.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from rowlock.errors import ConfigurationError
from rowlock.stores.base import on_behalf_of

T = TypeVar("T")
_AT_ONCE = 16  # transactions of one event loop; the others wait, and hold nothing
_GRACE = 2.0  # seconds that a statement may take to end after its run was cancelled

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_NAME = "rowlock-transaction"
_Work = tuple["Future[Any]", Callable[[], Any]]


class TransactionThread:
    """One transaction's thread; entered on the event loop, left from anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore | None) -> None:
        self._loop = loop
        self._slots = slots
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        # A daemon, unlike an executor's: a server that does not answer must not keep the process from ending.
        threading.Thread(target=_serve, args=(self._work,), name=_NAME, daemon=True).start()

    @classmethod
    async def enter(cls, takes_slot: bool = True) -> TransactionThread:
        """Wait until another transaction may be opened; one on the task's own connection takes no slot."""
        loop = asyncio.get_running_loop()
        if not takes_slot:
            return cls(loop, None)
        slots = _slots.setdefault(loop, asyncio.Semaphore(_AT_ONCE))
        await slots.acquire()
        return cls(loop, slots)

    def leave(self) -> None:
        """Let the next transaction be opened."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._work.put(None)
        if self._slots is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._slots.release)

    async def run(
        self,
        function: Callable[..., T],
        *given: Any,
        stop: Callable[[], None] | None = None,
        heeds_cancel: bool = True,
    ) -> T:
        """Call it in the thread, to its end: a cancel is heeded after that, and `stop` may bring it about.

        What ends the transaction does not heed it: whether a cancel comes meanwhile makes no difference.
        """
        context = copy_context()
        context.run(on_behalf_of.set, threading.get_ident())
        work: Any = partial(context.run, function, *given)
        future: asyncio.Future[T] = asyncio.wrap_future(self._submit(work), loop=self._loop)
        told: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future}, timeout=_GRACE if told and stop else None)
                if told and stop and not future.done():
                    # In no executor: they take nothing any more while the process ends.
                    threading.Thread(target=stop, name="rowlock-transaction-stop", daemon=True).start()
                    stop = None
            except asyncio.CancelledError as error:
                told = error
        if told is not None and heeds_cancel:
            future.exception()  # nobody waits for its result any more
            raise told
        return future.result()

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if not self._open:
                raise ConfigurationError("this transaction is over: use it inside its block")
            self._work.put((future, work))
        return future


def _serve(work_queue: SimpleQueue[_Work | None]) -> None:
    while (one := work_queue.get()) is not None:
        future, work = one
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        del future, work, one


def _wait_at_exit() -> None:
    """Statements of runs that were cancelled just now are broken off soon: else the server would go on."""
    deadline = time.monotonic() + _GRACE + 1.0
    for thread in [one for one in threading.enumerate() if one.name == _NAME]:
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_wait_at_exit)
