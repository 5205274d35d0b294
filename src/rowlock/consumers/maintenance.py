"""Maintenance of a consumer's rows: ends pauses, fails rows that are too old, deletes idle claims."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rowlock import claim_outcomes
from rowlock.consumers.claiming import RowClaiming
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.row import key_text
from rowlock.consumers.settling import settle
from rowlock.consumers.table import Table
from rowlock.endings import Event, Facts
from rowlock.errors import DataRefused
from rowlock.job import Ending, Outcome
from rowlock.stores.source import Retention
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.jobs import end_pauses, soonest
from rowlock.stores.sql.session import Session

log = logging.getLogger("rowlock.consumer")

_BROKEN_NAMED = 5
_MOST_OVERDUE = 500  # rows that fail in one transaction
_AGES_EVERY = 5.0  # seconds between scans for rows that are too old
# The worker's name under which overdue rows without a claim are claimed for a moment: settle() then fails
# them like any other claim.
_OVERDUE_HOLDER = ""


class MaintainedRows:
    """The rows of one consumer, with what is done to them between exchanges: the base of its source."""

    def __init__(self, database: Database, consumer: Consumer) -> None:
        self.database = database
        self.consumer = consumer
        # Of the first look at the table, which other consumers need not wait for: `cached_property` has one
        # lock for all instances up to Python 3.11, and none after.
        self._lock = threading.RLock()
        self._table: Table | None = None
        self._claiming: RowClaiming | None = None
        self._ages_at = self._overdue_at = 0.0
        self._told_broken: set[str] = set()
        self._told_refused: set[str] = set()

    @property
    def table(self) -> Table:
        """The user's table, looked at on first use."""
        with self._lock:
            if self._table is None:
                self.database.open()
                self._table = Table(self.database, self.consumer)
            return self._table

    @property
    def claiming(self) -> RowClaiming:
        """How its rows are claimed."""
        with self._lock:
            if self._claiming is None:
                self._claiming = RowClaiming(self.table)
            return self._claiming

    @contextmanager
    def write(self, now: float | None = None) -> Iterator[Session]:
        """A transaction with the statements that were written for the table."""
        statements = self.table.statements  # before it begins: looking at the table takes transactions, too
        with self.database.write(now) as tx:
            yield tx.using(statements)

    @contextmanager
    def read(self, now: float | None = None) -> Iterator[Session]:
        """A short read with these statements."""
        statements = self.table.statements
        with self.database.read(now) as db:
            yield db.using(statements)

    def promote(self, most: int, now: float | None = None) -> int:
        """End pauses whose time is over; rows need no promotion: a claim asks whether they are due."""
        end_pauses(self.database, now)
        return 0

    def expire(self, most: int, now: float | None = None) -> int:
        """Fail rows that were not begun in time; rows that another program left running are due again."""
        moment = time.monotonic()
        if not self.consumer.form.ages or (now is None and moment < self._ages_at):
            return 0
        self._ages_at = moment + _AGES_EVERY
        return self._fail(now, self._expire)

    def fail_overdue(self, age: float, most: int, now: float | None = None) -> int:
        """Fail rows that no living worker has begun `age` seconds after they were due; returns the count."""
        moment = time.monotonic()
        if not self.consumer.knows_due_time or (now is None and moment < self._overdue_at):
            return 0
        self._overdue_at = moment + min(_AGES_EVERY, age / 4)  # each scan reads all due rows
        return self._fail(now, lambda tx: self._fail_overdue(tx, age))

    def _fail(self, now: float | None, failing: Callable[[Session], int]) -> int:
        """How many rows this fails; none, if the database refuses one of them."""
        try:
            with self.write(now) as tx:
                return failing(tx)
        except DataRefused as error:
            if error.said not in self._told_refused:
                self._told_refused.add(error.said)
                told = "consumer %s: the database refuses to change rows that are too old: %s"
                log.error(told, self.consumer.name, error.said)  # noqa: TRY400 - it says all there is
            return 0

    def _expire(self, tx: Session) -> int:
        name, form, failed = self.consumer.name, self.consumer.form, 0
        if form.stale_after is not None:
            reset = tx.run("reset_stale", age=form.stale_after, charge=1)
            if reset:
                log.warning("consumer %s: %d rows that others left running are due again", name, reset)
        if form.deadline is not None:
            error = claim_outcomes.not_begun_within(form.deadline)
            # The mark of a claimed row takes away the attempt that its claim has counted there, and adds the
            # charge; these rows have no claim, and are to keep their number.
            late = Outcome(id=0, claim=0, ending=Ending.FAILED, error=error, charge=1)
            failed = tx.run("fail_too_old", age=form.deadline, **(form.mark_values(late, 0) or {}))
            handed_over = tx.rows("late_claims", age=form.deadline)
            failed += self._fail_claims(tx, handed_over, Event.EXPIRED, error)
            if failed:
                log.warning("consumer %s: %d rows were not begun in time", name, failed)
        return failed

    def _fail_overdue(self, tx: Session, age: float) -> int:
        """Fail overdue rows that are queued, handed over and not begun, or held by a dead worker."""
        claiming, chosen = self.claiming, {"age": age, "count": _MOST_OVERDUE}
        for statement in ("retake_overdue", "take_overdue"):
            queued = [row[0] for row in tx.rows(statement, worker=_OVERDUE_HOLDER, **chosen)]
            claiming.show(tx, _OVERDUE_HOLDER, queued, begins=False)
        overdue = tx.rows("overdue_claims", age=age)
        failed = self._fail_claims(tx, overdue, Event.OVERDUE, claim_outcomes.overdue(age))
        if failed:
            log.warning("consumer %s: %d rows are overdue and have failed", self.consumer.name, failed)
        return failed

    def _fail_claims(self, tx: Session, claims: Sequence[Any], event: Event, said: str) -> int:
        """Fail these (claim, key, holder) for what happened to them; returns how many."""
        by_holder: dict[str, list[Outcome]] = {}
        for claim, key, holder in claims:
            undecided = self.undecided(claim, key)
            outcome = claim_outcomes.decided(undecided, event, Facts(), self.consumer.retry, said)
            by_holder.setdefault(holder, []).append(outcome)
        settled = {holder: settle(self.table, tx, holder, some) for holder, some in by_holder.items()}
        return sum(len(some) - len(settled[holder].lost) for holder, some in by_holder.items())

    def undecided(self, claim: int, key: Any, started: float | None = None) -> Outcome:
        """A claim of one row, of which nothing is decided yet."""
        return Outcome(
            id=claim,
            claim=claim,
            ending=Ending.RELEASED,
            task=self.consumer.name,
            started=started,
            row=key_text(key),
            single=True,
        )

    def prune(self, keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        """Delete claims that wait for rows which are done or gone; log which rows cannot be read."""
        with self.write(now) as tx:
            forgotten = tx.run("forget_the_idle")
            if self.consumer.form.keeps_failures:
                forgotten += tx.run("forget_past_failures")
        if self.consumer.form.has_broken:
            self._tell_broken()
        return forgotten, 0

    def _tell_broken(self) -> None:
        with self.read() as db:
            rows = db.rows("broken_rows", count=_BROKEN_NAMED)
        news = {key_text(row[0]) for row in rows} - self._told_broken
        if news:
            self._told_broken |= news
            log.error(
                "consumer %s: its state is something else than a JSON object in rows %s; they are skipped "
                "until it is mended",
                self.consumer.name,
                ", ".join(sorted(news)),
            )

    def next_needed(self, worker: str, now: float | None = None) -> float | None:
        """Seconds until a row is to be tried again, or a worker's lease runs out."""
        with self.read(now) as db:
            if db.rows("dead_holders_of_rows", include_refused=0):
                return 0.0  # declared dead by a worker that does not rescue these rows
            ahead = db.row("next_due_row") if self.consumer.due_at is not None else ()
            return soonest(*db.row("next_row_needed", worker=worker), *ahead)

    def isolated_waiting(self, queues: Sequence[str], unknown: Sequence[str] = ()) -> bool:
        """True if a row waits that has to run alone."""
        with self.read() as db:
            return db.row("row_alone_waiting") is not None
