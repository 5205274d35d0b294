"""How jobs are written into PostgreSQL: one by a short statement, many by COPY.

Runs on rowlock's own connections; `stores/sql/inserting.py` has the way that works everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from rowlock.errors import StoreError
from rowlock.job import Inserted, NewJob
from rowlock.stores.postgres.connections import Connection
from rowlock.stores.postgres.dialect import statements
from rowlock.stores.postgres.faults import is_lost
from rowlock.stores.postgres.lost_answers import LOOKED_UP, log
from rowlock.stores.postgres.prepared import Value
from rowlock.stores.sql.inserting import insert as insert_by_key
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import qualified

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase

# Of a job that is due now, the table's defaults say the rest.
_SHORT: tuple[str, ...] = ("id", "position", "task", "queue", "priority", "max_attempts", "args")
_COLUMNS = (*_SHORT, "state", "created_at", "run_at", "due_at", "expires_at", "meta")
_TRIES = 3
_MICROSECONDS = 1e-5  # as near as a float comes to the server's
_NOT_THERE = Inserted(0, False, 0.0)
_MOST_BY_JSON = 20  # below this one statement is faster than drawing numbers and a COPY


def insert(database: PostgresDatabase, jobs: Sequence[NewJob], now: float | None) -> list[Inserted]:
    """Write the jobs, all or none; if an answer is lost, what was written is looked up."""
    # A pooler takes its limits in a transaction.
    plain_statement = now is None and not database.address.pooled
    if plain_statement and len(jobs) == 1 and is_short(jobs[0]):
        return [_insert_one(database, jobs[0])]
    with database.write(now) as tx:
        if is_bulk(jobs):
            moment = tx.row("began")[0] if now is None else now
            ids = database.numbers(tx, len(jobs))
            if now is None and all(map(is_short, jobs)):
                columns, rows = _SHORT, map(_short, ids, jobs)
            else:
                columns, rows = _COLUMNS, map(partial(_whole, now=moment), ids, jobs)
            copy(tx.connection, database.address.schema, "jobs", columns, rows)
            inserted = [Inserted(id, True, moment) for id in ids]
        else:
            inserted = insert_by_key(tx, jobs)
        database.hint(tx, {job.queue for job in jobs}, {job.task for job in jobs})
        tx.witness = _sees([one for one in inserted if one.is_new])
        return inserted


def _insert_one(database: PostgresDatabase, job: NewJob) -> Inserted:
    """One statement, which commits by itself; if its answer is lost, the token finds the job."""
    token = random.getrandbits(63)
    statement = statements(database.address.schema)["insert_one"]
    values: dict[str, Value] = {
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "args": job.args,
        "token": token,
    }
    for _ in range(_TRIES):
        connection = None
        try:
            with database.read() as db:
                connection = db.connection
                ((id, created, _),) = db.ask(statement, values)
            return Inserted(int(id or 0), True, float(created or 0))
        except StoreError as error:
            if connection is None or not is_lost(error.__cause__):
                raise
            find = partial(_find_by_token, token=token, old=connection.name)
            found = database.answers.look_up(find, error)
        if found is not _NOT_THERE:
            log.warning(LOOKED_UP, "an enqueue", database.url, f"job {found.id} is there")
            return found
        log.warning(LOOKED_UP, "an enqueue", database.url, "it is not there, so it is tried again")
    raise StoreError(f"{database.url} was lost {_TRIES} times in a row; the job was not enqueued")


def _find_by_token(db: Session, token: int, old: str) -> Inserted | None:
    # The old connection may still be at work: it is ended first, so that the answer stays true.
    still_there = db.rows("end_connection", name=old)
    row = db.row("find_by_token", token=token)
    if row is not None:
        return Inserted(row[0], True, row[1])
    return None if still_there else _NOT_THERE


def _sees(inserted: list[Inserted]) -> Callable[[Session], bool]:
    """One new job is enough. Not by its id alone: a server that crashed may give that a second time, too."""

    def is_there(db: Session) -> bool:
        if not inserted:  # all were there before
            return True
        row = db.row("created_at", id=inserted[-1].id)
        return row is not None and abs(row[0] - inserted[-1].now) < _MICROSECONDS

    return is_there


def is_short(job: NewJob) -> bool:
    """True if the short statement for one job has a place for all that it says: due now, and no more."""
    return job.is_plain and job.run_at is None and not job.delay


def is_bulk(jobs: Sequence[NewJob]) -> bool:
    """True if a COPY is worth it, and can do it: it knows nothing of unique keys."""
    return len(jobs) > _MOST_BY_JSON and all(job.unique_key is None for job in jobs)


def copy(
    connection: Connection,
    schema: str | None,
    table: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Write the rows in one COPY."""
    statement = qualified(f"COPY rowlock_{table} ({', '.join(columns)}) FROM STDIN", schema)
    with connection.own_cursor.copy(statement) as stream:
        for row in rows:
            stream.write_row(row)


def _short(id: int, job: NewJob) -> tuple[Any, ...]:
    """The job under the number that was drawn for it, by _SHORT."""
    return id, id, job.task, job.queue, job.priority, job.max_attempts, job.args


def _whole(id: int, job: NewJob, now: float) -> tuple[Any, ...]:
    """The same by _COLUMNS."""
    state, due, deadline = job.placed(now)
    times = stamp(now), stamp(due), stamp(due), None if deadline is None else stamp(deadline)
    return *_short(id, job), state._value_, *times, job.meta


@lru_cache(maxsize=64)  # many jobs have the same times
def stamp(seconds: float) -> str:
    """Unix seconds as PostgreSQL reads them; `datetime` would refuse the year 10000."""
    # The fraction by itself, as `datetime` does: seconds * 1_000_000 has no digits left, and was off by one.
    whole, fraction = divmod(seconds, 1.0)
    whole, part = divmod(int(whole) * 1_000_000 + round(fraction * 1_000_000), 1_000_000)
    days, rest = divmod(whole, 86_400)
    return f"J{days + 2_440_588} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}.{part:06} UTC"
