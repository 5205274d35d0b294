"""The blocks of `ctx.transaction()` and `ctx.checkpoint()`: `with`, or `async with` in an async task.

What they commit or undo is the transaction's business.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from rowlock.asynchronous import acquire, at_once
from rowlock.errors import ConfigurationError
from rowlock.execution.context import BLOCK_IN_CHECKPOINT, JobContext
from rowlock.execution.transaction import AsyncConnection, Transaction
from rowlock.execution.transaction_thread import TransactionThread


class Block:
    """What `ctx.transaction()` returns: such blocks of a run share one transaction, which ends with it."""

    is_checkpoint = False

    def __init__(self, context: JobContext, given: object | None) -> None:
        self._context = context
        self._given = given

    def __enter__(self) -> Any:
        self._refuse_on_event_loop()
        return at_once(self._enter(on_loop=False))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        at_once(self._leave(error, on_loop=False))

    async def __aenter__(self) -> Any:
        return await self._enter(on_loop=True)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(error, on_loop=True)

    async def _enter(self, on_loop: bool) -> Any:
        if on_loop and self._context.open_transaction is None:
            transaction = await self._open_in_thread()
        else:
            transaction = self._context.begin_transaction(self._given, self.is_checkpoint)
        await transaction.begin(on_loop)
        return AsyncConnection(transaction) if on_loop and self._given is None else transaction.connection

    async def _leave(self, error: BaseException | None, on_loop: bool) -> None:
        transaction = self._context.open_transaction
        if error is not None and transaction is not None:
            await transaction.abort(on_loop)

    async def _open_in_thread(self) -> Transaction:
        """Reports that are being written come first, and may wait for a lock that another coroutine holds."""
        context = self._context
        # Blocks side by side share what the first opens: if each took a slot, and kept it to the end of its
        # run, runs would wait for each other's.
        opening: asyncio.Lock = context.__dict__.setdefault("_opening", asyncio.Lock())
        async with opening:
            is_open = context.open_transaction is not None
            if is_open:
                return context.begin_transaction(self._given, self.is_checkpoint)
            thread = await TransactionThread.enter(takes_slot=self._given is None)
            try:
                return await thread.run(context.begin_transaction, self._given, self.is_checkpoint, thread)
            finally:
                # It is kept by a run that was cancelled meanwhile, too: its end closes both.
                if (opened := context.open_transaction) is None or opened.thread is not thread:
                    thread.leave()

    def _refuse_on_event_loop(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        block = "ctx.checkpoint()" if self.is_checkpoint else "ctx.transaction()"
        raise ConfigurationError(
            f"{self._context.task}: a blocking `with {block}` would hold up the event loop; in an async task "
            f"write `async with {block}`"
        )


class Checkpoint(Block):
    """What `ctx.checkpoint()` returns: the block has a transaction of its own, and commits when it ends."""

    is_checkpoint = True

    def __init__(self, context: JobContext, given: object | None) -> None:
        super().__init__(context, given)
        self._turn: _Turn = context.__dict__.setdefault("_checkpoint_turn", _Turn())

    async def _enter(self, on_loop: bool) -> Any:
        await self._turn.take(on_loop)
        try:
            return await super()._enter(on_loop)
        except BaseException as error:
            await self._leave(error, on_loop)
            raise

    async def _leave(self, error: BaseException | None, on_loop: bool) -> None:
        transaction = self._context.open_transaction
        try:
            if transaction is not None and transaction.is_checkpoint:
                await (transaction.commit(None, on_loop) if error is None else transaction.abort(on_loop))
            elif error is None:
                raise ConfigurationError("the run has ended before its checkpoint: what it wrote is undone")
        finally:
            self._turn.end()


class _Turn:
    """Checkpoints of one run that are asked for side by side, by its threads or coroutines, take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: object = None  # the thread, or the coroutine's task, that has its turn

    async def take(self, on_loop: bool) -> None:
        me = asyncio.current_task() if on_loop else threading.current_thread()
        if self._owner is me:
            raise ConfigurationError(BLOCK_IN_CHECKPOINT)
        await acquire(self._lock, on_loop)
        self._owner = me

    def end(self) -> None:
        self._owner = None
        self._lock.release()
