"""How jobs are written by one statement, whatever the database and the driver: as a JSON list.

Runs inside the caller's transaction. A database's folder has what is faster for its own connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rowlock.codec import json_text
from rowlock.errors import StoreBusy
from rowlock.job import Inserted, NewJob
from rowlock.stores.sql.session import Session

_TRIES = 20  # of a unique key whose holder ends just when it is looked up


def insert(tx: Session, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Write the jobs; a unique key that is held gives its holder."""
    found: dict[int, Inserted] = {}
    missing = list(range(len(jobs)))
    # In the order of their keys, so that two producers of the same keys do not wait for each other.
    missing.sort(key=lambda index: (jobs[index].unique_key is not None, str(jobs[index].unique_key)))
    for _ in range(_TRIES):
        _match(jobs, missing, tx.rows("insert_many", jobs=_as_json([jobs[at] for at in missing])), found)
        for index in [at for at in missing if at not in found]:
            job = jobs[index]
            holder = tx.row("unique_holder", task=job.task, unique_key=job.unique_key)
            if holder is not None:
                found[index] = Inserted(holder[0], False, 0.0)
        missing = [at for at in missing if at not in found]
        if not missing:
            return [found[index] for index in range(len(jobs))]
    key = jobs[missing[0]].unique_key
    raise StoreBusy(f"the unique key {key!r} changed hands {_TRIES} times; the call can simply be made again")


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
    # Arguments stay text inside of it, so that no database writes their numbers in its own way.
    return json_text([msgspec.structs.asdict(job) for job in jobs])
