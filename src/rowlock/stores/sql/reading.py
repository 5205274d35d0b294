"""The reading verbs of a store that speaks SQL, and how rows become records.

Every read is short: one statement, fetched whole. Nothing here writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.job import (
    HistoryEntry,
    Job,
    JobList,
    LogEntry,
    Minute,
    Progress,
    Pulse,
    QueueRecord,
    State,
    WorkerRecord,
)
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.versions import emptied

_FARTHEST = 2**63 - 1
_DUE_HEADS = 1_000  # scheduled jobs, earliest first, among which each queue's oldest due one is looked for

JOB_COLUMNS = ", ".join(
    [
        *(f"j.{name}" for name in ("id", "task", "queue", "args", "priority", "state", "claim", "failures")),
        *(f"j.{name}" for name in ("max_attempts", "created_at", "run_at", "claimed_at", "claimed_by")),
        *(f"j.{name}" for name in ("started_at", "finished_at", "expires_at", "cancel_requested_at")),
        *(f"j.{name}" for name in ("result", "error", "error_kind", "unique_key", "meta")),
        "p.done, p.total, p.note",
    ]
)


class SqlReads(ABC):
    """The reading verbs."""

    url: str
    _install_id: str | None = None

    @abstractmethod
    def _read(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A session for reads that hold nothing open between statements."""

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[Session]:
        """A session whose reads all see the same moment; for a few short reads that belong together."""

    @abstractmethod
    def _time(self, stored: Any) -> datetime:
        """A stored time as an aware datetime in UTC."""

    def install_id(self) -> str:
        if self._install_id is None:
            with self._read() as db:
                self._install_id = self._identity(db)
        return self._install_id

    def _identity(self, tx: Session) -> str:
        row = tx.row("identity")
        if row is None:
            raise emptied(self.url)
        return str(row[0])

    def get(self, job: int) -> Job | None:
        with self._read() as db:
            row = db.row("get_job", id=job)
        return None if row is None else self._job(row)

    def find(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobList:
        name = {
            None: "find",
            State.RUNNING: "find_running",
            State.FAILED: "find_bad",
            State.CANCELLED: "find_bad",
        }
        query = name.get(None if state is None else State(state), "find_state")
        before = _FARTHEST if cursor is None else _cursor(cursor)
        with self._read() as db:
            rows = db.rows(query, state=state, queue=queue, task=task, before=before, limit=limit + 1)
        jobs = [self._job(row) for row in rows[:limit]]
        return JobList(jobs, str(jobs[-1].id) if len(rows) > limit else None)

    def history(self, job: int) -> list[HistoryEntry]:
        with self._read() as db:
            rows = db.rows("history", id=job)
        return [
            HistoryEntry(
                claim=claim,
                event=event,
                at=self._time(at),
                worker=worker,
                started_at=self._maybe(started_at),
                error=error,
                error_kind=kind,
            )
            for claim, event, at, worker, started_at, error, kind in rows
        ]

    def logs(self, job: int) -> list[LogEntry]:
        with self._read() as db:
            rows = db.rows("logs", id=job)
        return [
            LogEntry(claim=claim, at=self._time(at), message=message, fields=_json(fields, {}))
            for claim, at, message, fields in rows
        ]

    def queues(self) -> list[QueueRecord]:
        counts: dict[str, dict[str, int]] = {}
        with self._snapshot() as db:
            for state in ("queued", "scheduled", "running", "bad", "completed"):
                for queue, name, count in db.rows(f"count_{state}"):
                    counts.setdefault(queue, dict.fromkeys(map(str, State), 0))[name] = count
            settings = {
                name: (paused_at, strategy) for name, paused_at, strategy in db.rows("queue_settings")
            }
            until = dict(db.rows("paused_until"))
            oldest = {name: db.row("oldest_queued", queue=name)[0] for name in counts}
        return [
            QueueRecord(
                name=name,
                paused=settings.get(name, (None, None))[0] is not None,
                paused_until=self._maybe(until.get(name)) if settings.get(name, (None,))[0] else None,
                strategy=settings.get(name, (None, None))[1],
                counts=counts.get(name, dict.fromkeys(map(str, State), 0)),
                oldest_due=self._maybe(oldest.get(name)),
            )
            for name in sorted(counts.keys() | settings.keys())
        ]

    def workers(self, now: float | None = None) -> list[WorkerRecord]:
        with self._read(now) as db:
            rows = db.rows("workers")
        return [
            WorkerRecord(
                id=row[0],
                host=row[1],
                pid=row[2],
                version=row[3],
                queues=_json(row[4], []),
                tasks=_json(row[5], {}),
                strategy=row[6],
                concurrency=row[7],
                started_at=self._time(row[8]),
                beat_at=self._time(row[9]),
                beat_age=row[10],
                lease=row[11],
                dead_at=self._maybe(row[12]),
                ended=row[13],
                running=row[14],
                info=_json(row[15], {}),
            )
            for row in rows
        ]

    def info(self, worker: str) -> dict[str, Any]:
        with self._read() as db:
            row = db.row("info", worker=worker)
        return {} if row is None else dict(_json(row[0], {}))

    def pulse(self, now: float | None = None) -> Pulse:
        with self._read(now) as db:
            paused = frozenset(
                name for name, paused_at, _ in db.rows("queue_settings") if paused_at is not None
            )
            due: dict[str, float] = {}
            name = ""
            while (name := db.row("queue_after", after=name)[0]) is not None:
                due[name] = db.row("oldest_queued", queue=name)[0]
            for queue, run_at in db.rows(
                "due_heads", most=_DUE_HEADS
            ):  # waiting for a worker to promote them
                due[queue] = min(run_at, due.get(queue, run_at))
            workers = [tuple(_json(queues, [])) for _, queues, _ in db.rows("living_workers")]
            moment = db.now
        waiting = {queue: max(0.0, moment - since) for queue, since in due.items() if since is not None}
        return Pulse(workers=workers, waiting=waiting, paused=paused)

    def minutes(self, since: int) -> list[Minute]:
        names = Minute.__struct_fields__
        with self._read() as db:
            return [Minute(**dict(zip(names, row, strict=True))) for row in db.rows("minutes", since=since)]

    def depth(self, queue: str | None = None) -> int:
        with self._read() as db:
            row = db.row("depth") if queue is None else db.row("depth_of_queue", queue=queue)
        return int(row[0])

    def idle(
        self, queues: Sequence[str], now: float | None = None, tasks: Collection[str] | None = None
    ) -> bool:
        names = msgspec.json.encode(sorted(tasks or ())).decode()
        with self._read(now) as db:
            paused = {name for name, paused_at, _ in db.rows("queue_settings") if paused_at is not None}
            name = ""
            while (name := db.row("queue_after", after=name)[0]) is not None:
                if name in paused or (queues and name not in queues):
                    continue
                if tasks is None or db.row("queue_has_tasks", queue=name, task_names=names):
                    return False
            chosen = {"all": int(not queues), "queues": msgspec.json.encode(queues).decode()}
            return db.row("busy", **chosen, every=int(tasks is None), task_names=names) is None

    def _job(self, row: Any) -> Job:
        done, total, note = row[22:25]
        return Job(
            id=row[0],
            task=row[1],
            queue=row[2],
            args=_json(row[3], {}),
            priority=row[4],
            state=State(row[5]),
            claim=row[6],
            failures=row[7],
            max_attempts=row[8],
            created_at=self._time(row[9]),
            run_at=self._time(row[10]),
            claimed_at=self._maybe(row[11]),
            claimed_by=row[12],
            started_at=self._maybe(row[13]),
            finished_at=self._maybe(row[14]),
            expires_at=self._maybe(row[15]),
            cancel_requested_at=self._maybe(row[16]),
            result=_json(row[17], None),
            error=row[18],
            error_kind=row[19],
            unique_key=row[20],
            meta=_json(row[21], {}),
            progress=None if done is None else Progress(done, total, note),
        )

    def _maybe(self, stored: Any) -> datetime | None:
        return None if stored is None else self._time(stored)


def refused_claims(db: Session) -> list[tuple[str, str, str]]:
    """The claims whose outcomes the database refuses: what each is, who holds it, and what was said."""
    jobs = [(f"job {job} ({task})", holder, said) for job, task, holder, said in db.rows("refused_jobs")]
    rows = [
        (f"consumer {consumer}, row {key.hex() if isinstance(key, bytes) else key}", holder, said)
        for consumer, key, holder, said in db.rows("refused_rows")
    ]
    return jobs + rows


def _json(text: str | None, missing: Any) -> Any:
    return missing if text is None else msgspec.json.decode(text)


def _cursor(text: str) -> int:
    try:
        return min(int(text), _FARTHEST)
    except (TypeError, ValueError):
        raise ConfigurationError(f"cursor={text!r}: pass the `.cursor` of the page before") from None
