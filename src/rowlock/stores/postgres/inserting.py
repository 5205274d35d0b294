"""How jobs are written into PostgreSQL: by one statement, or by COPY when there are many.

Runs inside the caller's transaction, on rowlock's own connection or on one that a user lent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rowlock.job import Inserted, NewJob
from rowlock.stores.postgres.connections import Link
from rowlock.stores.queries import qualified
from rowlock.stores.session import Session

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
_TRIES = 20  # of a unique key whose holder ends just when it is looked up
_MOST_BY_JSON = 20  # below this one statement is faster than drawing numbers and a COPY


def is_plain(job: NewJob) -> bool:
    """True if the short statement for one job has a place for all that it says."""
    return job.unique_key is None and job.expires is None and job.meta is None


def values_of(job: NewJob) -> dict[str, Any]:
    """A plain job as the values of `insert_one`."""
    return {
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "run_at": job.run_at,
        "delay": job.delay or 0.0,
        "args": job.args,
    }


def insert(tx: Session, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Write the jobs with one statement; a unique key that is held gives its holder."""
    found: dict[int, Inserted] = {}
    missing = list(range(len(jobs)))
    # In the order of their keys, so that two producers of the same keys do not wait for each other.
    missing.sort(key=lambda index: (jobs[index].unique_key is not None, str(jobs[index].unique_key)))
    for _ in range(_TRIES):
        rows = tx.rows("insert_many", jobs=_as_json([jobs[index] for index in missing]))
        _match(jobs, missing, rows, found)
        missing = [index for index in missing if index not in found]
        for index in missing:
            job = jobs[index]
            holder = tx.row("unique_holder", task=job.task, unique_key=job.unique_key)
            if holder is not None:
                found[index] = Inserted(holder[0], False, 0.0)
        missing = [index for index in missing if index not in found]
        if not missing:
            break
    else:
        raise RuntimeError(f"the unique key {jobs[missing[0]].unique_key!r} changed hands {_TRIES} times")
    return [found[index] for index in range(len(jobs))]


def _match(jobs: Sequence[NewJob], wanted: list[int], rows: list[Any], found: dict[int, Inserted]) -> None:
    """Say which row is which job: numbers are drawn in the list's order; rows of held keys are missing."""
    new = iter(sorted(rows))
    row = next(new, None)
    for index in wanted:
        job = jobs[index]
        if row is not None and (job.unique_key is None or (row[2], row[3]) == (job.task, job.unique_key)):
            found[index] = Inserted(row[0], True, row[1])
            row = next(new, None)


def _as_json(jobs: Sequence[NewJob]) -> str:
    return msgspec.json.encode(
        [
            {
                "task": job.task,
                "queue": job.queue,
                "priority": job.priority,
                "max_attempts": job.max_attempts,
                "delay": job.delay,
                "run_at": job.run_at,
                "expires": job.expires,
                "unique_key": job.unique_key,
                "unique_until": job.unique_until,
                "args": msgspec.Raw(job.args.encode()),
                "meta": None if job.meta is None else msgspec.Raw(job.meta.encode()),
            }
            for job in jobs
        ]
    ).decode()


def is_bulk(jobs: Sequence[NewJob]) -> bool:
    """True if a COPY is worth it, and can do it: it knows nothing of unique keys."""
    return len(jobs) > _MOST_BY_JSON and all(job.unique_key is None for job in jobs)


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
