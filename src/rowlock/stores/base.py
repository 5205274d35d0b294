"""The store protocol: the few verbs through which everything else reaches the database.

Batch-first and fenced: what ends, extends or reports on a claim says which claim number it holds, and is
told when that claim is lost. `now` is Unix seconds; None means the store's own clock.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rowlock.job import (
    Claim,
    ClaimRequest,
    ExchangeResult,
    HistoryEntry,
    Inserted,
    Job,
    JobList,
    LogEntry,
    NewJob,
    Outcome,
    Report,
)
from rowlock.monitoring import Minute, Pulse, QueueRecord, WorkerRecord
from rowlock.stores.source import Retention as Retention
from rowlock.stores.source import Source, Upkeep

# The thread for whose code another one opens a connection: if that thread forks, it cannot wait for its end.
on_behalf_of: ContextVar[int | None] = ContextVar("rowlock_on_behalf_of", default=None)
in_pool_child = False  # this process is a child of a process pool: its parent alone may open a DuckDB file


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells about itself when it registers."""

    id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    tasks: dict[str, Any]
    strategy: str
    concurrency: int
    lease: float


class Rescue(msgspec.Struct, frozen=True):
    """What a rescue did: which workers were silent, and what became of their claims."""

    workers: list[str] = []
    requeued: int = 0
    failed: int = 0
    cancelled: int = 0
    waited: bool = False


if TYPE_CHECKING:
    from rowlock.stores.sql.database import Database
    from rowlock.stores.sql.user_connection import UserConnection

Bell = queue.SimpleQueue[None]  # what ends a wait at once; its `put` is safe in a signal handler


class OwnTransaction(Protocol):
    """A connection of the store in the hands of one task."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    @property
    def borrowed(self) -> UserConnection:
        """rowlock's face over it."""
        ...

    def commit(self) -> None:
        """Commit; if the answer is lost, look up how it ended."""
        ...

    def close(self) -> None:
        """Roll back what is not committed, and take the connection back."""
        ...

    def revoke(self) -> None:
        """Undo it under the hands of a task that does not stop; safe from another thread."""
        ...


def rung(bell: Bell, seconds: float) -> bool:
    """Wait until the bell rings; False if time is up before that."""
    try:
        bell.get(timeout=seconds)
    except queue.Empty:
        return False
    return True


