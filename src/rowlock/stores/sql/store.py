"""Each writing verb of a store that speaks SQL, written once; a database's folder has what truly differs.

Transactions and decisions are here, statements are in the `.sql` files, reading verbs in `reading.py`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import msgspec

from rowlock import endings
from rowlock.endings import LONGEST_UNKNOWN, Event, Facts
from rowlock.errors import DataRefused, JobNotFound, WorkerGone, WrongState
from rowlock.job import (
    EVERY_TASK,
    Claim,
    ClaimRequest,
    Ending,
    ExchangeResult,
    Minute,
    Outcome,
    Report,
    State,
)
from rowlock.liveness import Lease
from rowlock.retry import DEFAULT
from rowlock.stores.base import Registration, Rescue, Retention
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.claiming import Claiming, has_work
from rowlock.stores.sql.finishing import (
    Fate,
    Step,
    add_history,
    ending,
    expire,
    fates_of,
    finish,
    given_back,
    history_of,
    rescue_claims,
    take_fates,
    take_steps,
    was_written,
    without_expired,
    write_reports,
)
from rowlock.stores.sql.refusals import AGAIN_EVERY, REFUSED, RefusedOutcomes, apart, failure
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.strategies import get_strategy

_SIDE_ROWS = (
    2_000  # in one transaction; 250,000, the lines of 500 talkative jobs, held SQLite's lock for 7.7 s
)

_OFFERED = (
    10_000  # jobs that one registration makes due; each worker has put off a few, so that there are not many
)


class _Undone(Exception):
    """Ends a transaction of which nothing is kept."""


class SqlStore(RefusedOutcomes):
    """The writing verbs; `rowlock.stores.sql.reading.SqlReads` has the reading ones."""

    announces_all_work = True
    sees_every_commit = False  # whoever writes to the database, a waiting poller notices
    _claim_sql: ClaimSql  # how this database claims by a strategy
    _refused_at = 0.0  # when to look again at what dead workers hold because it was refused
    _found = False  # the last claim found a job, so the next one need not look before it asks for the lock

    @abstractmethod
    def _write(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A transaction that commits durably when the block ends, and rolls back if it raises."""

    @abstractmethod
    def _read(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A session for reads that hold nothing open between statements."""

    @abstractmethod
    def _numbers(self, tx: Session, count: int) -> Sequence[int]:
        """Draw `count` fresh numbers from the sequence that ids and positions share."""

    # -- for rooms that have statements of their own ---------------------------------------------

    @abstractmethod
    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> Statements:
        """The store's statements and those of the sources, in this database's words.

        `style` is that of a borrowed connection ("named" or "pyformat"); without it, the store's own.
        """

    def writing(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A transaction that commits durably when the block ends."""
        return self._write(now)

    def reading(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A session for short reads."""
        return self._read(now)

    @contextmanager
    def undone(self) -> Iterator[Session]:
        """A transaction of which nothing is kept: to try something out."""
        with suppress(_Undone), self._write() as session:
            yield session
            raise _Undone

    def unhurried(self) -> AbstractContextManager[Session]:
        """A session for statements that may take hours, such as those that build an index."""
        return self._write()

    def at_once(self, now: float | None = None) -> AbstractContextManager[Session] | None:
        """A session in which each statement commits by itself, durably; None if there is none."""
        return None

    def hint(self, tx: Session, queue: str) -> None:
        """Tell one who sleeps that there may be work of this kind."""
        self._hint(tx, [queue])

    def wake_readers(self, name: str) -> None:  # where every commit is seen, nobody has to be told
        """Tell all who sleep and go by this name that there may be work."""

    def got_up(self, worker: str) -> None:  # most have nothing to tell
        """This worker has claimed: it does not wait to be told any more."""

    # -- what each database has ------------------------------------------------------------------

    def _hint(  # most have nothing to tell
        self, tx: Session, queues: Collection[str] = (), tasks: Collection[str] = ()
    ) -> None:
        """Tell one who sleeps that there may be work, where a commit alone does not tell.

        One who takes one of these queues and knows one of these tasks; none given: any.
        """

    def _leave_trace(  # most cannot lose the answer to a commit
        self,
        tx: Session,
        worker: str,
        outcomes: Sequence[Outcome],
        not_written: Sequence[Outcome],
        claims: Sequence[Claim],
    ) -> None:
        """Note by what it can be seen later that this exchange was committed, should nobody say so."""

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
        writes = bool(outcomes or reports or minutes)
        if not writes and not self._found and not self._anything_to_claim(request, now):
            return ExchangeResult()  # a read told it: an empty queue costs no write transaction
        with self._write(now) as tx:
            write_reports(tx, reports)
            lost = not_written = self._finish(tx, worker, outcomes)
            if again:
                lost = [outcome for outcome in not_written if not was_written(tx, outcome)]
            if released := [one for one in outcomes if one.ending is Ending.RELEASED]:
                named = all(one.queue and one.task for one in released)
                self._hint(tx, *_names((one.queue, one.task) for one in released if named))
            if minutes:
                tx.each("add_minute", [msgspec.structs.asdict(minute) for minute in minutes])
            claims: list[Claim] = []
            if request and request.count > 0:
                alive, has_settings, has_isolated, next_queue = tx.row(
                    "claim_facts", worker=worker, after=request.after
                )
                if alive:
                    settings = tx.rows("queue_settings") if has_settings else []
                    claiming = Claiming(tx, self._claim_sql, worker, request)
                    claims = claiming.take(settings, has_isolated, next_queue)
                    self._found = bool(claims)
                elif not writes:  # what was finished is kept; its death is heard of at the next beat
                    raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
            last = claims[-1].queue if claims else request.after if request else ""
            got = ExchangeResult(without_expired(tx, worker, claims), lost, last)
            self._leave_trace(tx, worker, outcomes, not_written, got.claims)
            return got

    def _finish(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the outcomes; returns those whose claims were lost."""
        return finish(tx, worker, outcomes)

    def _anything_to_claim(self, request: ClaimRequest | None, now: float | None) -> bool:
        if request is None or request.count < 1:
            return False
        with self._read(now) as db:
            return has_work(db, request, db.rows("queue_settings"))

    def _report_all(self, reports: Sequence[Report], now: float | None) -> None:
        with self._write(now) as tx:
            write_reports(tx, reports)

    def _note_refused(self, worker: str, outcome: Outcome, said: str, now: float | None) -> bool:
        history = history_of(
            outcome.id,
            outcome.claim,
            REFUSED,
            worker=worker,
            started_at=outcome.started,
            error=said,
            error_kind=REFUSED,
        )
        with self._write(now) as tx:
            return tx.run("note_refused", **history) > 0

    # -- liveness --------------------------------------------------------------------------------

    def register(self, worker: Registration, now: float | None = None) -> str:
        values = msgspec.structs.asdict(worker)
        values["worker"] = values.pop("id")
        values["queues"] = _json(worker.queues)
        values["tasks"] = _json(worker.tasks)
        values["reachable_for"] = Lease(worker.lease).reachable_for
        chosen = _chosen(worker.queues, worker.tasks)
        with self._read(now) as db:
            were_put_off = bool(db.rows("put_off_jobs", most=1, **chosen))
        with self._write(now) as tx:
            suffix = 1
            while not tx.run("register_worker", **values):  # an id is one incarnation, never used again
                suffix += 1
                values["worker"] = f"{worker.id}.{suffix}"
            if were_put_off:
                self._offer(tx, chosen)
        return str(values["worker"])

    def know(
        self, worker: str, queues: Sequence[str], tasks: dict[str, Any], now: float | None = None
    ) -> None:
        with self._write(now) as tx:
            tx.run("know_tasks", worker=worker, tasks=_json(tasks))
            self._offer(tx, _chosen(queues, tasks))

    def _offer(self, tx: Session, chosen: dict[str, Any]) -> None:
        """Let jobs be due that were put off because no living worker knew their task."""
        self._queue_up(tx, "offer", tx.rows("put_off_jobs", most=_OFFERED, **chosen))

    def _queue_up(self, tx: Session, statement: str, jobs: Sequence[Any]) -> None:
        """Give scheduled jobs (id, queue, task) positions at the end of the line, in this order."""
        if jobs:
            positions = self._numbers(tx, len(jobs))
            tx.each(
                statement,
                [{"id": job[0], "position": at} for job, at in zip(jobs, positions, strict=True)],
            )
            self._hint(tx, *_names((queue, task) for _, queue, task in jobs))

    def beat(self, worker: str, strategy: str, now: float | None = None) -> bool:
        with self._write(now) as tx:
            return tx.run("beat", worker=worker, strategy=strategy) > 0

    def retire(self, worker: str, now: float | None = None) -> None:
        try:
            self._retire(worker, now, give_back=True)
        except DataRefused:
            with self._read(now) as db:
                outcomes = given_back(db, worker)

            def write(some: Sequence[Outcome]) -> list[Outcome]:
                with self._write(now) as tx:
                    return finish(tx, worker, some)

            self.write_apart(worker, outcomes, write, now)
            self._retire(worker, now, give_back=False)

    def _retire(self, worker: str, now: float | None, give_back: bool) -> None:
        with self._write(now) as tx:
            outcomes = given_back(tx, worker)
            if give_back:
                finish(tx, worker, outcomes)
            tx.run("retire_worker", worker=worker)
            if outcomes:  # after its own row says that it is gone: the one who is told must be another
                self._hint(tx, *_names((outcome.queue, outcome.task) for outcome in outcomes))

    def held(self, worker: str) -> list[tuple[int, int, bool]]:
        with self._read() as db:
            return [(job, claim, bool(cancelled)) for job, claim, cancelled in db.rows("held", worker=worker)]

    def titles(self, held: Sequence[tuple[int, int]]) -> list[str]:
        return [f"job {job}" for job, _ in held]

    def tell(self, worker: str, info: dict[str, Any]) -> None:
        with self._write() as tx:
            tx.run("tell", worker=worker, info=_json(info))

    # -- maintenance ----------------------------------------------------------------------------------

    def end_pauses(self, now: float | None = None) -> None:
        """Let queues be claimed from again that were paused until now."""
        with self._read(now) as db:
            if not db.rows("pauses_over"):
                return
        with self._write(now) as tx:
            if names := [name for (name,) in tx.rows("end_pauses")]:
                self._hint(tx, names)

    def promote(self, most: int, now: float | None = None) -> int:
        self.end_pauses(now)
        with self._read(now) as db:
            if not db.rows("due_jobs", most=1):
                return 0
        with self._write(now) as tx:
            due = tx.rows("due_jobs", most=most)
            self._queue_up(tx, "promote", due)
            return len(due)

    def rescue(
        self,
        worker: str,
        careful_age: float,
        now: float | None = None,
        may_rescue: Callable[[], bool] = lambda: True,
    ) -> Rescue:
        look = {"again": int(self._is_time_for_refused(now))}
        with self._read(now) as db:
            silent = db.rows("silent_workers", **look)
        if not silent:
            return Rescue()
        try:
            with self._write(now) as tx:
                # If everyone froze together (a stuck lock, a suspended machine), the others need a moment.
                own_beat = tx.row("beat_age", worker=worker)
                if own_beat is None or own_beat[0] > careful_age or not may_rescue():
                    return Rescue(waited=True)
                silent = tx.rows("silent_workers", **look)
                ends = [
                    rescue_claims(tx, name, msgspec.json.decode(tasks), Lease(lease).died_by(beat_at))
                    for name, tasks, beat_at, lease, _ in silent
                ]
                if any(State.QUEUED in end for end in ends):
                    known = {task for _, tasks, *_ in silent for task in msgspec.json.decode(tasks)}
                    self._hint(tx, tasks=() if EVERY_TASK in known else known)
        except DataRefused:
            ends = [
                self._bury_apart(name, tasks, Lease(lease).died_by(beat_at), now)
                for name, tasks, beat_at, lease, _ in silent
            ]
        fates = [fate for end in ends for fate in end]
        return Rescue(
            workers=[one[0] for one, end in zip(silent, ends, strict=True) if end or not one[4]],
            requeued=fates.count(State.QUEUED),
            failed=fates.count(State.FAILED),
            cancelled=fates.count(State.CANCELLED),
        )

    def _bury_apart(self, worker: str, tasks: str, died_by: float, now: float | None) -> list[State]:
        """The same, each claim by itself; what is refused fails, or stays where it is and is tried again."""

        def write(some: Sequence[Fate]) -> list[State]:
            with self._write(now) as tx:
                states = take_fates(tx, some)
                if State.QUEUED in states:
                    self._hint(tx)
                return states

        def refused(fate: Fate, error: DataRefused) -> list[State]:
            values, history = fate.step.values, fate.step.history or {}
            claim = Outcome(
                id=values["id"],
                claim=values["claim"],
                ending=Ending.RELEASED,
                task=fate.task,
                started=history.get("started_at"),
            )
            failed = failure(claim, error)
            try:
                return write([Fate(ending(worker, failed), State.FAILED, fate.task)])
            except DataRefused as again:
                self.keep_refused(worker, failed, failed.title, again, now)
                return []

        with self._read(now) as db:
            fates = fates_of(db, worker, msgspec.json.decode(tasks), died_by)
        states = apart(write, fates, refused)
        with self._write(now) as tx:
            tx.run("declare_worker_dead", worker=worker)
        return states

    def _is_time_for_refused(self, now: float | None) -> bool:
        """True once a minute: then the claims are looked at, too, that could not be taken back before."""
        moment = time.monotonic()
        if now is None and moment < self._refused_at:
            return False
        self._refused_at = moment + AGAIN_EVERY
        return True

    def expire(self, most: int, now: float | None = None) -> int:
        with self._read(now) as db:
            if not db.rows("expired_jobs", most=1):
                return 0
        with self._write(now) as tx:
            expired = tx.rows("expired_jobs", most=most)
            expire(tx, expired)
            return len(expired)

    def fail_overdue(self, age: float, most: int, now: float | None = None) -> int:
        with self._read(now) as db:
            overdue = db.rows("overdue_running", age=age)
            queue = ""
            while (queue := db.row("queue_after", after=queue)[0]) is not None:
                overdue += db.rows("overdue_queued", age=age, queue=queue, count=most)
        if not overdue:
            return 0
        kind = endings.decide(Event.OVERDUE, Facts(), DEFAULT).kind
        said: dict[str, Any] = {"error": endings.overdue(age), "error_kind": kind}
        with self._write(now) as tx:
            steps = [
                Step(
                    "fail_overdue",
                    {"id": job, "claim": claim, "age": age, **said},
                    history_of(job, claim, "failed", **said),
                )
                for job, claim in overdue
            ]
            return sum(take_steps(tx, steps))

    def prune(self, keep: Retention, after: int, most: int, now: float | None = None) -> tuple[int, int]:
        with self._read(now) as db:
            page = db.rows("prune_page", beyond=after, most=most)
            moment = db.now
            newest = moment - min(keep.completed, keep.failed)
            # Ids grow with created_at: from the first row that is too young on, every row is.
            old = [row for row in page if row[2] <= newest]
            limits = {
                State.COMPLETED: keep.completed,
                State.FAILED: keep.failed,
                State.CANCELLED: keep.failed,
            }
            doomed = [row[0] for row in old if row[1] in limits and row[3] <= moment - limits[row[1]]]
            lines = dict(db.rows("count_side_rows", ids=_json(doomed))) if doomed else {}
        batch = _first_few(doomed, lines)
        deleted: list[int] = []
        if batch:
            ages = {"keep_completed": keep.completed, "keep_failed": keep.failed}
            with self._write(now) as tx:
                deleted = [row[0] for row in tx.rows("prune_jobs", ids=_json(batch), **ages)]
                for side_table in ("prune_history", "prune_logs", "prune_progress"):
                    tx.run(side_table, ids=_json(deleted))
        if len(batch) < len(doomed):
            return len(deleted), batch[-1]
        more = len(page) == most and page[-1][2] <= newest
        return len(deleted), (page[-1][0] if more else 0)

    def prune_records(self, age: float, now: float | None = None) -> None:
        """Delete some rows of workers that ended, and of minutes that passed, longer than `age` ago."""
        with self._write(now) as tx:
            tx.run("prune_workers", age=age, most=_SIDE_ROWS)
            tx.run("prune_minutes", minute=int((tx.now - age) // 60), most=_SIDE_ROWS)

    def isolated_waiting(self, queues: Sequence[str], unknown: Sequence[str] = ()) -> bool:
        values = {
            "all": int(not queues),
            "queues": _json(queues),
            "unknown": _json(unknown) if unknown else None,
        }
        with self._read() as db:
            return db.row("isolated_waiting", **values) is not None

    # -- operators -------------------------------------------------------------------------------

    def cancel(self, job: int, now: float | None = None) -> None:
        with self._write(now) as tx:
            for state, claim in tx.rows("cancel", id=job):
                event = "cancel asked for" if state == State.RUNNING else "cancelled"
                add_history(tx, job, claim, event, error_kind="operator")

    def retry(self, job: int, now: float | None = None) -> None:
        with self._write(now) as tx:
            row = tx.row("retry_facts", id=job)
            if row is None:
                raise JobNotFound(f"there is no job {job}; it may have been pruned")
            claim, state, task, unique_key, unique_until, queue = row
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
            if not tx.run("retry_job", id=job, position=self._numbers(tx, 1)[0]):
                raise WrongState(f"job {job} was changed or deleted at this very moment; look at it again")
            add_history(tx, job, claim, "retried", error_kind="operator")
            self._hint(tx, [queue], [task])

    def set_queue(
        self, name: str, *, paused: bool | None = None, strategy: str | None = None, now: float | None = None
    ) -> None:
        with self._write(now) as tx:
            if paused is not None:
                tx.run("set_paused", name=name, paused=int(paused))
                self._hint(tx, [name])
            if strategy is not None:
                tx.run("set_strategy", name=name, strategy=get_strategy(strategy).name if strategy else None)


def _first_few(jobs: list[int], lines: dict[int, int]) -> list[int]:
    """As many of the jobs as can be deleted at once, and one at least: each takes its log lines along."""
    room = _SIDE_ROWS
    for index, job in enumerate(jobs):
        room -= lines.get(job, 0)
        if room < 0:
            return jobs[: max(1, index)]
    return jobs


def _names(jobs: Iterable[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """The queues and the tasks of these jobs."""
    pairs = set(jobs)
    return {queue for queue, _ in pairs}, {task for _, task in pairs}


def _chosen(queues: Sequence[str], tasks: dict[str, Any]) -> dict[str, Any]:
    """What a worker of these queues and tasks takes of the jobs that were put off."""
    return {
        "all": int(not queues),
        "queues": _json(queues),
        "every": int(EVERY_TASK in tasks),
        "task_names": _json(list(tasks)),
        "delay": LONGEST_UNKNOWN,
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
