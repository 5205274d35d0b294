"""Each verb of a store that speaks SQL, written once; a database's folder supplies what truly differs.

Loops and decisions are here, statements are in the `.sql` files, connections are in the database's folder.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Protocol

import msgspec

from rowlock.errors import JobNotFound, WorkerGone, WrongState
from rowlock.job import Claim, Ending, Exchange, Minute, Outcome, Report, State, Want
from rowlock.stores.base import Registration, Rescue, Retention
from rowlock.strategies import get_strategy

KEPT_LINES = 500
_DEFAULT_ATTEMPTS = 3
_LONGEST_ALONE = 60  # seconds


class Session(Protocol):
    """An open transaction (or a short read) in which named statements are run."""

    now: float

    def run(self, name: str, /, **values: Any) -> int:
        """Run a statement; returns the number of rows it changed."""
        ...

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        """All rows of a statement."""
        ...

    def row(self, name: str, /, **values: Any) -> Any:
        """The first row, or None."""
        ...


class SqlShelf:
    """One queue's queued jobs, as a strategy sees them inside a claim."""

    def __init__(self, tx: Session, worker: str, queue: str, alone: bool) -> None:
        self._tx = tx
        self._values: dict[str, Any] = {
            "worker": worker,
            "queue": queue,
            "alone": _LONGEST_ALONE if alone else 0,
        }

    # RETURNING has no order on any of the databases: sort by what the statement chose by.

    def highest(self, count: int) -> list[Claim]:
        rows = self._tx.rows("take_highest", count=count, **self._values)
        rows.sort(key=lambda row: (-row[5], row[-1]))
        return [_claim(row) for row in rows]

    def oldest(self, count: int) -> list[Claim]:
        return self._by_position(self._tx.rows("take_oldest", count=count, **self._values))

    def newest(self, count: int) -> list[Claim]:
        return self._by_position(self._tx.rows("take_newest", count=count, **self._values))[::-1]

    def oldest_at(self, level: int, count: int) -> list[Claim]:
        return self._by_position(self._tx.rows("take_at_level", level=level, count=count, **self._values))

    def levels(self) -> list[int]:
        return [row[0] for row in self._tx.rows("levels", **self._values)]

    @staticmethod
    def _by_position(rows: list[Any]) -> list[Claim]:
        rows.sort(key=lambda row: row[-1])
        return [_claim(row) for row in rows]


CLAIM_COLUMNS = (
    "id, claim, task, queue, args, priority, failures, max_attempts, created_at, run_at, claimed_at, "
    "claimed_by, expires_at, unique_key, meta, alone, position"
)


def _claim(row: Any) -> Claim:
    return Claim(
        id=row[0],
        claim=row[1],
        task=row[2],
        queue=row[3],
        args_json=row[4],
        priority=row[5],
        failures=row[6],
        max_attempts=row[7],
        created_at=row[8],
        run_at=row[9],
        claimed_at=row[10],
        claimed_by=row[11],
        expires_at=row[12],
        unique_key=row[13],
        meta_json=row[14],
        alone=row[15],
    )