class Wake:
    """How one poller learns between polls that there may be work; only a hint. By itself, by the bell."""

    @property
    def alive(self) -> bool:
        """True while a hint would arrive, so that polls may become rare."""
        return True

    def before_claim(self, idle: bool) -> None:
        """Called before every claim; `idle` if the last one found nothing."""

    def claimed(self, leaves_some: bool) -> None:
        """Called after a claim that found jobs; `leaves_some` if there may be more, for others."""

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait until the bell rings (True), there may be work, or time is up; `lively` for the first few."""
        return rung(bell, seconds)

    def close(self) -> None:
        """Let go of what was needed to hear hints."""


def together(store: Store) -> AbstractContextManager[None]:
    """One turn for all that this thread does in the block, where a database is used by turns."""
    return store.database.together()


class Store(Upkeep, Protocol):
    """A database that holds a queue, together with what its workers claim from."""

    @property
    def url(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def database(self) -> Database:
        """What it is made of, for packages that have statements of their own."""
        ...

    @property
    def source(self) -> Source:
        """What is claimed from it."""
        ...

    def over(self, source: Source) -> Store:
        """The same database with another source of work."""
        ...

    # -- the life of the store -------------------------------------------------------------------
    def open(self, create: bool = True) -> None:
        """Make sure the queue's tables are there; without `create`, raise `StoreMissing` if not."""
        ...

    def ddl(self) -> str:
        """The SQL that creates the tables, for whoever may; opens nothing."""
        ...

    def upgrade(self) -> tuple[int, int]:
        """Bring the tables to this code's version; returns the version before and after."""
        ...

    def close(self) -> None:
        """Close every connection of this process; a later call opens anew."""
        ...

    def install_id(self) -> str:
        """The random name of this queue, by which a foreign database is recognised."""
        ...

    # -- producing -------------------------------------------------------------------------------
    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        """Write the jobs, all or none, durably."""
        ...

    # -- on connections that are not the store's own ---------------------------------------------
    def insert_on(self, user: UserConnection, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Write the jobs in the transaction of a borrowed connection, and commit nothing."""
        ...

    def get_on(self, user: UserConnection, job: int) -> Job | None:
        """One job as that transaction sees it."""
        ...

    def finish_on(self, user: UserConnection, worker: str, outcome: Outcome, report: Report | None) -> bool:
        """Write a run's last report and its outcome there; False means that the claim was lost."""
        ...

    def confirm_on(self, user: UserConnection, claim: Claim, report: Report | None) -> bool:
        """Write a run's report there and keep its claim from being lost before the commit; False: it was."""
        ...

    def commit_on(self, user: UserConnection) -> None:
        """Commit that transaction; if the answer is lost, look up how it ended."""
        ...

    def transaction(self, timeout: float | None) -> OwnTransaction:
        """A transaction on a connection of the store, for a task to write its own rows in."""
        ...

    # -- claiming and finishing ------------------------------------------------------------------
    def exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        request: ClaimRequest | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        resent: bool = False,
    ) -> ExchangeResult:
        """Hand back outcomes and take new claims, in one transaction.

        `resent` says that these outcomes may have been written already: the last call ended in
        `OutcomeUnknown`. Those that were are not counted as lost.
        """
        ...

    def report(self, reports: Sequence[Report], now: float | None = None) -> None:
        """Write progress and log lines of claims that still hold."""
        ...

    # -- liveness --------------------------------------------------------------------------------
    def register(self, worker: Registration, now: float | None = None) -> str:
        """Write the worker's row; returns its id, with a suffix if that id was used before.

        Jobs that were put off because no living worker knew their task, and that this one knows, are due now.
        """
        ...

    def know(
        self, worker: str, queues: Sequence[str], tasks: dict[str, Any], now: float | None = None
    ) -> None:
        """Write into the row of a worker of these queues that it knows these tasks by now."""
        ...

    def beat(self, worker: str, strategy: str, now: float | None = None) -> bool:
        """Say that the worker lives; False means that it was declared dead."""
        ...

    def retire(self, worker: str, now: float | None = None) -> None:
        """End a worker in good order; claims it still holds go back, free of charge."""
        ...

    def held(self, worker: str) -> list[tuple[int, int, bool]]:
        """The claims of this worker: (id, claim, whether somebody asked to cancel it)."""
        ...

    def titles(self, held: Sequence[tuple[int, int]]) -> list[str]:
        """How these claims are called in log lines, while they are there."""
        ...

    def tell(self, worker: str, info: dict[str, Any]) -> None:
        """Put these members into the worker's info, for others to read."""
        ...

    def info(self, worker: str) -> dict[str, Any]:
        """What the worker's row says beside its columns; empty if there is no such worker."""
        ...

    # -- maintenance ----------------------------------------------------------------------------------
    def rescue(
        self,
        worker: str,
        careful_age: float,
        now: float | None = None,
        may_rescue: Callable[[], bool] = lambda: True,
    ) -> Rescue:
        """Take back the claims of silent workers, unless the rescuer itself has been silent.

        `may_rescue` is asked inside the transaction: its own beat may be fresh again while the others, frozen
        together with it, have not come to theirs yet.
        """
        ...

    def prune_records(self, age: float, now: float | None = None) -> None:
        """Delete some rows of workers that ended, and of minutes that passed, longer than `age` ago."""
        ...

    def checkpoint(self) -> None:
        """Let the database tidy its own files, where it needs to be asked."""
        ...

    # -- operators -------------------------------------------------------------------------------
    def cancel(self, job: int, now: float | None = None) -> None:
        """Cancel a waiting job at once; ask a running one to stop; leave a finished one."""
        ...

    def retry(self, job: int, now: float | None = None) -> None:
        """Put a scheduled or finished job back into its queue, with a new budget."""
        ...

    def set_queue(
        self, name: str, *, paused: bool | None = None, strategy: str | None = None, now: float | None = None
    ) -> None:
        """Pause or resume a queue, or set the strategy of all its workers ("" unsets it)."""
        ...

    # -- reading ---------------------------------------------------------------------------------
    def get(self, job: int) -> Job | None:
        """One job, or None."""
        ...

    def changed(self, seen: Mapping[int, Job | None]) -> dict[int, Job | None]:
        """Those whose state or progress is not as it was seen last; None: not seen yet, or not there."""
        ...

    def find(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobList:
        """A page of jobs, newest first."""
        ...

    def history(self, job: int) -> list[HistoryEntry]:
        """What became of a job's earlier claims."""
        ...

    def logs(self, job: int) -> list[LogEntry]:
        """The log lines kept with a job."""
        ...

    def queues(self) -> list[QueueRecord]:
        """Every queue that has jobs or settings, with counts by state."""
        ...

    def consumer_claims(self) -> list[tuple[str, int, int]]:
        """For each consumer that has claims: its name, how many are in flight, how many wait for a retry."""
        ...

    def workers(self, now: float | None = None) -> list[WorkerRecord]:
        """The workers, living ones first."""
        ...

    def pulse(self, now: float | None = None) -> Pulse:
        """Who lives, and how long each queue's oldest due job has waited; reads no finished job."""
        ...

    def minutes(self, since: int) -> list[Minute]:
        """Rates and durations since a Unix minute."""
        ...

    def depth(self, queue: str | None = None) -> int:
        """How many jobs are queued, in all queues or in one; reads an index of queued jobs, nothing else."""
        ...

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        """How the poller of this worker learns of new work; `ring` may be called from any thread."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a doctor wants to know about this database; `rowlock.insights` judges it."""
        ...

    def backup(self, target: str) -> int:
        """Copy the database, consistently, while it is in use; returns the bytes written."""
        ...
