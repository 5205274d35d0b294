"""`ctx.checkpoint()`: a commit in the middle of a run, if and only if its claim is still held.

Opens and commits a transaction per block; what the fence is, the store knows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
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


def _turns_of(context: JobContext) -> _Turns:
    with _turns_lock:
        return _turns.setdefault(context, _Turns())


class Checkpoint:
    """What `ctx.checkpoint()` returns: a `with` block, or an `async with` block in an async task."""

    def __init__(self, context: JobContext, given: object | None) -> None:
        self._context = context
        self._given = given
        self._turns = _turns_of(context)
        self._transaction: Transaction | None = None
        self._progress: Progress | None = None  # what the run had said before the block

    def __enter__(self) -> Any:
        refuse_on_event_loop(self._context.task, "ctx.checkpoint()")
        self._turns.threads.acquire()
        try:
            transaction = self._context.begin_transaction(self._given, checkpoint=True)
            try:
                transaction.begin()
            except BaseException:
                transaction.abort()
                raise
        except BaseException:
            self._turns.threads.release()
            raise
        self._transaction = transaction
        self._progress = self._context.progress_said
        return transaction.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction = self._entered()
        try:
            if error is not None:
                self._context.progress_said = self._progress
                transaction.abort()
            else:
                with self._reported() as report:
                    transaction.checkpoint(report)
        finally:
            self._turns.threads.release()

    async def __aenter__(self) -> Any:
        turns, task = self._turns, asyncio.current_task()
        if turns.owner is task:
            raise ConfigurationError("ctx.checkpoint() inside of another: end its block first")
        await turns.coroutines.acquire()
        turns.owner = task
        try:
            transaction = await self._aopen()
            try:
                await transaction.abegin()
            except BaseException:
                await transaction.aabort()
                raise
        except BaseException:
            self._leave()
            raise
        self._transaction = transaction
        self._progress = self._context.progress_said
        return AsyncConnection(transaction) if self._given is None else self._given

    async def _aopen(self) -> Transaction:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction = self._entered()
        try:
            if error is not None:
                self._context.progress_said = self._progress
                await transaction.aabort()
            else:
                with self._reported() as report:
                    await transaction.acheckpoint(report)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._turns.owner = None
        self._turns.coroutines.release()

    def _entered(self) -> Transaction:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            raise ConfigurationError("ctx.checkpoint() is a `with` block: enter it once")
        return transaction

    @contextmanager
    def _reported(self) -> Iterator[Report | None]:
        """What the run has said so far, to be committed with the rows."""
        context = self._context
        report = context.take_report(final=True)
        try:
            yield report
        except BaseException as error:
            if isinstance(error, ClaimLost):
                context.lost = True
            elif report is not None:
                context.give_back(msgspec.structs.replace(report, progress=self._progress))
            raise
