"""A store in which the jobs are the rows of a user's table: claims, outcomes and rescue are its own.

All else (registration, beats, wake-ups, transactions) is the real store's; so a worker runs it unchanged.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from rowlock.consumers.consumer import Consumer
from rowlock.consumers.forms import StatusForm, percent
from rowlock.consumers.row import to_text
from rowlock.consumers.settling import Settling
from rowlock.consumers.table import Table
from rowlock.errors import Fail, WorkerGone
from rowlock.job import Claim, Ending, Exchange, LogLine, Minute, Outcome, Report, Want
from rowlock.stores.base import Rescue, Retention, Store
from rowlock.stores.borrowed import Borrowed
from rowlock.stores.claiming import LONGEST_ALONE
from rowlock.stores.lending import SqlLending
from rowlock.stores.session import Session
from rowlock.stores.sql import SqlStore

log = logging.getLogger("rowlock.consumer")

_SWEEP_EVERY = 1.0  # seconds; in between a worker looks only at what lies beyond the last row it took
_MOST_ROWS = 2_000  # in one exchange
_BROKEN_NAMED = 5
_AGES_EVERY = 5.0  # seconds between looks for rows that are too old
_DIED = "worker_died"
_SPARED = "spared"  # its worker died while it may only have waited: charged if it dies under it once more


class ConsumerStore:
    """One consumer's rows, as a store that a worker can claim from."""

    def __init__(self, store: Store, consumer: Consumer) -> None:
        self.underlying = store
        self._ground = cast("SqlStore", store)
        self._consumer = consumer
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._found = False
        self._mark: tuple[Any, Any] | None = None  # the place of the last row that was taken
        self._sweep_at = 0.0
        self._barren = False
        self._ages_at = 0.0
        self._told_broken: set[str] = set()

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

    def _tx(self, session: Session) -> Session:
        return session.using(self.table.statements)

    @property
    def _settling(self) -> Settling:
        return Settling(self._consumer, self.table)

    # -- claiming and finishing ------------------------------------------------------------------

    def exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        want: Want | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        again: bool = False,
    ) -> Exchange:
        """Hand back outcomes and take rows, in one transaction."""
        count = want.count if want is not None else 0
        writes = bool(outcomes or reports or minutes)
        table = self.table  # looked at before the transaction begins
        if not writes and not self._found and not (count and self._anything_due(now)):
            return Exchange()
        if want and count and not writes and (claims := self._take_at_once(worker, want, now)):
            self._found = True
            self._ground.got_up(worker)
            return Exchange(claims, [], self._consumer.queue)
        with self._ground.writing(now) as session:
            tx = session.using(table.statements)
            self._report(tx, reports)
            lost = self._settling.settle_runs(tx, worker, outcomes)
            if again:  # a claim that is not there any more may have been ended by the answer that was lost
                lost = [one for one in lost if tx.rows("rows_of", ids=_json([one.claim]))]
            if minutes:
                tx.each("add_minute", [msgspec.structs.asdict(minute) for minute in minutes])
            if any(outcome.ending is Ending.RELEASED for outcome in outcomes):
                self._mark = None
                self._ground.hint(tx, self._consumer.queue)
            claims = []
            if want is not None and count:
                claims = self._take(tx, worker, want) or self._take_after_a_look(tx, worker, want, writes)
                self._found = bool(claims)
        if claims:
            self._ground.got_up(worker)
        return Exchange(claims, lost, self._consumer.queue if claims else "")

    def _anything_due(self, now: float | None) -> bool:
        with self._ground.reading(now) as session:
            tx = self._tx(session)
            return (
                bool(self._look_returned(tx)) or tx.row("look_free", consumer=self._consumer.name) is not None
            )

    def _look_returned(self, tx: Session) -> list[Any]:
        limits = {"alone_least": 0, "alone_most": LONGEST_ALONE}
        return tx.rows("look_returned", consumer=self._consumer.name, count=1, **limits)

    def _take_at_once(self, worker: str, want: Want, now: float | None) -> list[Claim]:
        """The same by one statement that commits by itself, where all is as usual and no other is needed."""
        if self._consumer.form.holds or self._consumer.batch is not None:
            return []
        session = self._ground.at_once(now)
        if session is None:
            return []
        with session as opened:
            return self._take(self._tx(opened), worker, want)

    def _take_after_a_look(self, tx: Session, worker: str, want: Want, writes: bool) -> list[Claim]:
        """The same if something is not as usual: the worker, the consumer, or rows to be tried again."""
        alive, paused, returned = self._facts(tx, worker)
        if not alive and not writes:
            raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
        return self._take(tx, worker, want, returned) if alive and not paused else []

    def _facts(self, tx: Session, worker: str) -> tuple[bool, bool, bool]:
        """Is the worker alive, is the consumer paused, and are there claims to be tried again?"""
        values = {"worker": worker, "queue": self._consumer.queue, "consumer": self._consumer.name}
        alive, paused, returned, *_ = tx.row("consumer_facts", **values)
        return alive, paused, returned

    def _take(self, tx: Session, worker: str, want: Want, returned: bool | None = None) -> list[Claim]:
        """Rows for this worker; those to be tried again first, if there are any, which None leaves open."""
        taken: list[int] = []
        fresh: list[Any] = []
        count = min(want.count * (self._consumer.batch or 1), max(_MOST_ROWS, self._consumer.batch or 1))
        if returned and want.alone:  # its last worker died under it: it gets no neighbours to take along
            taken = self._retake(tx, worker, 1, (1, LONGEST_ALONE))
        if not taken:
            taken = self._retake(tx, worker, count, (0, 0)) if returned else []
            if len(taken) < count:
                waits = self._consumer.name in want.quick and self._consumer.retry.max_attempts > 1
                asked = returned is not None
                fresh = self._take_free(tx, worker, count - len(taken), charge=not waits, asked=asked)
        if not (taken or fresh):
            return []
        ids = _json([*taken, *(row[0] for row in fresh)])
        if self._consumer.form.holds:
            tx.run("take_rows", ids=ids, **self._consumer.form.always())
        as_they_are = fresh and len(fresh[0]) > 1 and not (taken or self._consumer.form.holds)
        return self._claims(tx, worker, fresh if as_they_are else tx.rows("taken", ids=ids), set(taken))

    def _retake(self, tx: Session, worker: str, count: int, alone: tuple[int, int]) -> list[int]:
        """Claims that were given back and are due again, each under a new number."""
        values = {"consumer": self._consumer.name, "count": count}
        taken = []
        for (claim,) in tx.rows("pick_returned", alone_least=alone[0], alone_most=alone[1], **values):
            if "draw_claim" in self.table.statements:
                tx.run("draw_claim")
            taken += [row[0] for row in tx.rows("retake", claim_number=claim, worker=worker)]
        return taken

    def _take_free(self, tx: Session, worker: str, count: int, charge: bool, asked: bool) -> list[Any]:
        """Claims of rows that nobody has: beyond the last one taken, and every second from the first on.

        So a claim does not step over all that is in flight or waits to be tried again. Rows that may wait in
        their worker have not started: if it dies, they were not the ones who killed it, and are not charged.
        """
        values: dict[str, Any] = {"consumer": self._consumer.name, "queue": self._consumer.queue}
        values |= {"worker": worker, "count": count, "charge": int(charge), "asked": int(asked)}
        moment = time.monotonic()
        if self._mark is not None and moment < self._sweep_at:
            order, key = self._mark
            taken = tx.rows("take_free_beyond", mark_order=order, mark_key=key, **values)
            if taken or self._barren or not asked:
                return taken
        taken = tx.rows("take_free", **values)
        if taken or asked:
            self._sweep_at, self._barren = moment + _SWEEP_EVERY, not taken
        return taken

    def _claims(self, tx: Session, worker: str, taken: list[Any], again: set[int]) -> list[Claim]:
        rows = sorted(taken, key=lambda row: row[0])  # numbers are drawn in the order of the rows
        order, key = rows[-1][5], rows[-1][1]
        self._mark = None if order is None else (order, key)
        lots = _lots(rows, self._consumer.batch or 1)
        several = [lot for lot in lots if len(lot) > 1]
        tx.each(
            "name_lot",
            [{"claim_number": lot[0][0], "ids": _json([row[0] for row in lot])} for lot in several],
        )
        return [self._claim(worker, lot, any(row[0] in again for row in lot)) for lot in lots]

    def _claim(self, worker: str, lot: list[Any], again: bool) -> Claim:
        """One claim for these rows, under the number of the first."""
        claim, key, failures, alone, claimed_at, *_ = lot[0]
        values = [self.table.loaded(tuple(row[6:])) for row in lot]
        return Claim(
            id=claim,
            claim=claim,
            task=self._consumer.name,
            queue=self._consumer.queue,
            args_json=to_text(self.table.columns, values),
            priority=0,
            failures=failures,
            max_attempts=self._consumer.retry.max_attempts,
            created=claimed_at,
            due=claimed_at,
            taken=claimed_at,
            claimed_by=worker,
            unique_key=key_text(key),
            alone=alone,
            again=again,
            row=key_text(key) + (f" and {len(lot) - 1} more" if len(lot) > 1 else ""),
        )

    def finish_on(self, lent: Borrowed, worker: str, outcome: Outcome, report: Report | None) -> bool:
        """Mark the row and end the claim in the task's own transaction; False: the claim was lost."""
        table = self.table
        tx = cast("SqlLending", self._ground).session_on(lent).using(table.on(lent.style))
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

    def report(self, reports: Sequence[Report], now: float | None = None) -> None:
        """Write progress; what is logged goes to the log, because a row has no page of its own."""
        if reports:
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
                always = self._consumer.form.always()
                percents = [(one["claim_number"], percent(one["done"], one["total"])) for one in values]
                tx.each(
                    "progress_of_row",
                    [{"claim_number": claim, "percent": value, **always} for claim, value in percents],
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
            rows = self._tx(session).rows("held_lots", consumer=self._consumer.name, worker=worker)
            return [(lot, lot, False) for (lot,) in rows]

    def titles(self, held: Sequence[tuple[int, int]]) -> list[str]:
        """How these claims are called in log lines, while they are there."""
        claims = [claim for _, claim in held]
        with self._ground.reading() as session:
            keys = dict(self._tx(session).rows("rows_of", ids=_json(claims)))
        return [self._title(claim, keys.get(claim)) for claim in claims]

    def retire(self, worker: str, now: float | None = None) -> None:
        """End a worker in good order; claims it still holds go back, free of charge."""
        with self._ground.writing(now) as session:
            tx = self._tx(session)
            once = self._consumer.retry.max_attempts == 1
            error = "its worker ended while it ran, and it is run at most once" if once else None
            ending, kind = (Ending.FAILED, "worker_stopped") if once else (Ending.RELEASED, None)
            rows = tx.rows("held_rows", consumer=self._consumer.name, worker=worker)
            outcomes = [
                Outcome(id=claim, claim=claim, ending=ending, error=error, error_kind=kind)
                for claim, *_ in rows
            ]
            self._settling.settle(tx, worker, outcomes)
        self.underlying.retire(worker, now)
        if outcomes and not once:  # after its own row says that it is gone: those who are told must be others
            self._ground.wake_readers(self._consumer.queue)

    def rescue(
        self,
        worker: str,
        careful_age: float,
        now: float | None = None,
        steady: Callable[[], bool] = lambda: True,
    ) -> Rescue:
        """Let the store declare silent workers dead, then take back what the dead hold of this consumer's."""
        done = self.underlying.rescue(worker, careful_age, now, steady)
        with self._ground.reading(now) as session:
            if not self._tx(session).rows("dead_holders", consumer=self._consumer.name):
                return done
        requeued = failed = 0
        with self._ground.writing(now) as session:
            tx = self._tx(session)
            holders = tx.rows("dead_holders", consumer=self._consumer.name)
            for holder, ended, died_by in holders:
                back, lost = self._bury(tx, holder, ended != "stopped", died_by)
                requeued, failed = requeued + back, failed + lost
            if requeued:
                self._ground.hint(tx, self._consumer.queue)
        return Rescue(
            workers=sorted({*done.workers, *(holder for holder, *_ in holders)}),
            requeued=done.requeued + requeued,
            failed=done.failed + failed,
            cancelled=done.cancelled,
            waited=done.waited,
        )

    def _bury(self, tx: Session, holder: str, died: bool, died_by: float | None) -> tuple[int, int]:
        """Decide on each claim of a dead worker; started ones are charged, as jobs are."""
        attempts = self._consumer.retry.max_attempts
        outcomes = []
        alone: dict[int, int] = {}
        for claim, _, failures, started_at, error_kind in tx.rows(
            "held_rows", consumer=self._consumer.name, worker=holder
        ):
            began: float = 0.0 if started_at is None else started_at
            charge = 2 if error_kind == _SPARED else 1
            survived = math.ceil(died_by - began) if died_by is not None else 1
            if not died:
                outcomes.append(_ended(claim, Ending.RELEASED))
            elif started_at is None:  # with a delay it is remembered, and counts as started the next time
                alone[claim] = 1
                outcomes.append(_ended(claim, Ending.RELEASED, _SPARED, delay=0.0))
            elif failures + charge >= attempts:
                error = f"its worker died under it; its budget of {attempts} attempts is used up"
                outcomes.append(_ended(claim, Ending.FAILED, error=error, charge=charge))
            else:
                alone[claim] = max(1, min(survived, LONGEST_ALONE))
                outcomes.append(_ended(claim, Ending.RETRY, _DIED, charge=charge))
        lost = {one.claim for one in self._settling.settle(tx, holder, outcomes, alone)}
        kept = [one for one in outcomes if one.claim not in lost]
        failed = sum(one.ending is Ending.FAILED for one in kept)
        return len(kept) - failed, failed

    # -- upkeep ----------------------------------------------------------------------------------

    def promote(self, most: int, now: float | None = None) -> int:
        """Nothing to do: a row that is due is taken from where it stands."""
        return 0

    def expire(self, most: int, now: float | None = None) -> int:
        """Fail rows that nobody began in time, and let those that somebody else left running be due again."""
        form, moment = self._consumer.form, time.monotonic()
        if not isinstance(form, StatusForm) or not form.ages or (now is None and moment < self._ages_at):
            return 0
        self._ages_at = moment + _AGES_EVERY
        status, failed = form.status, 0
        with self._ground.writing(now) as session:
            tx = self._tx(session)
            if status.stale_after is not None:
                values = {"consumer": self._consumer.name, "age": status.stale_after, **form.always()}
                if reset := tx.run("reset_stale", **values):
                    log.warning(
                        "consumer %s: %d rows that others left running are due again",
                        self._consumer.name,
                        reset,
                    )
            if status.deadline is not None:
                error = f"it was not begun within {status.deadline:g} s"
                values = {"age": status.deadline, "error": error, "word": status.failed, "percent": None}
                if failed := tx.run("fail_too_old", **values):
                    log.warning("consumer %s: %d rows were not begun in time", self._consumer.name, failed)
        return failed

    def fail_overdue(self, age: float, most: int, now: float | None = None) -> int:
        """Rows have no deadline."""
        return 0

    def prune(self, keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        """Forget claims that wait for rows which are done or gone; say which rows cannot be read."""
        with self._ground.writing(now) as session:
            forgotten = self._tx(session).run("forget_the_idle", consumer=self._consumer.name)
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
            if tx.rows("dead_holders", consumer=self._consumer.name):
                return 0.0  # somebody else, who does not see to these rows, has declared it dead meanwhile
            due = tx.row("next_return", consumer=self._consumer.name)[0]
            silent = tx.row("next_silent", worker=worker)[0]
            moments = [silent] if silent is not None else []
            if due is not None:
                moments.append(due - tx.now)
        return max(0.0, min(moments)) if moments else None

    def alone_waiting(self) -> bool:
        """True if a row that has to be worked on alone waits."""
        with self._ground.reading() as session:
            return self._tx(session).row("row_alone_waiting", consumer=self._consumer.name) is not None

    def idle(self, queues: Sequence[str], now: float | None = None) -> bool:
        """True if no row is due or in flight (or the consumer is paused)."""
        with self._ground.reading(now) as session:
            tx = self._tx(session)
            if tx.row("in_flight", consumer=self._consumer.name) is not None:
                return False
            if self._facts(tx, "")[1]:  # paused
                return True
        return not self._anything_due(now)


def _log_lines(said: list[tuple[str, LogLine]]) -> None:
    for title, line in said:
        log.info("%s: %s%s", title, line.message, f" {line.fields}" if line.fields else "")


def _lots(rows: list[Any], most: int) -> list[list[Any]]:
    """Rows that are worked on together: as often tried as each other, so that one budget is meant for all."""
    lots: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: (row[2], row[0])) if most > 1 else rows:
        if lots and len(lots[-1]) < most and lots[-1][0][2] == row[2] and not row[3] and not lots[-1][0][3]:
            lots[-1].append(row)
        else:
            lots.append([row])
    return lots


def key_text(key: Any) -> str:
    """A row's key for people."""
    return key.hex() if isinstance(key, (bytes, bytearray, memoryview)) else str(key)


def _ended(claim: int, ending: Ending, kind: str = _DIED, **values: Any) -> Outcome:
    return Outcome(id=claim, claim=claim, ending=ending, error_kind=kind, **values)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
