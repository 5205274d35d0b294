"""`ctx.transaction()`: a task's own rows, its result and its completion in one commit, or none of them.

Opens with the task's block, ends with its run; the store does the writing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from rowlock.claim_outcomes import lost
from rowlock.enqueuing import Destination, joined
from rowlock.errors import ClaimLost, ConfigurationError, Fail
from rowlock.execution.context import JobContext
from rowlock.execution.transaction_thread import TransactionThread
from rowlock.job import Claim, Ending, Outcome, Report
from rowlock.stores.sql.borrowing import borrow
from rowlock.stores.sql.held_session import HeldConnection, HeldSession, ended_too_early
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import OwnTransaction, UserConnection

T = TypeVar("T")
log = logging.getLogger("rowlock.run")


class Transaction:
    """One run's transaction: on a connection of the store, or on a session that the task brought."""

    def __init__(
        self,
        store: Store,
        claim: Claim,
        given: object | None,
        timeout: float | None,
        is_checkpoint: bool = False,
    ) -> None:
        self.is_checkpoint = is_checkpoint  # it commits when its block ends, and not with the completion
        self._store = store
        self._claim = claim
        self.given = given  # the user's session, if there is one
        self._own: OwnTransaction | None = store.transaction(timeout) if given is None else None
        self._borrowed: UserConnection = self._own or borrow(given)
        self._lines = self._borrowed.lines
        self._lent: Destination | None = None  # where what the task enqueues goes, from the first block on
        self._held: HeldConnection | HeldSession | None = None
        self._mark: object = None
        self._process = os.getpid()
        self.thread: TransactionThread | None = None  # the thread of an async task's
        self.open = True

    @property
    def connection(self) -> Any:
        """What the block gets: the driver's connection, or the session that was given."""
        return self._own.connection if self._own else self.given

    # -- the block -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Join the user's session, if there is one; from here on, what the task enqueues joins, too."""
        if self._own is None and self._lent is None:
            self._held = self._borrowed.call(self._begin_on)
        self._join()

    async def abegin(self) -> None:
        """The same from a coroutine."""
        self._lines = self._borrowed.async_lines
        if self._own is None and self._lent is None:
            self._held = await self._borrowed.acall(self._begin_on)
        self._join()

    @property
    def _ended_too_early(self) -> str:
        return ended_too_early(self.is_checkpoint, self._lines)

    def _begin_on(self, user: UserConnection) -> HeldConnection | HeldSession | None:
        """Begin, leave a mark by which the same transaction is known again, and hold it."""
        user.begin()
        self._mark = user.mark()
        return user.hold(self._ended_too_early)

    def _find_mark(self, user: UserConnection) -> None:
        """Make sure that the task's rows are still in it: else the job would complete without them."""
        try:
            user.find_mark(self._mark)
        except Exception as error:
            # It would be the same at each attempt.
            raise Fail(self._ended_too_early) from error

    def _join(self) -> None:
        if self._lent is None:
            in_thread = None if self.thread is None else self.in_thread
            self._lent = Destination(self._store, self._borrowed, in_thread)
            joined.set(self._lent)

    # -- the end ---------------------------------------------------------------------------------

    def settle(self, outcome: Outcome, report: Report | None) -> Outcome:
        """Commit with the completion as the last statement, or undo everything; says what it came to."""
        return self._borrowed.call(lambda user: self._settle(user, outcome, report))

    async def asettle(self, outcome: Outcome, report: Report | None) -> Outcome:
        """The same from a coroutine."""
        return await self._finish(self._settle, outcome, report)

    def _settle(self, user: UserConnection, outcome: Outcome, report: Report | None) -> Outcome:
        if self._process != os.getpid():  # a task forked, and its child came back: not its transaction
            os._exit(0)
        if outcome.ending is not Ending.COMPLETED or self.is_checkpoint:  # one whose block has not ended
            self._abort(user)
            return outcome
        worker = self._claim.claimed_by
        self._commit(user, lambda: self._store.finish_on(user, worker, outcome, report))
        return msgspec.structs.replace(outcome, written=True)

    def checkpoint(self, report: Report | None) -> None:
        """Commit what was written, if the claim is still held; else undo it, and raise ClaimLost."""
        self._borrowed.call(lambda user: self._checkpoint(user, report))

    async def acheckpoint(self, report: Report | None) -> None:
        """The same from a coroutine."""
        await self._finish(self._checkpoint, report)

    def _checkpoint(self, user: UserConnection, report: Report | None) -> None:
        if not self.open:
            raise ConfigurationError("the run has ended before its checkpoint: what it wrote is undone")
        self._commit(user, lambda: self._store.confirm_on(user, self._claim, report))

    async def _finish(self, step: Callable[..., T], *given: Any) -> T:
        if self.thread is not None:
            return await self.thread.finish(step, self._borrowed, *given)
        return await self._borrowed.acall(lambda user: step(user, *given))

    def _commit(self, user: UserConnection, write_last: Callable[[], bool]) -> None:
        """Commit after the fenced statement; whatever that or the database refuses undoes everything."""
        try:
            if self._own is None:
                self._find_mark(user)
            if not write_last():
                raise ClaimLost(lost(self._claim.claim, self._claim.title, undone=True))
            if self._own is not None:
                self._own.commit()
            else:
                if self._held is not None:
                    self._held.let_go()
                self._store.commit_on(user)
        except BaseException:
            self._undo(user)
            raise
        finally:
            self._release()

    def abort(self) -> None:
        """Undo everything; the run may go on, and even begin another."""
        self._borrowed.call(self._abort)

    async def aabort(self) -> None:
        """The same from a coroutine."""
        if self.thread is not None:
            await self.thread.run(self._abort, self._borrowed)
        else:
            await self._borrowed.acall(self._abort)

    def revoke(self) -> None:
        """Take the connection away from a run that was given up: it must not block others."""
        if self._own is not None:
            self._own.revoke()

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call it in the transaction's thread; a statement that does not end after a cancel is broken off."""
        if not self.open:
            raise ConfigurationError("this transaction is over: use it inside its block")
        if self.thread is None:  # a function of the task's own opened it, in a thread
            return await asyncio.to_thread(function)
        return await self.thread.run(function, stop=self.revoke)

    def _abort(self, user: UserConnection) -> None:
        if self.open:  # of several blocks that end with an exception, one comes first
            self._undo(user)
            self._release()

    def _undo(self, user: UserConnection) -> None:
        if self._own is None:
            if self._held is not None:
                self._held.let_go()
            try:
                user.rollback()
            except Exception as error:  # the connection is gone: so is what was written on it
                log.debug("%s: its session could not be rolled back: %s", self._claim.title, error)

    def _release(self) -> None:
        self.open = False
        if self._own is not None:
            self._own.close()
        if self._held is not None:
            self._held.finish()
        if self.thread is not None:
            self.thread.leave()
        if self._lent is not None:
            self._lent.open = False  # also for what was begun in another context, and still has it
            joined.set(None)


