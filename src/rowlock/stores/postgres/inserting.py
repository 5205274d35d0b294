"""What is faster than one statement for all on PostgreSQL: a short one for one job, COPY for many.

Runs on rowlock's own connections; `stores/inserting.py` has the way that works everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowlock.job import NewJob
from rowlock.stores.postgres.connections import Link
from rowlock.stores.sql.statements import qualified

_COLUMNS = (
    *(
        "id",
        "position",
        "task",
        "queue",
        "priority",
        "state",
        "max_attempts",
        "created_at",
        "run_at",
        "due_at",
    ),
    *("args", "expires_at", "meta"),
)
_MOST_BY_JSON = 20  # below this one statement is faster than drawing numbers and a COPY


def is_short(job: NewJob) -> bool:
    """True if the short statement for one job has a place for all that it says: due now, and no more."""
    return job.is_plain and job.run_at is None and not job.delay


def values_of(job: NewJob) -> dict[str, Any]:
    """A plain job as the values of `insert_one`."""
    return {
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "args": job.args,
    }


def is_bulk(jobs: Sequence[NewJob]) -> bool:
    """True if a COPY is worth it, and can do it: it knows nothing of unique keys."""
    return len(jobs) > _MOST_BY_JSON and all(job.unique_key is None for job in jobs)


def copy_plain(
    link: Link, schema: str | None, ids: Sequence[int], jobs: Sequence[NewJob], now: float
) -> None:
    """Write many jobs that are due now: the tables' defaults say the rest."""
    statement = "COPY rowlock_jobs (id, position, task, queue, priority, max_attempts, args) FROM STDIN"
    with link.cursor.copy(qualified(statement, schema)) as stream:
        for id, job in zip(ids, jobs, strict=True):
            stream.write_row((id, id, job.task, job.queue, job.priority, job.max_attempts, job.args))


def copy(link: Link, schema: str | None, ids: Sequence[int], jobs: Sequence[NewJob], now: float) -> None:
    """Write many jobs under numbers that were drawn for them."""
    statement = qualified(f"COPY rowlock_jobs ({', '.join(_COLUMNS)}) FROM STDIN", schema)
    with link.cursor.copy(statement) as stream:
        created = _stamp(now)
        for id, job in zip(ids, jobs, strict=True):
            state, due, deadline = job.placed(now)
            at = created if due == now else _stamp(due)
            stream.write_row(
                (
                    id,
                    id,
                    job.task,
                    job.queue,
                    job.priority,
                    state._value_,
                    job.max_attempts,
                    created,
                    at,
                    at,
                    job.args,
                    None if deadline is None else _stamp(deadline),
                    job.meta,
                )
            )


def _stamp(seconds: float) -> str:
    """Unix seconds as PostgreSQL reads them; `datetime` would refuse the year 10000."""
    whole, part = divmod(round(seconds * 1_000_000), 1_000_000)
    days, rest = divmod(whole, 86_400)
    return f"J{days + 2_440_588} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}.{part:06} UTC"
