"""A store in which the jobs are the rows of a user's table: claims, outcomes and rescue are its own.

All else (registration, beats, wake-ups, transactions) is the real store's; so a worker runs it unchanged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import msgspec

from rowlock import endings
from rowlock.consumers.claiming import Claiming, key_text
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.forms.base import Form, ages
from rowlock.consumers.settling import Settling
from rowlock.consumers.table import Table
from rowlock.endings import LONGEST_ISOLATION, Event, Facts
from rowlock.errors import DataRefused, Fail
from rowlock.job import Claim, ClaimRequest, Ending, ExchangeResult, LogLine, Minute, Outcome, Report
from rowlock.liveness import Lease
from rowlock.stores.base import Rescue, Retention, Store
from rowlock.stores.sql.refusals import AGAIN_EVERY, REFUSED, RefusedOutcomes, Written
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.store import SqlStore
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import SqlUserTransactions

log = logging.getLogger("rowlock.consumer")

_BROKEN_NAMED = 5
_AGES_EVERY = 5.0  # seconds between looks for rows that are too old


class ConsumerStore(RefusedOutcomes):
    """One consumer's rows, as a store that a worker can claim from."""

    def __init__(self, store: Store, consumer: Consumer) -> None:
        super().__init__()
        self.underlying = store
        self._ground = cast("SqlStore", store)
        self._consumer = consumer
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._found = False
        self.claiming = Claiming(consumer, lambda: self.table)
        self._ages_at = self._refused_at = 0.0
        self._switched_off = self._told_when = False  # by the user's own `when=`
        self._told_broken: set[str] = set()
        self._told_refused: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.underlying, name)

    @property
    def table(self) -> Table:
        """The user's table, looked at on first use."""
        with self._lock:
            if self._table is None:
                self.underlying.open()
                self._table = Table(self._ground, self._consumer)
                if not self._table.has_index:
                    log.warning(
                        "consumer %s: its index %s is missing, so that every claim reads the whole table; "
                        "`rowlock consumers init` creates it",
                        self._consumer.name,
                        self._consumer.index,
                    )
            return self._table

    @property
    def announces_all_work(self) -> bool:
        """Whether a wake-up tells of every row that becomes due.

        On PostgreSQL nobody says that a row was inserted, unless its owner calls `app.wake`; and nobody says
        anything when a condition or an age comes true because time has passed.
        """
        consumer = self._consumer
        by_time = consumer.where is not None or consumer.when is not None or ages(consumer.form)
        return self._ground.sees_every_commit and not by_time

    def _tx(self, session: Session) -> Session:
        return session.using(self.table.statements)

    @property
    def _settling(self) -> Settling:
        return Settling(self._consumer, self.table)

    # -- claiming and finishing ------------------------------------------------------------------

    def _exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        request: ClaimRequest | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        again: bool = False,
    ) -> ExchangeResult:
        """Hand back outcomes and take rows, in one transaction."""
        if request is not None and request.count and not self._may_claim():
            request = None
        count = request.count if request is not None else 0
        writes = bool(outcomes or reports or minutes)
        table = self.table  # looked at before the transaction begins
        if not writes and not self._found:
            if not (count and self._anything_due(now)):
                return ExchangeResult()
            self.claiming.start_over()  # what was seen may lie before the last row that was taken
        if request and count and not writes and (claims := self._take_at_once(worker, request, now)):
            self._found = True
            self._ground.got_up(worker)
            return ExchangeResult(claims, [], self._consumer.queue)
        with self._ground.writing(now) as session:
            tx = session.using(table.statements)
            self._report(tx, reports)
            lost = self._settling.settle_runs(tx, worker, outcomes)
            if again:  # a claim that is not there any more may have been ended by the answer that was lost
                lost = [one for one in lost if tx.rows("rows_of", ids=_json([one.claim]))]
            if minutes:
                tx.each("add_minute", [msgspec.structs.asdict(minute) for minute in minutes])
            if any(outcome.ending is Ending.RELEASED for outcome in outcomes):
                self.claiming.start_over()
                self._ground.hint(tx, self._consumer.queue)
            claims = []
            if request is not None and count:
                taking = self.claiming
                claims = taking.take(tx, worker, request) or taking.take_after_a_look(
                    tx, worker, request, writes
                )
                self._found = bool(claims)
        if claims:
            self._ground.got_up(worker)
        return ExchangeResult(claims, lost, self._consumer.queue if claims else "")

    def _may_claim(self) -> bool:
        """What the user's own `when=` says; one that raises has said no."""
        if self._consumer.when is None:
            return True
        try:
            self._switched_off = not self._consumer.when()
            self._told_when = False
        except Exception:
            self._switched_off = True
            if not self._told_when:
                self._told_when = True
                log.exception("consumer %s: when= raised, so no rows are claimed", self._consumer.name)
        return not self._switched_off

    def _anything_due(self, now: float | None) -> bool:
        with self._ground.reading(now) as session:
            tx = self._tx(session)
            return (
                bool(self._look_returned(tx)) or tx.row("look_free", consumer=self._consumer.name) is not None
            )

    def _look_returned(self, tx: Session) -> list[Any]:
        limits = {"isolate_least": 0, "isolate_most": LONGEST_ISOLATION}
        return tx.rows("look_returned", consumer=self._consumer.name, count=1, **limits)

    def _take_at_once(self, worker: str, request: ClaimRequest, now: float | None) -> list[Claim]:
        """The same by one statement that commits by itself, where all is as usual and no other is needed."""
        if self._consumer.form.holds or self._consumer.batch is not None:
            return []
        session = self._ground.at_once(now)
        if session is None:
            return []
        with session as opened:
            return self.claiming.take(self._tx(opened), worker, request)

    def finish_on(self, user: UserConnection, worker: str, outcome: Outcome, report: Report | None) -> bool:
        """Mark the row and end the claim in the task's own transaction; False: the claim was lost."""
        table = self.table
        tx = cast("SqlUserTransactions", self._ground).session_on(user).using(table.on(user.style))
        settled = Settling(self._consumer, table)
        said = self._said(tx, [] if report is None else [report])
        if settled.settle_runs(tx, worker, [outcome]):
            return False
        if settled.unmarked:
            raise Fail(
                f"row {settled.unmarked[0]} was deleted or changed by others; what was written is undone"
            )
        _log_lines(said)
        return True

    def confirm_on(self, user: UserConnection, claim: Claim, report: Report | None) -> bool:
        """Write the run's progress and hold its claims until the task commits; False: they were lost."""
        table, worker = self.table, claim.claimed_by
        tx = cast("SqlUserTransactions", self._ground).session_on(user).using(table.on(user.style))
        said: list[tuple[str, LogLine]] = []
        if report is not None:
            said = self._said(tx, [report])
            if "lock_rows" in table.statements:  # rows before claims, as everybody else does
                members = tx.rows("members", ids=_json([claim.claim]), worker=worker)
                tx.rows("lock_rows", ids=_json([one[1] for one in members]), worker=worker)
            self._report(tx, [msgspec.structs.replace(report, lines=())])
        # A worker is declared dead before its rows are taken back, one by one if need be: so both are asked.
        held = tx.run("hold_claims", claim_number=claim.claim, worker=worker)
        if not held or tx.row("worker_lives", worker=worker) is None:
            return False
        _log_lines(said)
        return True

    def _members(self, worker: str, outcomes: Sequence[Outcome], now: float | None) -> list[list[Outcome]]:
        """The outcomes of each row; that of a batch has those of its rows."""
        if self._consumer.batch is None:
            return super()._members(worker, outcomes, now)
        with self._ground.reading(now) as session:
            apart = self._settling.apart(self._tx(session), worker, outcomes)
        return [each or [whole] for whole, each in zip(outcomes, apart, strict=True)]

    def _claim_apart(self, worker: str, request: ClaimRequest, now: float | None) -> ExchangeResult | None:
        """Row by row, if a claim shows in the user's rows: one that refuses it is held, and not run."""
        form, taken, unwritten = self._consumer.form, [], []
        if not form.holds:
            return None
        with self._ground.writing(now) as session:
            picked, again = self.claiming.pick_after_a_look(self._tx(session), worker, request)
        for claim in picked:
            try:
                with self._ground.writing(now) as session:
                    if self.claiming.show(self._tx(session), worker, claim):
                        taken.append(claim)
            except DataRefused as error:
                (title,) = self.titles([(claim, claim)])
                held = Outcome(id=claim, claim=claim, ending=Ending.RELEASED)
                self.keep_refused(worker, held, title, error, now)
                unwritten.append((claim, claim))
        claims: list[Claim] = []
        if taken:
            with self._ground.writing(now) as session:
                claims = self.claiming.claims_of(self._tx(session), worker, taken, again)
            self._ground.got_up(worker)
        return ExchangeResult(claims, last_queue=self._consumer.queue if claims else "", unwritten=unwritten)

    def _note_refused(self, worker: str, outcome: Outcome, said: str, now: float | None) -> bool:
        with self._ground.writing(now) as session:
            values = {"claim_number": outcome.claim, "worker": worker, "error": said}
            return self._tx(session).run("note_refused_row", charge=outcome.charge, **values) > 0

    def _report_all(self, reports: Sequence[Report], now: float | None) -> None:
        """Write progress; what is logged goes to the log, because a row has no page of its own."""
        with self._ground.writing(now) as session:
            self._report(self._tx(session), reports)

    def _report(self, tx: Session, reports: Sequence[Report]) -> None:
        _log_lines(self._said(tx, reports))
        values = [
            {"claim_number": report.claim, **msgspec.structs.asdict(report.progress)}
            for report in reports
            if report.progress is not None
        ]
        if values:
            tx.each("report_row", values)
            if self._consumer.form.holds:
                form = self._consumer.form
                shown = [(one["claim_number"], form.progress(one["done"], one["total"])) for one in values]
                tx.each(
                    "progress_of_row",
                    [{"claim_number": claim, **how_far, **form.always()} for claim, how_far in shown],
                )

    def _said(self, tx: Session, reports: Sequence[Report]) -> list[tuple[str, LogLine]]:
        """What runs have logged, each with its row, while its claim still says which that is."""
        spoken = [report for report in reports if report.lines]
        if not spoken:
            return []
        keys = dict(tx.rows("rows_of", ids=_json([report.claim for report in spoken])))
        return [
            (self._title(report.claim, keys.get(report.claim)), line)
            for report in spoken
            for line in report.lines
        ]

    def _title(self, claim: int, key: Any) -> str:
        row = f"row {key_text(key)}" if key is not None else f"lost claim {claim}"
        return f"consumer {self._consumer.name}, {row}"

    # -- liveness --------------------------------------------------------------------------------

    def held(self, worker: str) -> list[tuple[int, int, bool]]:
        """The claims of this worker."""
        with self._ground.reading() as session:
            rows = self._tx(session).rows("held_batches", consumer=self._consumer.name, worker=worker)
            return [(batch, batch, False) for (batch,) in rows]

    def titles(self, held: Sequence[tuple[int, int]]) -> list[str]:
        """How these claims are called in log lines, while they are there."""
        claims = [claim for _, claim in held]
        with self._ground.reading() as session:
            keys = dict(self._tx(session).rows("rows_of", ids=_json(claims)))
        return [self._title(claim, keys.get(claim)) for claim in claims]

    def retire(self, worker: str, now: float | None = None) -> None:
        """End a worker in good order; claims it still holds go back, free of charge."""
        with self._ground.reading(now) as session:
            rows = self._tx(session).rows("held_rows", consumer=self._consumer.name, worker=worker)
        outcomes = [self._left(row, Event.STOPPED) for row in rows]
        self._settle_apart(worker, outcomes, now)
        self.underlying.retire(worker, now)
        if any(one.ending is not Ending.FAILED for one in outcomes):
            # After its own row says that it is gone: those who are told must be others.
            self._ground.wake_readers(self._consumer.queue)

    def rescue(
        self,
        worker: str,
        careful_age: float,
        now: float | None = None,
        may_rescue: Callable[[], bool] = lambda: True,
    ) -> Rescue:
        """Let the store declare silent workers dead, then take back what the dead hold of this consumer's."""
        done = self.underlying.rescue(worker, careful_age, now, may_rescue)
        moment, again = time.monotonic(), False
        if now is not None or moment >= self._refused_at:
            self._refused_at, again = moment + AGAIN_EVERY, True
        with self._ground.reading(now) as session:
            holders = self._dead_holders(self._tx(session), again)
        requeued = failed = 0
        buried: list[str] = []
        for holder, ended, beat_at, lease in holders:
            died_by = None if lease is None else Lease(lease).died_by(beat_at)
            back, lost = self._rescue_claims(holder, ended != "stopped", died_by, now)
            requeued, failed = requeued + back, failed + lost
            buried += [holder] if back or lost else []
        if requeued:
            self._ground.wake_readers(self._consumer.queue)
        return Rescue(
            workers=sorted({*done.workers, *buried}),
            requeued=done.requeued + requeued,
            failed=done.failed + failed,
            cancelled=done.cancelled,
            waited=done.waited,
        )

    def _dead_holders(self, tx: Session, again: bool) -> list[Any]:
        """Workers that are dead and hold claims; with `again` also claims that could not be given back."""
        return tx.rows("dead_holders", consumer=self._consumer.name, again=int(again))

    def _rescue_claims(
        self, holder: str, died: bool, died_by: float | None, now: float | None
    ) -> tuple[int, int]:
        """Decide on each claim of a dead worker."""
        with self._ground.reading(now) as session:
            rows = self._tx(session).rows("held_rows", consumer=self._consumer.name, worker=holder)
        event = Event.WORKER_DIED if died else Event.STOPPED
        outcomes = [self._left(row, event, died_by) for row in rows]
        written = self._settle_apart(holder, outcomes, now)
        gone = {one.claim for one in written.lost} | {claim for _, claim in written.unwritten}
        refused_now = {one.claim for one in written.refused}
        kept = [one for one in outcomes if one.claim not in gone]
        failed = sum(one.ending is Ending.FAILED or one.claim in refused_now for one in kept)
        return len(kept) - failed, failed

    def _settle_apart(self, holder: str, outcomes: Sequence[Outcome], now: float | None) -> Written:
        """Write the outcomes, each of one claim, together or (if one is refused) apart."""

        def write(some: Sequence[Outcome]) -> list[Outcome]:
            with self._ground.writing(now) as session:
                return self._settling.settle(self._tx(session), holder, some)

        return self.write_apart(holder, outcomes, write, now)

    def _left(self, row: Any, event: Event, died_by: float | None = None) -> Outcome:
        """What becomes of a claim, as `held_rows` reads it, that its worker left behind."""
        claim, key, failures, started_at, deaths, kind, said, budget = row
        began = started_at is not None
        name, title = self._consumer.name, key_text(key)
        plain = Outcome(id=claim, claim=claim, ending=Ending.RELEASED, task=name, row=title)
        facts = Facts(
            failures=failures,
            max_attempts=None if budget is None else max(1, int(budget)),
            deaths=deaths,
            began=began,
            lived=died_by - started_at if began and died_by is not None else 0.0,
        )
        if kind == REFUSED and began:  # nothing could be written for it while its worker lived
            return endings.settled(plain, Event.UNWRITABLE, facts, self._consumer.retry, said or "")
        return endings.settled(plain, event, facts, self._consumer.retry)

    # -- maintenance ----------------------------------------------------------------------------------

    def promote(self, most: int, now: float | None = None) -> int:
        """End pauses whose time is over; a row that is due is taken from where it stands."""
        self._ground.end_pauses(now)
        return 0

    def expire(self, most: int, now: float | None = None) -> int:
        """Fail rows that nobody began in time, and let those that somebody else left running be due again."""
        form, moment = self._consumer.form, time.monotonic()
        if not ages(form) or (now is None and moment < self._ages_at):
            return 0
        self._ages_at = moment + _AGES_EVERY
        try:
            return self._expire(form, now)
        except DataRefused as error:
            if error.said not in self._told_refused:
                self._told_refused.add(error.said)
                log.error(  # noqa: TRY400
                    "consumer %s: the database refuses to change rows that are too old: %s",
                    self._consumer.name,
                    error.said,
                )
            return 0

    def _expire(self, form: Form, now: float | None) -> int:
        failed = 0
        with self._ground.writing(now) as session:
            tx = self._tx(session)
            if form.stale_after is not None:
                values = {
                    "consumer": self._consumer.name,
                    "age": form.stale_after,
                    "charge": 1,
                    **form.always(),
                }
                if reset := tx.run("reset_stale", **values):
                    log.warning(
                        "consumer %s: %d rows that others left running are due again",
                        self._consumer.name,
                        reset,
                    )
            if form.deadline is not None:
                error = endings.not_begun_within(form.deadline)
                late = Outcome(id=0, claim=0, ending=Ending.FAILED, error=error, charge=1)
                values = {"consumer": self._consumer.name, "age": form.deadline, **(form.mark(late, 0) or {})}
                if failed := tx.run("fail_too_old", **values):
                    log.warning("consumer %s: %d rows were not begun in time", self._consumer.name, failed)
        return failed

    def fail_overdue(self, age: float, most: int, now: float | None = None) -> int:
        """Rows have no deadline."""
        return 0

    def prune(self, keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        """Forget claims that wait for rows which are done or gone; say which rows cannot be read."""
        with self._ground.writing(now) as session:
            tx = self._tx(session)
            forgotten = tx.run("forget_the_idle", consumer=self._consumer.name)
            if self._consumer.form.keeps_failures:
                forgotten += tx.run("forget_past_failures", consumer=self._consumer.name)
        self._tell_broken()
        return forgotten, 0

    def _tell_broken(self) -> None:
        if not self._consumer.form.has_broken:
            return
        with self._ground.reading() as session:
            rows = self._tx(session).rows("broken_rows", count=_BROKEN_NAMED)
        news = {key_text(row[0]) for row in rows} - self._told_broken
        if news:
            self._told_broken |= news
            log.error(
                "consumer %s: its state is something else than a JSON object in rows %s; they are skipped "
                "until it is mended",
                self._consumer.name,
                ", ".join(sorted(news)),
            )

    def next_needed(self, worker: str, now: float | None = None) -> float | None:
        """Seconds until a row is to be tried again, or a worker's lease runs out."""
        with self._ground.reading(now) as session:
            tx = self._tx(session)
            if self._dead_holders(tx, again=False):
                return 0.0  # somebody else, who does not see to these rows, has declared it dead meanwhile
            due = tx.row("next_return", consumer=self._consumer.name)[0]
            silent = tx.row("next_silent", worker=worker)[0]
            moments = [silent] if silent is not None else []
            if self._consumer.due_at is not None:
                first = tx.row("next_due")[0]
                moments += [float(first) - tx.now] if first is not None else []
            pause_over = tx.row("next_pause_over")[0]
            moments += [moment - tx.now for moment in (due, pause_over) if moment is not None]
        return max(0.0, min(moments)) if moments else None

    def isolated_waiting(self, queues: Sequence[str], unknown: Sequence[str] = ()) -> bool:
        """True if a row that has to be worked on alone waits."""
        with self._ground.reading() as session:
            return self._tx(session).row("row_alone_waiting", consumer=self._consumer.name) is not None

    def idle(
        self, queues: Sequence[str], now: float | None = None, tasks: Collection[str] | None = None
    ) -> bool:
        """True if no row is due or in flight (or the consumer is paused)."""
        with self._ground.reading(now) as session:
            tx = self._tx(session)
            if tx.row("in_flight", consumer=self._consumer.name) is not None:
                return False
            if self._switched_off or self.claiming.facts(tx, "")[1]:  # paused
                return True
        return not self._anything_due(now)


def _log_lines(said: list[tuple[str, LogLine]]) -> None:
    for title, line in said:
        log.info("%s: %s%s", title, line.message, f" {line.fields}" if line.fields else "")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
