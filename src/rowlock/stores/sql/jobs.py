"""Jobs as a source of work: how they are claimed, finished and brought back, and their maintenance.

The steps themselves are in `claiming.py` and `finishing.py`, the statements in the `.sql` files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from rowlock import claim_outcomes, endings
from rowlock.codec import json_text
from rowlock.endings import Event, Facts
from rowlock.errors import DataRefused, WorkerGone
from rowlock.job import Claim, ClaimKey, ClaimRequest, Exchange, Outcome, Report
from rowlock.retry import DEFAULT
from rowlock.stores.source import DeadHolder, OneStatement, Retention
from rowlock.stores.sql import claiming, finishing, pruning
from rowlock.stores.sql.claiming import Claiming, has_work, listed, sweep
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.finishing import Step, history_of, take_steps
from rowlock.stores.sql.queues_in_turn import QueueSettings, queue_settings
from rowlock.stores.sql.refusals import REFUSED
from rowlock.stores.sql.scan_marks import Marks
from rowlock.stores.sql.session import Session

_MOST_MARKS = 1_000
_RECENTLY_DEAD = 3_600.0  # seconds after its death in which a worker's last claim may be committed


class JobSource:
    """The jobs of one database."""

    announces_all_work = True
    is_jobs = True

    def __init__(self, database: Database) -> None:
        self._database = database
        # Each is for one worker, its queues and the tasks that it leaves out: a sweep for others, or of other
        # queues, says nothing.
        self._marks: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Marks] = {}

    # -- claiming and finishing ------------------------------------------------------------------

    def may_claim(self) -> bool:
        return True

    def has_work(self, worker: str, request: ClaimRequest, now: float | None = None) -> bool:
        marks = self._marks_of(worker, request)
        if marks and marks.in_use:  # to look costs as much as a claim that finds nothing
            return True
        with self._database.read(now) as db, marks.timed() if marks else nullcontext():
            return has_work(db, request)

    def look_again_in(self, worker: str, request: ClaimRequest) -> float:
        marks = self._marks_of(worker, request)
        return marks.sweep_in() if marks else math.inf

    def _marks_of(self, worker: str, request: ClaimRequest) -> Marks | None:
        """Where this worker's scans begin; None: always at the front."""
        if not request.unknown or not self._database.claim_sql.has_marks:
            return None
        if len(self._marks) >= _MOST_MARKS:  # many of them are of workers that have ended
            self._marks.clear()
        return self._marks.setdefault((worker, request.queues, request.unknown), Marks())

    def in_one_statement(self, asked: Exchange) -> OneStatement | None:
        request = asked.request
        marks = self._marks_of(asked.worker, request) if request else None
        if request is None or marks is None:
            return self._database.in_one_statement(asked)
        if marks.sweep_due():
            with self._database.read(asked.now) as db:  # not in the transaction: it may take long
                sweep(db, request, marks)
        if marks.in_use:  # only plain transactions know marks
            return None
        with marks.timed():
            return self._database.in_one_statement(asked)

    def pick(self, tx: Session, worker: str, request: ClaimRequest, begins: bool) -> list[Claim]:
        # As in `queues_in_turn`, jobs of unknown tasks count: the claim has to step over them anyway.
        facts = tx.row("claim_facts", worker=worker, after=request.after, unknown=None)
        alive, has_settings, has_isolated, next_queue = facts
        if not alive:
            raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
        settings = queue_settings(tx) if has_settings else QueueSettings()
        marks = self._marks_of(worker, request)
        scan = Claiming(tx, self._database.claim_sql, worker, request, marks, begins)
        return finishing.without_expired(tx, worker, scan.take(settings, has_isolated, next_queue))

    def start(self, tx: Session, worker: str, claim: ClaimKey, queues: Sequence[str]) -> Claim | None:
        begun = claiming.start(tx, worker, *claim, queues)
        return begun if begun and finishing.without_expired(tx, worker, [begun]) else None

    def pick_apart(
        self, worker: str, request: ClaimRequest, begins: bool, now: float | None
    ) -> tuple[list[Claim], list[tuple[Outcome, DataRefused]]] | None:
        return None

    def finish(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        return finishing.finish(tx, worker, self._database.finish_many(tx, outcomes))

    def parts(self, db: Session, worker: str, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
        return [[outcome] for outcome in outcomes]

    was_written = staticmethod(finishing.was_written)
    took_effect = staticmethod(finishing.took_effect)
    report = staticmethod(finishing.write_reports)

    def note_refused(self, tx: Session, worker: str, outcome: Outcome, said: str) -> bool:
        noted = history_of(
            outcome.id,
            outcome.claim,
            REFUSED,
            worker=worker,
            started_at=outcome.started,
            error=said,
            error_kind=REFUSED,
        )
        return tx.run("note_refused", **noted) > 0

    def announce(self, tx: Session, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            named = all(one.queue and one.task for one in outcomes)
            self._database.hint(tx, *_names((one.queue, one.task) for one in outcomes if named))

    # -- in a task's own transaction ---------------------------------------------------------------

    def finish_on(
        self, tx: Session, style: str, worker: str, outcome: Outcome, report: Report | None
    ) -> bool:
        self.report(tx, [] if report is None else [report])
        return not finishing.finish(tx, worker, [outcome])

    def confirm_on(self, tx: Session, style: str, claim: Claim, report: Report | None) -> bool:
        self.report(tx, [] if report is None else [report])
        return tx.run("hold_claim", id=claim.id, claim=claim.claim) > 0

    # -- claims of the living and of the dead ------------------------------------------------------

    def held(self, db: Session, worker: str) -> list[tuple[int, int, bool]]:
        return [(job, claim, bool(cancelled)) for job, claim, cancelled in db.rows("held", worker=worker)]

    def titles(self, held: Sequence[ClaimKey]) -> list[str]:
        return [f"job {job}" for job, _ in held]

    left_by = staticmethod(finishing.left_by)

    def dead_holders(self, db: Session, include_refused: bool) -> list[DeadHolder]:
        return [
            DeadHolder(*row)
            for row in db.rows("dead_holders", include_refused=int(include_refused), age=_RECENTLY_DEAD)
        ]

    # -- maintenance ------------------------------------------------------------------------------------

    def promote(self, most: int, now: float | None = None) -> int:
        end_pauses(self._database, now)
        with self._database.read(now) as db:
            if not db.rows("due_jobs", most=1):
                return 0
        with self._database.write(now) as tx:
            due = tx.rows("due_jobs", most=most)
            queue_up(self._database, tx, "promote", due)
            return len(due)

    def expire(self, most: int, now: float | None = None) -> int:
        with self._database.read(now) as db:
            if not db.rows("expired_jobs", most=1):
                return 0
        with self._database.write(now) as tx:
            expired = tx.rows("expired_jobs", most=most)
            finishing.expire(tx, expired)
            return len(expired)

    def fail_overdue(self, age: float, most: int, now: float | None = None) -> int:
        with self._database.read(now) as db:
            overdue = db.rows("overdue_running", age=age)
            queue = ""
            while (queue := db.row("queue_after", after=queue)[0]) is not None:
                overdue += db.rows("overdue_queued", age=age, queue=queue, count=most)
        if not overdue:
            return 0
        kind = endings.decide(Event.OVERDUE, Facts(), DEFAULT).kind
        said: dict[str, Any] = {"error": claim_outcomes.overdue(age), "error_kind": kind}
        steps = [
            Step(
                "fail_overdue",
                {"id": job, "claim": claim, "age": age, **said},
                history_of(job, claim, "failed", **said),
            )
            for job, claim in overdue
        ]
        with self._database.write(now) as tx:
            return sum(take_steps(tx, steps))

    def prune(self, keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        return pruning.prune(self._database, keep, after, most, now)

    def next_needed(self, worker: str, now: float | None = None) -> float | None:
        with self._database.read(now) as db:
            return soonest(*db.row("next_needed", worker=worker))

    def isolated_waiting(self, queues: Sequence[str], unknown: Sequence[str] = ()) -> bool:
        with self._database.read() as db:
            found = db.row("isolated_waiting", queues=listed(queues), unknown=listed(unknown))
        return found is not None

    def idle(
        self, queues: Sequence[str], now: float | None = None, tasks: Collection[str] | None = None
    ) -> bool:
        names = None if tasks is None else json_text(sorted(tasks))
        with self._database.read(now) as db:
            paused = queue_settings(db).paused
            name = ""
            while (name := db.row("queue_after", after=name)[0]) is not None:
                if name in paused or (queues and name not in queues):
                    continue
                if tasks is None or db.row("queue_has_tasks", queue=name, task_names=names):
                    return False
            return db.row("busy", queues=listed(queues), task_names=names) is None


def end_pauses(database: Database, now: float | None = None) -> None:
    """Let queues be claimed from again that were paused until now."""
    with database.read(now) as db:
        if not db.rows("pauses_over"):
            return
    with database.write(now) as tx:
        if names := [name for (name,) in tx.rows("end_pauses")]:
            database.hint(tx, names)


def queue_up(database: Database, tx: Session, statement: str, jobs: Sequence[Any]) -> None:
    """Give scheduled jobs (id, queue, task) positions at the end of the line, in this order."""
    if jobs:
        positions = database.numbers(tx, len(jobs))
        tx.each(statement, [{"id": job[0], "position": at} for job, at in zip(jobs, positions, strict=True)])
        database.hint(tx, *_names((queue, task) for _, queue, task in jobs))


def soonest(now: float, silent_in: float | None, *moments: float | None) -> float | None:
    """Seconds until the first of these moments, or until a worker's lease runs out; None: nothing known."""
    waits = [float(moment) - now for moment in moments if moment is not None]
    waits += [] if silent_in is None else [silent_in]
    return max(0.0, min(waits)) if waits else None


def _names(jobs: Iterable[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """The queues and the tasks of these jobs."""
    pairs = set(jobs)
    return {queue for queue, _ in pairs}, {task for _, task in pairs}