class Block:
    """What `ctx.transaction()` returns: a `with` block, or an `async with` block in an async task."""

    def __init__(self, context: JobContext, given: object | None) -> None:
        self._context = context
        self._given = given

    def __enter__(self) -> Any:
        refuse_on_event_loop(self._context.task, "ctx.transaction()")
        transaction = self._context.begin_transaction(self._given)
        transaction.begin()
        return transaction.connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        transaction = self._context.open_transaction
        if error is not None and transaction is not None:
            transaction.abort()

    async def __aenter__(self) -> Any:
        if self._given is None:
            context = self._context
            context.opening = context.opening or asyncio.Lock()
            async with context.opening:  # blocks side by side share what the first of them opens
                if context.open_transaction is None:
                    await open_in_thread(context)
        transaction = self._context.begin_transaction(self._given)
        await transaction.abegin()
        return AsyncConnection(transaction) if self._given is None else self._given

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        transaction = self._context.open_transaction
        if error is not None and transaction is not None:
            await transaction.aabort()


async def open_in_thread(context: JobContext, checkpoint: bool = False) -> Transaction:
    """Open the run's transaction on a connection of the store, in a thread of its own."""
    thread = await TransactionThread.enter()
    try:
        return await thread.run(context.begin_transaction, None, checkpoint)
    finally:
        if (opened := context.open_transaction) is not None and opened.thread is None:
            opened.thread = thread  # also of a run that was cancelled meanwhile: its end closes both
        else:
            thread.leave()


def refuse_on_event_loop(task: str, block: str) -> None:
    """Raise, if a block that waits for the database is entered on an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError(
        f"{task}: a blocking `with {block}` would hold up the event loop; in an async task write "
        f"`async with {block}`"
    )


class AsyncConnection:
    """The store's connection for an async task: statements run in its thread, one after the other."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.connection = transaction.connection

    async def execute(self, *given: Any, **named: Any) -> AsyncCursor:
        """Run one statement; its rows are fetched from what it returns."""
        return AsyncCursor(self, await self.in_thread(partial(self.connection.execute, *given, **named)))

    async def executemany(self, *given: Any) -> AsyncCursor:
        """Run one statement for each set of values."""
        return AsyncCursor(self, await self.in_thread(partial(self._executemany, *given)))

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Call it where the transaction's statements run."""
        return await self._transaction.in_thread(function)

    def _executemany(self, *given: Any) -> Any:
        cursor = self.connection.cursor()
        cursor.executemany(*given)
        return cursor


class AsyncCursor:
    """The rows of a statement, to be awaited."""

    def __init__(self, connection: AsyncConnection, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed."""
        return int(self._cursor.rowcount)

    async def fetchone(self) -> Any:
        """The next row, or None."""
        return await self._connection.in_thread(self._cursor.fetchone)

    async def fetchall(self) -> Any:
        """All rows that are left."""
        return await self._connection.in_thread(self._cursor.fetchall)
