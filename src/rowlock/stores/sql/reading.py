"""The reading verbs of a store that speaks SQL, and how rows become records.

Every read is short: one statement, fetched whole. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from rowlock.codec import json_text
from rowlock.errors import ConfigurationError
from rowlock.job import HistoryEntry, Job, JobList, LogEntry, Progress, State, utc
from rowlock.monitoring import Minute, Pulse, QueueRecord, WorkerRecord
from rowlock.stores.sql.copying import moved_facts
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.queues_in_turn import queue_settings
from rowlock.stores.sql.schema_versions import VERSION, version_of
from rowlock.stores.sql.session import Session

Some = TypeVar("Some", bound=msgspec.Struct)

_FARTHEST = 2**63 - 1
_DUE_HEADS = 1_000  # scheduled jobs, earliest first, among which each queue's oldest due one is looked for

_JOB_FIELDS = [name for name in Job.__struct_fields__ if name not in ("progress", "is_new")]
JOB_COLUMNS = ", ".join([*(f"j.{name}" for name in _JOB_FIELDS), "p.done, p.total, p.note"])
_TIMES = (
    *("at", "created_at", "run_at", "claimed_at", "started_at", "finished_at", "expires_at"),
    *("cancel_requested_at", "beat_at", "dead_at"),
)
_JSON = ("args", "result", "meta", "fields", "queues", "tasks", "info")
_LOADS: dict[str, Callable[[Any], Any]] = {
    "state": State,
    **dict.fromkeys(_TIMES, utc),
    **dict.fromkeys(_JSON, msgspec.json.decode),
}


class Reading:
    """The reading verbs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, job: int) -> Job | None:
        """One job, or None."""
        with self._database.read() as db:
            row = db.row("get_job", id=job)
        return None if row is None else job_of(row)

    def changed(self, seen: Mapping[int, Job | None]) -> dict[int, Job | None]:
        """Those whose state or progress is not as it was seen last; None: not seen yet, or not there."""
        with self._database.read() as db:
            now = {
                row[0]: (row[1], row[2], _progress(*row[3:]))
                for row in db.rows("look_at_jobs", ids=json_text(list(seen)))
            }
            found = [id for id, job in seen.items() if id in now and (job is None or now[id] != _look(job))]
            # Arguments and results may be large: they are read again only of jobs that have changed.
            rows = db.rows("get_jobs", ids=json_text(found)) if found else []
        jobs: dict[int, Job | None] = {row[0]: job_of(row) for row in rows}
        return dict.fromkeys(id for id in seen if id not in now) | jobs

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
        in_an_index = {"running": "find_running", "failed": "find_bad", "cancelled": "find_bad"}
        query = "find" if state is None else in_an_index.get(State(state).value, "find")
        before = _FARTHEST if cursor is None else _cursor(cursor)
        with self._database.read() as db:
            rows = db.rows(query, state=state, queue=queue, task=task, before=before, limit=limit + 1)
        jobs = [job_of(row) for row in rows[:limit]]
        return JobList(jobs, str(jobs[-1].id) if len(rows) > limit else None)

    def history(self, job: int) -> list[HistoryEntry]:
        """What became of a job's earlier claims."""
        with self._database.read() as db:
            rows = db.rows("history", id=job)
        return [_record(HistoryEntry, row) for row in rows]

    def logs(self, job: int) -> list[LogEntry]:
        """The log lines kept with a job."""
        with self._database.read() as db:
            rows = db.rows("logs", id=job)
        return [_record(LogEntry, row) for row in rows]

    def queues(self) -> list[QueueRecord]:
        """Every queue that has jobs or settings, with counts by state."""
        counts: dict[str, dict[str, int]] = {}
        with self._database.snapshot() as db:
            for queue, state, count in db.rows("count_jobs"):
                counts.setdefault(queue, dict.fromkeys(map(str, State), 0))[state] = count
            settings = {name: rest for name, *rest in db.rows("queue_settings")}
            oldest = {name: db.row("oldest_queued", queue=name)[0] for name in counts}
        records: list[QueueRecord] = []
        for name in sorted(counts.keys() | settings.keys()):
            paused_at, strategy, until = settings.get(name, (None, None, None))
            records.append(
                QueueRecord(
                    name=name,
                    paused=paused_at is not None,
                    paused_until=_maybe(until) if paused_at else None,
                    strategy=strategy,
                    counts=counts.get(name, dict.fromkeys(map(str, State), 0)),
                    oldest_due=_maybe(oldest.get(name)),
                )
            )
        return records

    def consumer_claims(self) -> list[tuple[str, int, int]]:
        """For each consumer that has claims: its name, how many are in flight, how many wait for a retry."""
        with self._database.read() as db:
            return [(name, held, waiting) for name, held, waiting in db.rows("consumer_claims")]

    def workers(self, now: float | None = None) -> list[WorkerRecord]:
        """The workers, living ones first."""
        with self._database.read(now) as db:
            rows = db.rows("workers")
        return [_record(WorkerRecord, row) for row in rows]

    def pulse(self, now: float | None = None) -> Pulse:
        """Who lives, and how long each queue's oldest due job has waited; reads no finished job."""
        with self._database.read(now) as db:
            paused = queue_settings(db).paused
            due: dict[str, float] = {}
            name = ""
            while (name := db.row("queue_after", after=name)[0]) is not None:
                due[name] = db.row("oldest_queued", queue=name)[0]
            # Those that wait for a worker to promote them.
            for queue, run_at in db.rows("due_heads", most=_DUE_HEADS):
                due[queue] = min(run_at, due.get(queue, run_at))
            handed_over = dict(db.rows("oldest_handed_over"))
            workers = [
                tuple(msgspec.json.decode(queues))
                for _, queues, _, info in db.rows("living_workers")
                if not (info and "relay" in msgspec.json.decode(info))
            ]
            moment = db.now
        waiting, handed_over = (
            {queue: max(0.0, moment - since) for queue, since in found.items() if since is not None}
            for found in (due, handed_over)
        )
        return Pulse(workers=workers, waiting=waiting, paused=paused, handed_over=handed_over)

    def minutes(self, since: int) -> list[Minute]:
        """Rates and durations since a Unix minute."""
        with self._database.read() as db:
            return [_record(Minute, row) for row in db.rows("minutes", since=since)]

    def depth(self, queue: str | None = None) -> int:
        """How many jobs are queued, in all queues or in one; reads an index of queued jobs, nothing else."""
        with self._database.read() as db:
            row = db.row("depth") if queue is None else db.row("depth_of_queue", queue=queue)
        return int(row[0])


