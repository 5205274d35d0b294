"""What a running task can say and ask: progress, log lines, whether to stop.

Buffers only; the worker writes what is buffered, about twice a second and with the outcome.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from rowlock import claim_outcomes, codec
from rowlock.error_text import storable
from rowlock.errors import CancelRequested, ClaimLost, ConfigurationError, RunTimedOut
from rowlock.job import KEPT_LOG_LINES, Claim, LogLine, Progress, Report

if TYPE_CHECKING:
    from rowlock.execution.transaction import Transaction
    from rowlock.execution.transaction_blocks import Block, Checkpoint
    from rowlock.execution.transaction_thread import TransactionThread
    from rowlock.stores.sql.store import Store

_MAX_LINE = 8_192
BLOCK_IN_CHECKPOINT = (
    "a block inside of another: ctx.checkpoint() commits by itself, so end its block before the next one "
    "begins, and make checkpoints before ctx.transaction(), which commits when the task has returned"
)

current: ContextVar[JobContext | None] = ContextVar("rowlock_job", default=None)


class JobContext:
    """The first argument `ctx` of a task that asks for it."""

    __slots__ = (
        *("__dict__", "__weakref__", "_lines", "_lock", "_reporting", "_store", "_transaction", "began"),
        *("cancelled", "deadline", "job", "lost", "has_report", "progress_said", "timeout"),
    )

    def __init__(
        self,
        claim: Claim,
        timeout: float | None = None,
        *,
        store: Store | None = None,
        reporting: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.job = claim
        self.timeout = timeout
        self.began: float | None = None
        self.deadline: float | None = None  # from the moment it began
        self.has_report = False  # it has reported something, which may not be written yet
        self.lost = False
        self.cancelled = False
        self._store = store
        self._reporting = reporting or nullcontext()  # held by the worker while it writes reports
        self._transaction: Transaction | None = None
        self._lock = threading.Lock()
        self.progress_said: Progress | None = None  # the latest, if it is not written yet
        self._lines: tuple[LogLine, ...] = ()  # no list: most runs have none, and the collector counts lists

    # -- what this run is ------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The job's id."""
        return self.job.id

    @property
    def task(self) -> str:
        """The task's name, as the job names it."""
        return self.job.task

    @property
    def claim(self) -> int:
        """The claim number of this run."""
        return self.job.claim

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self.job.failures + 1

    @property
    def meta(self) -> dict[str, Any]:
        """The job's headers."""
        return self.job.meta

    @property
    def is_late(self) -> bool:
        """True once it has run longer than its timeout."""
        return self.deadline is not None and time.monotonic() > self.deadline

    # -- what a task says ------------------------------------------------------------------------

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far this run has come; shown by `rowlock watch`."""
        self._raise_if_over()
        for name, value in (("done", done), ("total", total)):
            if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
                raise TypeError(f"ctx.progress({name}={value!r}): must be a finite number")
        self.has_report = True
        with self._lock:
            self.progress_said = Progress(
                float(done), None if total is None else float(total), storable(str(note))
            )

    def log(self, message: str, **fields: Any) -> None:
        """Keep a line with the job (the last 500 are kept); fields must be JSON values."""
        self._raise_if_over()
        text = codec.encode(fields, "ctx.log fields", _MAX_LINE) if fields else None
        line = LogLine(time.time(), storable(str(message))[:_MAX_LINE], text)
        self.has_report = True
        with self._lock:
            self._lines = (*self._lines, line)[-KEPT_LOG_LINES:]

    # -- what a task asks ------------------------------------------------------------------------

    def check_cancelled(self) -> None:
        """Stop here if somebody cancelled this job: raises, and the job ends `cancelled`."""
        self._raise_if_over()
        if self.cancelled:
            raise CancelRequested(claim_outcomes.CANCELLED)

    def why_over(self) -> BaseException | None:
        """Why nothing that it still does will count: its claim is lost, or its time is up."""
        if self.lost:
            return ClaimLost(claim_outcomes.lost(self.claim, self.job.title))
        return RunTimedOut(claim_outcomes.timed_out(self.timeout or 0.0)) if self.is_late else None

    def _raise_if_over(self) -> None:
        if (reason := self.why_over()) is not None:
            raise reason

    # -- what a task writes ----------------------------------------------------------------------

    def transaction(self, session: object | None = None) -> Block:
        """A block whose rows commit with this job's completion, after the function has returned.

        Yields the driver's connection to the queue's database, or joins a SQLAlchemy session or Django
        connection. Leaving the block does not commit; an exception anywhere undoes everything.
        """
        from rowlock.execution.transaction_blocks import Block

        return Block(self, session)

    def checkpoint(self, session: object | None = None) -> Checkpoint:
        """A block whose rows commit when it ends, with the latest progress, if the claim is still held.

        Otherwise they are undone and `ClaimLost` is raised. A run may have any number of them, one after the
        other, before its `ctx.transaction()` or its end. It yields what `ctx.transaction()` would.
        """
        from rowlock.execution.transaction_blocks import Checkpoint

        return Checkpoint(self, session)

    def begin_transaction(
        self, session: object | None, checkpoint: bool = False, thread: TransactionThread | None = None
    ) -> Transaction:
        """The run's transaction, opened by its first block, or that of a checkpoint."""
        from rowlock.execution.transaction import Transaction

        self._raise_if_over()
        if self._store is None:
            block = "ctx.checkpoint()" if checkpoint else "ctx.transaction()"
            raise ConfigurationError(
                f"{self.task}: {block} commits with a job, and this call has none: enqueue it"
            )
        opened = self.open_transaction
        if opened is None:
            with self._reporting:  # a report that is being written comes first; the rest waits for the commit
                opened = self.open_transaction  # if another thread of the task was quicker
                if opened is None:
                    self._transaction = Transaction(self, self._store, session, checkpoint, thread)
                    return self._transaction
        if checkpoint or opened.is_checkpoint:
            raise ConfigurationError(BLOCK_IN_CHECKPOINT)
        if opened.given is not session:
            raise ConfigurationError("a run has one transaction: give every block of it the same session")
        return opened

    def revoke(self) -> None:
        """This run was given up: its transaction must not block others."""
        if self.open_transaction is not None:
            self.open_transaction.revoke()

    @property
    def open_transaction(self) -> Transaction | None:
        """The transaction that waits for its commit, if there is one."""
        return self._transaction if self._transaction is not None and self._transaction.open else None

    # -- what the worker does --------------------------------------------------------------------

    def take_report(self, final: bool = False) -> Report | None:
        """What is new since the last report, or None; while a transaction is open, it waits for its end."""
        if not final and self.open_transaction is not None:
            return None
        with self._lock:
            if self.progress_said is None and not self._lines:
                return None
            report = Report(
                id=self.id,
                claim=self.claim,
                title=self.job.title,
                progress=self.progress_said,
                lines=self._lines,
            )
            self.progress_said, self._lines = None, ()
            return report

    def give_back(self, report: Report) -> None:
        """Keep a report that could not be written for the next time."""
        with self._lock:
            self.progress_said = self.progress_said or report.progress
            self._lines = (*report.lines, *self._lines)[-KEPT_LOG_LINES:]

    def begin(self) -> Token[JobContext | None]:
        """The run begins: its time counts from now, and log lines of this thread carry it."""
        self.began_at(time.monotonic())
        return current.set(self)

    def began_at(self, moment: float) -> None:
        """The run began then (in a child process, perhaps)."""
        self.began = moment
        self.deadline = None if self.timeout is None else moment + self.timeout

    def add_report(self, report: Report) -> None:
        """What the run has reported in a child process."""
        with self._lock:
            self.progress_said = report.progress or self.progress_said
            self._lines = (*self._lines, *report.lines)[-KEPT_LOG_LINES:]
        self.has_report = True

    def unwritten(self) -> Report | None:
        """What is neither written nor being written; the worker does not write it any more."""
        with self._reporting:
            return self.take_report()


def local_context(task: str) -> JobContext:
    """A context for a task that is called outside any worker: it keeps nothing of what it is told."""
    now = time.time()
    return JobContext(
        Claim(
            id=0,
            claim=0,
            task=task,
            queue="",
            args_json="{}",
            priority=0,
            failures=0,
            max_attempts=1,
            created=now,
            due=now,
            taken=now,
            claimed_by="",
        )
    )


class JobLogFilter(logging.Filter):
    """Gives every log record of a run the attributes job (or row), task and claim; None outside of runs."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = current.get()
        row = context.job.row if context else None
        record.job, record.row = context.id if context and row is None else None, row
        record.task = context.task if context else None
        record.claim = context.claim if context else None
        return True
