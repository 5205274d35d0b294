"""What a worker claims from, as a store sees it: jobs, or the rows of a user's table.

Exchange, rescue and the look-up of lost answers are written once, over this protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from rowlock.endings import Facts
from rowlock.errors import DataRefused
from rowlock.job import Claim, ClaimKey, ClaimRequest, Exchange, ExchangeResult, Outcome, Report
from rowlock.retry import Retry

if TYPE_CHECKING:
    from rowlock.stores.sql.session import Session


class Retention(msgspec.Struct, frozen=True):
    """How long finished jobs are kept, in seconds."""

    completed: float
    failed: float


class HeldClaim(msgspec.Struct, frozen=True):
    """A claim that a worker left behind, and all that `endings.py` wants to know to decide on it."""

    undecided: Outcome  # the claim, of which nothing is decided yet
    facts: Facts
    retry: Retry
    refused: str | None = None  # what the database said, if it refused what the claim had come to


class DeadHolder(msgspec.Struct, frozen=True):
    """A worker that is dead, or long forgotten, and holds claims all the same."""

    id: str
    ended: str | None = None  # 'stopped' or 'silent'
    beat_at: float | None = None
    lease: float | None = None


# What came of an exchange in one statement, and what is left of it to be claimed.
OneStatement = tuple[ExchangeResult, Exchange | None]


class Source(Protocol):
    """Jobs, or the rows of a user's table.

    What gets a session runs inside the caller's transaction (`tx`) or short read (`db`).
    """

    @property
    def is_jobs(self) -> bool:
        """Whether it is rowlock's own jobs, which `rowlock copy` moves; False: rows of a user's table."""
        ...

    # -- claiming and finishing ------------------------------------------------------------------
    def may_claim(self) -> bool:
        """Asked before the transaction begins: False if nothing is to be claimed now."""
        ...

    def has_work(self, worker: str, request: ClaimRequest, now: float | None = None) -> bool:
        """True if there is something to claim, as far as a read can tell."""
        ...

    def look_again_in(self, worker: str, request: ClaimRequest) -> float:
        """After a claim: seconds after which another one may find more, though nobody tells of it."""
        ...

    def in_one_statement(self, asked: Exchange) -> OneStatement | None:
        """The exchange in one statement, without a transaction around it; None: it takes a transaction."""
        ...

    def pick(self, tx: Session, worker: str, request: ClaimRequest, begins: bool) -> list[Claim]:
        """Take claims; with `begins` False for others, who begin them by `start`.

        Raises `WorkerGone` if the worker was declared dead.
        """
        ...

    def start(self, tx: Session, worker: str, claim: ClaimKey, queues: Sequence[str]) -> Claim | None:
        """Move a claim that was handed over to the worker that begins it; None if it is not to be begun.

        Nor is it if it is of other queues than those named. Raises `WorkerGone` as above.
        """
        ...

    def pick_apart(
        self, worker: str, request: ClaimRequest, begins: bool, now: float | None
    ) -> tuple[list[Claim], list[tuple[Outcome, DataRefused]]] | None:
        """Claim one by one, where a claim itself may be refused; None if it cannot be."""
        ...

    def finish(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the outcomes; returns those whose claims were lost, of which nothing was written."""
        ...

    def parts(self, db: Session, worker: str, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
        """For each outcome those of which it is made up: of a batch, each row has its own."""
        ...

    def was_written(self, db: Session, outcome: Outcome) -> bool:
        """True if the outcome is in the database already, and nobody has changed that since."""
        ...

    def took_effect(self, db: Session, outcome: Outcome) -> bool:
        """The same, also if somebody else has taken up since what came back by it."""
        ...

    def report(self, tx: Session, reports: Sequence[Report]) -> None:
        """Write the progress and the log lines of claims that still hold."""
        ...

    def note_refused(self, tx: Session, worker: str, outcome: Outcome, said: str) -> bool:
        """Note that the outcome of this claim cannot be written; False if that was known already."""
        ...

    def announce(self, tx: Session, outcomes: Sequence[Outcome]) -> None:
        """Tell those who sleep what came back by these outcomes."""
        ...

    # -- in a task's own transaction ---------------------------------------------------------------
    def finish_on(
        self, tx: Session, style: str, worker: str, outcome: Outcome, report: Report | None
    ) -> bool:
        """Write a run's last report and its outcome there; False means that the claim was lost."""
        ...

    def confirm_on(self, tx: Session, style: str, claim: Claim, report: Report | None) -> bool:
        """Write a run's report there and keep its claim from being lost before the commit; False: it was."""
        ...

    # -- claims of the living and of the dead ------------------------------------------------------
    def held(self, db: Session, worker: str) -> list[tuple[int, int, bool]]:
        """The claims of this worker: (id, claim, whether somebody asked to cancel it)."""
        ...

    def titles(self, held: Sequence[ClaimKey]) -> list[str]:
        """How these claims are called in log lines."""
        ...

    def left_by(self, db: Session, worker: str) -> list[HeldClaim]:
        """The claims of a worker that has ended, each to be decided on."""
        ...

    def dead_holders(self, db: Session, include_refused: bool) -> list[DeadHolder]:
        """Who is dead and holds claims; with `include_refused` also those that could not be given back."""
        ...

    # -- between exchanges ---------------------------------------------------------------------------
    @property
    def announces_all_work(self) -> bool:
        """Whether a wake-up or `next_needed` tells of everything that becomes due."""
        ...

    def promote(self, most: int, now: float | None = None) -> int:
        """Let scheduled work that is due be claimed, earliest first; returns how many."""
        ...

    def expire(self, most: int, now: float | None = None) -> int:
        """Fail what is past its deadline to start; returns how many."""
        ...

    def fail_overdue(self, age: float, most: int, now: float | None = None) -> int:
        """Fail what no living worker has `age` seconds after it was first due; returns how many."""
        ...

    def prune(self, keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        """Delete what is old, a page at a time; returns (deleted, where to go on; 0: the end)."""
        ...

    def next_needed(self, worker: str, now: float | None = None) -> float | None:
        """Seconds until something is due; None: nothing known."""
        ...

    def isolated_waiting(self, queues: Sequence[str], unknown: Sequence[str] = ()) -> bool:
        """True if something that has to be claimed alone waits in one of these queues; none given: in any.

        That of `unknown` tasks does not count.
        """
        ...

    def idle(
        self, queues: Sequence[str], now: float | None = None, tasks: Collection[str] | None = None
    ) -> bool:
        """True if nothing in these queues is due or running (paused queues do not count).

        With `tasks`, no other tasks count.
        """
        ...