def job_of(row: Any) -> Job:
    """A row of JOB_COLUMNS as a job."""
    return Job(**_fields(_JOB_FIELDS, row[:-3]), progress=_progress(*row[-3:]))


def _record(kind: type[Some], row: Sequence[Any]) -> Some:
    """A row that has the record's fields, in their order."""
    return kind(**_fields(kind.__struct_fields__, row))


def _fields(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """The row by names, decoded; what would be decoded and is NULL is left to the default of the field."""
    return {
        name: _LOADS[name](value) if name in _LOADS else value
        for name, value in zip(names, row, strict=True)
        if value is not None or name not in _LOADS
    }


def _maybe(stored: Any) -> datetime | None:
    return None if stored is None else utc(stored)


def _look(job: Job) -> tuple[str, int, Progress | None]:
    """What changes when a job's state or progress does."""
    return (job.state.value, job.claim, job.progress)


def _progress(done: float | None, total: float | None, note: str | None) -> Progress | None:
    return None if done is None else Progress(done, total, note or "")


def facts(database: Database) -> dict[str, Any]:
    """What a doctor wants to know about a database; `rowlock.insights` judges it."""
    own = database.facts()
    with database.read() as db:
        meta = dict(db.rows("meta"))
        return {
            "store": database.dialect,
            "schema_version": version_of(meta, database.shown),
            "code_version": VERSION,
            "address": database.shown,
            "install_id": meta["install_id"],
            **moved_facts(meta),
            "newest_created_at": db.row("newest_created_at")[0],
            "unknown_tasks": dict(db.rows("count_unknown")),
            "refused": _refused_claims(db),
            "now": db.now,
            **own,
        }


def _refused_claims(db: Session) -> list[tuple[str, str, str]]:
    """The claims whose outcomes the database refuses: what each is, who holds it, and what was said."""
    jobs = [(f"job {job} ({task})", holder, said) for job, task, holder, said in db.rows("refused_jobs")]
    rows = [
        (f"consumer {consumer}, row {key.hex() if isinstance(key, bytes) else key}", holder, said)
        for consumer, key, holder, said in db.rows("refused_rows")
    ]
    return jobs + rows


def _cursor(text: str) -> int:
    try:
        return min(int(text), _FARTHEST)
    except (TypeError, ValueError):
        raise ConfigurationError(f"cursor={text!r}: pass the `.cursor` of the page before") from None
