"""The rows of a user's table as a source of work, in place of jobs.

How rows are claimed is in `claiming.py`, how outcomes are written in `settling.py`, and maintenance in
`maintenance.py`; exchange and rescue are those of every source.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from rowlock.codec import json_text
from rowlock.consumers import settling
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.maintenance import MaintainedRows
from rowlock.consumers.row import key_text, own_budget
from rowlock.endings import LONGEST_ISOLATION, Facts
from rowlock.errors import DataRefused, Fail, RetryLater
from rowlock.job import Claim, ClaimKey, ClaimRequest, Ending, Exchange, Outcome, Report
from rowlock.stores.source import DeadHolder, HeldClaim, OneStatement
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.refusals import REFUSED
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.insights import ConsumerRecord

log = logging.getLogger("rowlock.consumer")


class ConsumerSource(MaintainedRows):
    """One consumer's rows."""

    is_jobs = False

    def __init__(self, database: Database, consumer: Consumer) -> None:
        super().__init__(database, consumer)
        self._switched_off = self._told_when = False  # by the user's own `when=`
        self._told_index = False

    def _tell_missing_index(self) -> None:
        """Once, and only if this process claims: front ends and pools' children look at the table, too."""
        if not self._told_index and not self.table.has_index:
            log.warning(
                "consumer %s: its index %s %s, so that every claim reads the whole table; "
                "`rowlock consumers init` creates it",
                self.consumer.name,
                self.consumer.index,
                self.table.index_trouble,
            )
        self._told_index = True

    @property
    def announces_all_work(self) -> bool:
        """Whether a wake-up tells of every row that becomes due.

        PostgreSQL does not tell of inserted rows, unless the user calls `app.wake`; no database tells when a
        condition or an age comes true because time has passed.
        """
        consumer = self.consumer
        by_time = consumer.where is not None or consumer.when is not None or consumer.form.ages
        return self.database.sees_every_commit and not by_time

    def on(self, session: Session, style: str | None = None) -> Session:
        """The same session with the statements that were written for the table."""
        return session.using(self.table.on(style))

    # -- claiming and finishing ------------------------------------------------------------------

    def may_claim(self) -> bool:
        """Whether the user's own `when=` allows it; no, if it raises."""
        self._tell_missing_index()  # which looks at the table before a transaction begins
        if self.consumer.when is None:
            return True
        try:
            self._switched_off = not self.consumer.when()
            self._told_when = False
        except Exception:
            self._switched_off = True
            if not self._told_when:
                self._told_when = True
                log.exception("consumer %s: when= raised, so no rows are claimed", self.consumer.name)
        return not self._switched_off

    def has_work(self, worker: str, request: ClaimRequest, now: float | None = None) -> bool:
        with self.read(now) as db:
            found = self._anything_due(db)
        if found:
            self.claiming.start_over()  # the due row may lie before the last claimed one
        return found

    def look_again_in(self, worker: str, request: ClaimRequest) -> float:
        return math.inf  # `has_work` looks from the first row on

    def _anything_due(self, db: Session) -> bool:
        returned = db.row("look_returned", count=1, isolate_least=0, isolate_most=LONGEST_ISOLATION)
        return (returned or db.row("look_free")) is not None

    def in_one_statement(self, asked: Exchange) -> OneStatement | None:
        return None

    def pick(self, tx: Session, worker: str, request: ClaimRequest, begins: bool) -> list[Claim]:
        return self.claiming.take(self.on(tx), worker, request, begins)

    def start(self, tx: Session, worker: str, claim: ClaimKey, queues: Sequence[str]) -> Claim | None:
        """Begin a claim that a relay has handed over; if the consumer is paused, give it back."""
        tx = self.on(tx)
        is_paused = self.claiming.facts(tx, worker)[0]
        begun = self.claiming.start(tx, worker, claim[1])
        if begun is not None and is_paused:
            settling.settle(self.table, tx, worker, [begun.ended(Ending.RELEASED)])
        return None if is_paused else begun

    def pick_apart(
        self, worker: str, request: ClaimRequest, begins: bool, now: float | None
    ) -> tuple[list[Claim], list[tuple[Outcome, DataRefused]]] | None:
        """Claim row by row, if claims show in the user's rows: a row that refuses is held, and not run."""
        if not self.consumer.form.holds:
            return None
        taken: list[int] = []
        refused: list[tuple[Outcome, DataRefused]] = []
        with self.write(now) as tx:
            retried, fresh = self.claiming.pick(tx, worker, request, begins)
        for claim in (*retried, *(row[0] for row in fresh)):
            try:
                with self.write(now) as tx:
                    if self.claiming.show(tx, worker, [claim], begins):
                        taken.append(claim)
                    else:  # the row is not due any more
                        tx.run("end_claims", ids=json_text([claim]), worker=worker)
            except DataRefused as error:
                refused.append((Outcome(id=claim, claim=claim, ending=Ending.RELEASED), error))
        with self.write(now) as tx:
            return self.claiming.claims_of(tx, worker, taken, retried), refused

    def finish(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        return settling.settle(self.table, self.on(tx), worker, outcomes).lost if outcomes else []

    def parts(self, db: Session, worker: str, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
        return settling.parts(self.consumer, self.on(db), worker, outcomes)

    def was_written(self, db: Session, outcome: Outcome) -> bool:
        """Whether the outcome was written: a claim that is gone has ended."""
        return not self.on(db).rows("rows_of", ids=json_text([outcome.claim]))

    took_effect = was_written

    def note_refused(self, tx: Session, worker: str, outcome: Outcome, said: str) -> bool:
        values = {"claim_number": outcome.claim, "worker": worker, "error": said}
        return self.on(tx).run("note_refused_row", charge=outcome.charge, **values) > 0

    def announce(self, tx: Session, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            self.claiming.start_over()
            self.database.wake_readers(tx, self.consumer.queue)

    # -- progress and log lines of runs -------------------------------------------------------------

    def report(self, tx: Session, reports: Sequence[Report]) -> None:
        """Write progress; log lines go to the worker's log, because rowlock stores none for a row."""
        if reports:
            self._show_progress(self.on(tx), reports)
            _log(reports)

    def _show_progress(self, tx: Session, reports: Sequence[Report]) -> None:
        form = self.consumer.form
        values = [
            {
                "claim_number": report.claim,
                **msgspec.structs.asdict(report.progress),
                **form.progress_values(report.progress.done, report.progress.total),
            }
            for report in reports
            if report.progress is not None
        ]
        tx.each("report_row", values)
        if form.holds:
            tx.each("progress_of_row", values)

    def titles(self, held: Sequence[ClaimKey]) -> list[str]:
        claims = [claim for _, claim in held]
        with self.read() as db:
            keys = dict(db.rows("rows_of", ids=json_text(claims)))
        rows = [f"row {key_text(keys[one])}" if one in keys else f"lost claim {one}" for one in claims]
        return [f"consumer {self.consumer.name}, {row}" for row in rows]

    # -- in a task's own transaction ---------------------------------------------------------------

    def finish_on(
        self, tx: Session, style: str, worker: str, outcome: Outcome, report: Report | None
    ) -> bool:
        """Mark the row and end the claim in the task's own transaction."""
        lost, unmarked = settling.settle(self.table, self.on(tx, style), worker, [outcome])
        if lost:
            return False
        if unmarked:
            said = f"row {unmarked[0]} was deleted or changed by others; what was written is undone"
            # The other rows of a batch are tried again, without this row: it is not due any more.
            raise Fail(said) if self.consumer.batch is None else RetryLater(0.0, said)
        _log([] if report is None else [report])
        return True

    def confirm_on(self, tx: Session, style: str, claim: Claim, report: Report | None) -> bool:
        """Write the run's progress and hold its claims until the task commits."""
        tx, worker = self.on(tx, style), claim.claimed_by
        reports = [] if report is None else [report]
        if reports:
            tx.rows("lock_rows", ids=json_text([claim.claim]), worker=worker)
            self._show_progress(tx, reports)
        # A worker is declared dead before its rows are taken back, perhaps one by one: so both are checked.
        held = tx.run("hold_claims", claim_number=claim.claim, worker=worker)
        if not held or tx.row("worker_lives", worker=worker) is None:
            return False
        _log(reports)
        return True

    # -- claims of living and dead workers ----------------------------------------------------------

    def held(self, db: Session, worker: str) -> list[tuple[int, int, bool]]:
        rows = self.on(db).rows("held_batches", worker=worker)
        return [(batch, batch, False) for (batch,) in rows]

    def left_by(self, db: Session, worker: str) -> list[HeldClaim]:
        rows = self.on(db).rows("held_rows", worker=worker)
        return [
            HeldClaim(
                self.undecided(claim, key, started_at),
                Facts(
                    failures=failures,
                    max_attempts=own_budget(budget),
                    deaths=deaths,
                    began=started_at is not None,
                ),
                self.consumer.retry,
                # If the claim itself was refused, the row was never begun: it has no outcome to write.
                said or "" if kind == REFUSED and started_at is not None else None,
            )
            for claim, key, failures, started_at, deaths, kind, said, budget in rows
        ]

    def dead_holders(self, db: Session, include_refused: bool) -> list[DeadHolder]:
        rows = self.on(db).rows("dead_holders_of_rows", include_refused=int(include_refused))
        return [DeadHolder(*row) for row in rows]

    # -- for front ends and the janitor ------------------------------------------------------------

    def ended_condition(self, failed_too: bool) -> str:
        """The SQL condition on a row of the table that this consumer is done with it, or has failed on it."""
        ended = "({row_done} OR {row_failed})" if failed_too else "({row_done})"
        return self.table.condition(ended).replace("%", self.table.dialect.percent)

    def record(self, exact: bool = False) -> ConsumerRecord:
        """Its counts, for front ends; `exact` also counts done rows, which reads the whole table."""
        from rowlock.consumers.overview import record

        return record(self, exact)

    def idle(
        self, queues: Sequence[str], now: float | None = None, tasks: Collection[str] | None = None
    ) -> bool:
        """True if no row is in flight, and none is due (or the consumer is paused)."""
        with self.read(now) as db:
            if db.row("in_flight") is not None:
                return False
            return self._switched_off or self.claiming.facts(db)[0] or not self._anything_due(db)


def _log(reports: Sequence[Report]) -> None:
    for report in reports:
        for line in report.lines:
            log.info("%s: %s%s", report.title, line.message, f" {line.fields}" if line.fields else "")
