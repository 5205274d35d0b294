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
from rowlock.errors import ClaimLost, ConfigurationError
from rowlock.execution.context import JobContext
from rowlock.execution.transaction_thread import TransactionThread
from rowlock.job import Ending, Outcome, Report
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_connection_kinds import borrow

T = TypeVar("T")
log = logging.getLogger("rowlock.run")

_ENDED_TOO_EARLY = """\
the session was committed, rolled back or closed before {}. Write, with no commit of your own:
    {}"""


class Transaction(Destination):
    """One run's transaction: on a connection of the store, or on a session that the task brought.

    What the task enqueues from its first block on is written there, too. Each step is written once. On an
    event loop (`on_loop`) it is done where it does not hold the loop up.
    """

    _user: UserConnection

    def __init__(
        self,
        context: JobContext,
        store: Store,
        given: object | None,
        is_checkpoint: bool,
        thread: TransactionThread | None,
    ) -> None:
        self.is_checkpoint = is_checkpoint  # it commits when its block ends, and not with the completion
        self._context = context
        self._claim = context.job
        self.given = given  # the user's session, if there is one
        # What the block gets: the driver's connection, or the session that was given.
        self.connection: Any
        if given is None:
            own = store.transaction(context.timeout)
            self.connection = own.connection
            super().__init__(store, own)
        else:
            self.connection = given
            super().__init__(store, borrow(given))
        self._progress_before = context.progress_said
        self._began = False
        self._process = os.getpid()
        self.thread = thread if given is None else None  # for the store's connection in an async task

    # -- the block -------------------------------------------------------------------------------

    async def begin(self, on_loop: bool) -> None:
        """Join the user's session, if there is one; from here on, what the task enqueues joins, too."""
        if not self._began and self.given is not None:
            refusal = self._ended_too_early(on_loop)
            await self._on_connection(lambda user: user.hold(refusal), on_loop)
        self._began = True
        joined.set(self)  # by each block: this one may be another coroutine's or thread's

    def _ended_too_early(self, on_loop: bool) -> str:
        """What a task is told that ends its session by itself, with the two lines to write."""
        if self.is_checkpoint:
            before, block = "the checkpoint's block had ended; rowlock commits it then", "checkpoint"
        else:
            before = "the task had returned; rowlock commits it together with the job, after that"
            block = "transaction"
        return _ENDED_TOO_EARLY.format(before, self._user.lines(block, on_loop))

    async def acall(self, work: Callable[[Destination], T]) -> T:
        """Let `work` write jobs here; waiting for a lock must not hold up the event loop."""
        if self.thread is None:
            return await super().acall(work)
        return await self.in_thread(partial(self.call, work))

    async def _on_connection(
        self, step: Callable[[UserConnection], T], on_loop: bool, heeds_cancel: bool = True
    ) -> T:
        if not on_loop:
            return self._user.call(step)
        if self.thread is not None:
            return await self.thread.run(step, self._user, heeds_cancel=heeds_cancel)
        return await self._user.acall(step)

    # -- the end ---------------------------------------------------------------------------------

    async def settle(self, outcome: Outcome, on_loop: bool) -> Outcome:
        """The run has ended: commit with its completion, or undo everything; says what it came to."""
        if self._process != os.getpid():  # a task forked, and its child came back: not its transaction
            os._exit(0)
        if outcome.ending is Ending.COMPLETED and not self.is_checkpoint:
            await self.commit(outcome, on_loop)
            return msgspec.structs.replace(outcome, written=True)
        # A failed run, or a checkpoint whose block has not ended.
        await self._on_connection(self._abort, on_loop, heeds_cancel=False)
        return outcome

    async def commit(self, outcome: Outcome | None, on_loop: bool) -> None:
        """Commit with the run's reports, and with its completion if it has ended.

        If the claim is lost everything is undone, and ClaimLost is raised.
        """
        report = self._context.take_report(final=True)
        try:
            await self._on_connection(partial(self._commit, outcome, report), on_loop, heeds_cancel=False)
        except ClaimLost:
            self._context.lost = True
            raise
        except BaseException:
            if report is not None:
                progress = self._progress_before if self.is_checkpoint else report.progress
                self._context.give_back(msgspec.structs.replace(report, progress=progress))
            raise

    def _commit(self, outcome: Outcome | None, report: Report | None, user: UserConnection) -> None:
        """Commit after the fenced statement; whatever that or the database refuses undoes everything."""
        try:
            user.check_held()
            if outcome is None:
                is_held = self.store.confirm_on(user, self._claim, report)
            else:
                is_held = self.store.finish_on(user, self._claim.claimed_by, outcome, report)
            if not is_held:
                raise ClaimLost(lost(self._claim.claim, self._claim.title, undone=True))
            if self.given is None:
                user.commit()
            else:
                self.store.commit_on(user)
        except BaseException:
            self._undo(user)
            raise
        finally:
            self._release(user)

    async def abort(self, on_loop: bool) -> None:
        """Undo everything; the run may go on, and even begin another."""
        await self._on_connection(self._abort, on_loop)

    def revoke(self) -> None:
        """Take the connection away from a run that was given up: it must not block others."""
        self._user.revoke()

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call it in the transaction's thread; a statement that does not end after a cancel is broken off."""
        if not self.open:
            raise ConfigurationError("this transaction is over: use it inside its block")
        if self.thread is None:  # a function of the task's own opened it, in a thread
            return await asyncio.to_thread(function)
        return await self.thread.run(function, stop=self.revoke)

    def _abort(self, user: UserConnection) -> None:
        if self.open:  # of several blocks that end with an exception, one comes first
            if self.is_checkpoint:
                # Else an attempt that goes on from its progress would skip what is undone here.
                self._context.progress_said = self._progress_before
            self._undo(user)
            self._release(user)

    def _undo(self, user: UserConnection) -> None:
        try:
            user.rollback()
        except Exception as error:  # the connection is gone: so is what was written on it
            log.debug("%s: its session could not be rolled back: %s", self._claim.title, error)

    def _release(self, user: UserConnection) -> None:
        self.open = False  # also for what was begun in another context, and still has it
        user.close()
        if self.thread is not None:
            self.thread.leave()
        joined.set(None)


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