class SqlStore(ABC):
    """The writing verbs; `rowlock.stores.reading.SqlReads` has the reading ones."""

    @abstractmethod
    def _write(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A transaction that commits durably when the block ends, and rolls back if it raises."""

    @abstractmethod
    def _read(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A session for reads that hold nothing open between statements."""

    @abstractmethod
    def _numbers(self, tx: Session, count: int) -> range:
        """Draw `count` fresh numbers from the sequence that ids and positions share."""

    # -- claiming and finishing ------------------------------------------------------------------

    def exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        want: Want | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
    ) -> Exchange:
        writes = bool(outcomes or reports or minutes)
        if not writes and not self._anything_to_claim(want, now):
            return Exchange()  # a read told it: an empty queue costs no write transaction
        with self._write(now) as tx:
            _write_reports(tx, reports)
            lost = [outcome for outcome in outcomes if not _finish(tx, worker, outcome)]
            for minute in minutes:
                tx.run("add_minute", **msgspec.structs.asdict(minute))
            claims: list[Claim] = []
            if want and want.count > 0:
                if tx.row("worker_alive", worker=worker) is None:
                    if writes:  # keep what was finished; the caller learns of its death at its next beat
                        return Exchange([], lost, want.after)
                    raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
                claims = _take(tx, worker, want)
            last = claims[-1].queue if claims else (want.after if want else "")
            return Exchange(_without_expired(tx, worker, claims), lost, last)

    def _anything_to_claim(self, want: Want | None, now: float | None) -> bool:
        if want is None or want.count < 1:
            return False
        with self._read(now) as db:
            return next(_queues_in_turn(db, want), None) is not None

    def report(self, reports: Sequence[Report], now: float | None = None) -> None:
        if reports:
            with self._write(now) as tx:
                _write_reports(tx, reports)

    # -- liveness --------------------------------------------------------------------------------

    def register(self, worker: Registration, now: float | None = None) -> str:
        values = msgspec.structs.asdict(worker)
        values["queues"] = msgspec.json.encode(worker.queues).decode()
        values["tasks"] = msgspec.json.encode(worker.tasks).decode()
        with self._write(now) as tx:
            suffix = 1
            while not tx.run("register_worker", **values):  # an id is one incarnation, never used again
                suffix += 1
                values["id"] = f"{worker.id}.{suffix}"
        return str(values["id"])

    def beat(self, worker: str, strategy: str, now: float | None = None) -> bool:
        with self._write(now) as tx:
            return tx.run("beat", worker=worker, strategy=strategy) > 0

    def retire(self, worker: str, now: float | None = None) -> None:
        with self._write(now) as tx:
            for job, claim, *_ in tx.rows("held_by", worker=worker):
                _finish(tx, worker, Outcome(id=job, claim=claim, ending=Ending.RELEASED))
            tx.run("retire_worker", worker=worker)

    def cancel_requests(self, worker: str) -> list[tuple[int, int]]:
        with self._read() as db:
            return [(row[0], row[1]) for row in db.rows("cancel_requests", worker=worker)]

    # -- upkeep ----------------------------------------------------------------------------------

    def promote(self, most: int, now: float | None = None) -> int:
        with self._read(now) as db:
            if not db.rows("due_jobs", most=1):
                return 0
        with self._write(now) as tx:
            due = tx.rows("due_jobs", most=most)
            for (job,), position in zip(due, self._numbers(tx, len(due)), strict=True):
                tx.run("promote", id=job, position=position)
            return len(due)

    def rescue(self, worker: str, careful_age: float, now: float | None = None) -> Rescue:
        with self._read(now) as db:
            if not db.rows("silent_workers"):
                return Rescue()
        with self._write(now) as tx:
            # If everyone froze together (a stuck lock, a suspended machine), the others only need a moment.
            own_beat = tx.row("beat_age", worker=worker)
            if own_beat is None or own_beat[0] > careful_age:
                return Rescue(waited=True)
            silent = tx.rows("silent_workers")
            fates = [
                fate
                for name, tasks, died_by in silent
                for fate in _bury(tx, name, msgspec.json.decode(tasks), died_by)
            ]
            return Rescue(
                workers=[name for name, *_ in silent],
                requeued=fates.count(State.QUEUED),
                failed=fates.count(State.FAILED),
                cancelled=fates.count(State.CANCELLED),
            )

    def expire(self, most: int, now: float | None = None) -> int:
        with self._read(now) as db:
            if not db.rows("expired_jobs", most=1):
                return 0
        with self._write(now) as tx:
            expired = tx.rows("expired_jobs", most=most)
            for job, claim in expired:
                error = "it was not started before its deadline (expires)"
                tx.run("expire", id=job, claim=claim, error=error)
                _add_history(tx, job, claim, "expired", error=error, error_kind="expired")
            return len(expired)

    def prune(self, keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        with self._read(now) as db:
            page = db.rows("prune_page", after=after, most=most)
            newest = db.now - min(keep.completed, keep.failed)
        # Ids grow with created_at: from the first row that is too young on, every row is.
        old = [row for row in page if row[2] <= newest]
        limits = {State.COMPLETED: keep.completed, State.FAILED: keep.failed, State.CANCELLED: keep.failed}
        doomed = [row[0] for row in old if row[1] in limits and row[3] <= db.now - limits[row[1]]]
        if doomed:
            with self._write(now) as tx:
                for job in doomed:
                    if tx.run("prune_job", id=job):
                        for side_table in ("prune_history", "prune_logs", "prune_progress"):
                            tx.run(side_table, id=job)
        return len(doomed), (page[-1][0] if page and len(old) == len(page) == most else 0)

    def prune_records(self, age: float, now: float | None = None) -> None:
        """Delete the rows of workers that ended, and of minutes that passed, longer than `age` ago."""
        with self._write(now) as tx:
            tx.run("prune_workers", age=age)
            tx.run("prune_minutes", minute=int((tx.now - age) // 60))

    def alone_waiting(self) -> bool:
        with self._read() as db:
            return db.row("alone_waiting") is not None

    # -- operators -------------------------------------------------------------------------------

    def cancel(self, job: int, now: float | None = None) -> None:
        with self._write(now) as tx:
            if tx.run("cancel_waiting", id=job):
                _add_history(tx, job, _claim_number(tx, job), "cancelled", error_kind="operator")
            else:
                tx.run("cancel_running", id=job)

    def retry(self, job: int, now: float | None = None) -> None:
        with self._write(now) as tx:
            row = tx.row("retry_facts", id=job)
            if row is None:
                raise JobNotFound(f"there is no job {job}; it may have been pruned")
            claim, state, task, unique_key, unique_until = row
            if state in (State.QUEUED, State.RUNNING):
                raise WrongState(
                    f"job {job} is {state}: there is nothing to retry; cancel it first if it is stuck"
                )
            if unique_until is not None and state != State.SCHEDULED:
                holder = tx.row("unique_holder", task=task, unique_key=unique_key)
                if holder is not None:
                    raise WrongState(
                        f"job {job} cannot be retried: job {holder[0]} holds its unique key {unique_key!r}; "
                        "wait for that one or cancel it"
                    )
            tx.run("retry_job", id=job, position=self._numbers(tx, 1)[0])
            _add_history(tx, job, claim, "retried", error_kind="operator")

    def set_queue(
        self, name: str, *, paused: bool | None = None, strategy: str | None = None, now: float | None = None
    ) -> None:
        with self._write(now) as tx:
            if paused is not None:
                tx.run("set_paused", name=name, paused=int(paused))
            if strategy is not None:
                tx.run("set_strategy", name=name, strategy=get_strategy(strategy).name if strategy else None)


# -- the steps of an exchange; each runs inside the caller's transaction --------------------------


def _finish(tx: Session, worker: str, outcome: Outcome) -> bool:
    """Write one outcome; False means that the claim was lost, and nothing was written."""
    changed = tx.run(
        f"finish_{outcome.ending}",
        id=outcome.id,
        claim=outcome.claim,
        result=outcome.result,
        error=outcome.error,
        error_kind=outcome.error_kind,
        delay=outcome.delay,
        charge=int(outcome.charge),
    )
    if changed and not (outcome.ending is Ending.COMPLETED and outcome.claim == 1):
        _add_history(
            tx,
            outcome.id,
            outcome.claim,
            outcome.ending,
            worker=worker,
            error=outcome.error,
            error_kind=outcome.error_kind,
        )
    return changed > 0


def _write_reports(tx: Session, reports: Sequence[Report]) -> None:
    for report in reports:
        fence = {"id": report.id, "claim": report.claim}
        if report.progress:
            tx.run("report_progress", **fence, **msgspec.structs.asdict(report.progress))
        for line in report.lines:
            tx.run("report_line", **fence, at=line.at, message=line.message, fields=line.fields)
        if report.lines:
            tx.run("trim_lines", id=report.id, keep=KEPT_LINES)


def _take(tx: Session, worker: str, want: Want) -> list[Claim]:
    """Claim from the queues in turn, each by its own strategy."""
    overrides = {name: strategy for name, _, strategy in tx.rows("queue_settings") if strategy}
    claims: list[Claim] = []

    def take(queue: str, count: int, alone: bool) -> int:
        strategy = get_strategy(overrides.get(queue, want.strategy))
        got = strategy.take(SqlShelf(tx, worker, queue, alone), count)
        claims.extend(got)
        return len(got)

    # Never more queues than jobs are wanted, so that a thousand queues cost no more than a few.
    queues = list(islice(_queues_in_turn(tx, want), want.count))
    if want.alone and queues and take(queues[0], 1, alone=True) and claims[0].alone:
        return claims  # its last worker died under it: it gets no neighbours that it could take along
    while queues and len(claims) < want.count:
        still_full = []
        for index, queue in enumerate(queues):
            share = -(-(want.count - len(claims)) // (len(queues) - index))
            if share > 0 and take(queue, share, alone=False) == share:
                still_full.append(queue)
        queues = still_full
    return claims


def _queues_in_turn(db: Session, want: Want) -> Iterator[str]:
    """The queues that have queued jobs and are not paused, beginning after the one served last."""
    paused = {name for name, paused_at, _ in db.rows("queue_settings") if paused_at is not None}
    if want.queues:
        names = list(want.queues)
        start = names.index(want.after) + 1 if want.after in names else 0
        for name in names[start:] + names[:start]:
            if name not in paused and db.row("queue_has_work", queue=name):
                yield name
        return
    name, wrapped = want.after, want.after == ""
    while True:
        found = db.row("next_queue", after=name)[0]
        if found is None:
            if wrapped:
                return
            name, wrapped = "", True
            continue
        if wrapped and want.after != "" and found > want.after:
            return
        name = found
        if name not in paused:
            yield name


def _without_expired(tx: Session, worker: str, claims: list[Claim]) -> list[Claim]:
    """Fail those that were claimed after their deadline to start, and keep the others."""
    kept = []
    for claim in claims:
        if claim.expires_at is None or claim.expires_at > tx.now:
            kept.append(claim)
            continue
        error = "it was not started before its deadline (expires)"
        late = Outcome(
            id=claim.id, claim=claim.claim, ending=Ending.FAILED, error=error, error_kind="expired"
        )
        _finish(tx, worker, late)
    return kept


def _bury(tx: Session, worker: str, tasks: dict[str, Any], died_by: float) -> list[State]:
    """Declare a worker dead and decide on each of its claims; started ones are charged.

    A charged one may have killed it. Next time it runs without company for as long as it may have lived
    this time (up to a minute): if it kills again, it takes nobody along.
    """
    tx.run("bury_worker", worker=worker)
    fates = []
    for job, claim, failures, budget, started_at, cancel_requested_at, task in tx.rows(
        "held_by", worker=worker
    ):
        charge = int(started_at is not None)
        attempts = budget or tasks.get(task, {}).get("max_attempts") or _DEFAULT_ATTEMPTS
        error = None
        if cancel_requested_at is not None:
            fate = State.CANCELLED
            tx.run("finish_cancelled", id=job, claim=claim, error=None, error_kind="worker_died")
        elif charge and failures + 1 >= attempts:
            fate = State.FAILED
            deaths = tx.row("count_rescues", id=job)[0] + 1
            times = "once" if deaths == 1 else f"{deaths} times"
            error = f"its worker died {times} under it; its budget of {attempts} attempts is used up"
            tx.run("finish_failed", id=job, claim=claim, charge=1, error=error, error_kind="worker_died")
        else:
            fate = State.QUEUED
            survived = math.ceil(died_by - started_at) if charge else 0
            alone = max(1, min(survived, _LONGEST_ALONE))
            tx.run("rescue_requeue", id=job, claim=claim, charge=charge, alone=alone)
        _add_history(
            tx,
            job,
            claim,
            "rescued",
            worker=worker,
            started_at=started_at,
            error=error,
            error_kind="worker_died",
        )
        fates.append(fate)
    return fates


def _claim_number(tx: Session, job: int) -> int:
    return int(tx.row("retry_facts", id=job)[0])


def _add_history(
    tx: Session,
    job: int,
    claim: int,
    event: str,
    *,
    worker: str | None = None,
    started_at: float | None = None,
    error: str | None = None,
    error_kind: str | None = None,
) -> None:
    tx.run(
        "add_history",
        id=job,
        claim=claim,
        event=str(event),
        worker=worker,
        started_at=started_at,
        error=error,
        error_kind=error_kind,
    )
