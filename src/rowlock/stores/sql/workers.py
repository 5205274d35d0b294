"""The rows that workers write about themselves: registration, beats, what they know and tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rowlock.codec import json_text
from rowlock.endings import LONGEST_UNKNOWN
from rowlock.job import EVERY_TASK
from rowlock.liveness import Lease
from rowlock.options import CONSUMERS
from rowlock.stores.base import Registration
from rowlock.stores.sql.claiming import listed
from rowlock.stores.sql.copying import refuse_moved
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.jobs import queue_up
from rowlock.stores.sql.session import Session

# Jobs that one registration makes due; each worker has put off a few, so there are not many.
_OFFERED = 10_000


class Workers:
    """The workers' rows of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, worker: Registration, now: float | None = None) -> str:
        """Write the worker's row; returns its id, with a suffix if that id was used before.

        Jobs that were put off because no living worker knew their task, and that this one knows, are due now.
        """
        self._database.limit_idle(worker.lease)
        values = msgspec.structs.asdict(worker)
        values["worker"] = values.pop("id")
        values["queues"] = json_text(worker.queues)
        values["tasks"] = json_text(worker.tasks)
        values["reachable_for"] = Lease(worker.lease).reachable_for
        chosen = _chosen(worker.queues, worker.tasks)
        with self._database.read(now) as db:
            if not any(queue.startswith(CONSUMERS) for queue in worker.queues):  # their tables stay
                refuse_moved(db)
        with self._database.write(now) as tx:
            suffix = 1
            while not tx.run("register_worker", **values):  # an id is one incarnation, never used again
                suffix += 1
                values["worker"] = f"{worker.id}.{suffix}"
        # After the commit: whoever gives such a job back from now on sees that this worker knows its task.
        with self._database.write(now) as tx:
            self._offer(tx, chosen)
        return str(values["worker"])

    def know(
        self, worker: str, queues: Sequence[str], tasks: dict[str, Any], now: float | None = None
    ) -> None:
        """Write into the row of a worker of these queues that it knows these tasks by now."""
        with self._database.write(now) as tx:
            tx.run("know_tasks", worker=worker, tasks=json_text(tasks))
            self._offer(tx, _chosen(queues, tasks))

    def _offer(self, tx: Session, chosen: dict[str, Any]) -> None:
        """Let jobs be due that were put off because no living worker knew their task."""
        queue_up(self._database, tx, "offer", tx.rows("put_off_jobs", most=_OFFERED, **chosen))

    def beat(self, worker: str, strategy: str, now: float | None = None) -> bool:
        """Say that the worker lives; False means that it was declared dead."""
        with self._database.write(now) as tx:
            return tx.run("beat", worker=worker, strategy=strategy) > 0

    def tell(self, worker: str, info: dict[str, Any]) -> None:
        """Put these members into the worker's info, for others to read."""
        with self._database.write() as tx:
            tx.run("tell", worker=worker, info=json_text(info))

    def info(self, worker: str) -> dict[str, Any]:
        """What the worker's row says beside its columns; empty if there is no such worker."""
        with self._database.read() as db:
            row = db.row("info", worker=worker)
        return {} if row is None or row[0] is None else dict(msgspec.json.decode(row[0]))


def _chosen(queues: Sequence[str], tasks: dict[str, Any]) -> dict[str, Any]:
    """What a worker of these queues and tasks takes of the jobs that were put off."""
    return {
        "queues": listed(queues),
        "task_names": None if EVERY_TASK in tasks else json_text(list(tasks)),
        "delay": LONGEST_UNKNOWN,
    }
