"""`ctx.checkpoint()`: a commit in the middle of a run, if and only if its claim is still held.

Opens and commits a transaction per block; what the fence is, the store knows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from rowlock.errors import ClaimLost, ConfigurationError
from rowlock.execution.context import JobContext
from rowlock.execution.transaction import AsyncConnection, Transaction, open_in_thread, refuse_on_event_loop
from rowlock.job import Progress, Report


class _Turns:
    """Checkpoints of one run that are asked for side by side, by its threads or coroutines, take turns."""

    def __init__(self) -> None:
        self.threads = threading.RLock()
        self.coroutines = asyncio.Lock()
        self.owner: object = None  # the coroutine's task that has its turn


_turns: WeakKeyDictionary[JobContext, _Turns] = WeakKeyDictionary()
_turns_lock = threading.Lock()


class Checkpoint:
    """What `ctx.checkpoint()` returns: a `with` block, or an `async with` block in an async task."""

    def __init__(self, context: JobContext, given: object | None) -> None:
        self._context = context
        self._given = given
        with _turns_lock:
            self._turns = _turns.setdefault(context, _Turns())

    def __enter__(self) -> Any:
        block = self._blocking()
        entered = block.__enter__()
        self._block = block  # not before it has its turn: others may wait to enter the same one
        return entered

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)

    async def __aenter__(self) -> Any:
        block = self._on_event_loop()
        entered = await block.__aenter__()
        self._async_block = block
        return entered

    async def __aexit__(self, *error: Any) -> None:
        await self._async_block.__aexit__(*error)

    @contextmanager
    def _blocking(self) -> Iterator[Any]:
        context = self._context
        refuse_on_event_loop(context.task, "ctx.checkpoint()")
        with self._turns.threads:
            transaction = context.begin_transaction(self._given, checkpoint=True)
            before = context.progress_said
            try:
                transaction.begin()
                yield transaction.connection
            except BaseException:
                # Else an attempt that goes on from its progress would skip what is undone here.
                context.progress_said = before
                transaction.abort()
                raise
            with self._report(before) as report:
                transaction.checkpoint(report)

    @asynccontextmanager
    async def _on_event_loop(self) -> AsyncIterator[Any]:
        context, turns, task = self._context, self._turns, asyncio.current_task()
        if turns.owner is task:
            raise ConfigurationError("ctx.checkpoint() inside of another: end its block first")
        async with turns.coroutines:
            turns.owner = task
            try:
                transaction = await self._opened()
                before = context.progress_said
                try:
                    await transaction.abegin()
                    yield AsyncConnection(transaction) if self._given is None else self._given
                except BaseException:
                    context.progress_said = before
                    await transaction.aabort()
                    raise
                with self._report(before) as report:
                    await transaction.acheckpoint(report)
            finally:
                turns.owner = None

    async def _opened(self) -> Transaction:
        context = self._context
        # In a thread: it waits for reports that are being written, which may wait for a lock that another
        # coroutine of this event loop holds.
        opening: asyncio.Future[Transaction] = asyncio.ensure_future(
            open_in_thread(context, checkpoint=True)
            if self._given is None
            else asyncio.to_thread(context.begin_transaction, self._given, True)
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.gather(opening, return_exceptions=True)
            opened = context.open_transaction
            if opened is not None and opened.is_checkpoint:
                await opened.aabort()
            raise

    @contextmanager
    def _report(self, before: Progress | None) -> Iterator[Report | None]:
        """What the run has said so far, to be committed with the rows; `before`: what it had said before."""
        context = self._context
        report = context.take_report(final=True)
        try:
            yield report
        except BaseException as error:
            if isinstance(error, ClaimLost):
                context.lost = True
            elif report is not None:
                context.give_back(msgspec.structs.replace(report, progress=before))
            raise
