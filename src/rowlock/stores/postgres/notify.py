"""NOTIFY: which workers sleep, and which of them is told of work, inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from rowlock.codec import json_text
from rowlock.stores.postgres.session import PostgresSession
from rowlock.stores.sql.session import Session


class Sleepers:
    """The sleeping workers of one database; behind a pooler none can be notified."""

    def __init__(self, read: Callable[[], AbstractContextManager[PostgresSession]], pooled: bool) -> None:
        self._read = read
        self._pooled = pooled
        self._here: set[str] = set()  # workers of this process whose rows say that they sleep

    def __contains__(self, worker: str) -> bool:
        return worker in self._here

    def fall_asleep(self, worker: str) -> bool:
        """Say in the worker's row that it waits for jobs; True if it does so for some queues only."""
        with self._read() as db:
            row = db.row("sleep", worker=worker)
        self._here.add(worker)
        return row is not None and bool(row[0])

    def get_up(self, worker: str, is_told: bool = False) -> None:
        """It waits no more; `is_told` if its row says so already."""
        if worker in self._here:
            if not is_told:
                with self._read() as db:
                    db.run("awake", worker=worker)
            self._here.discard(worker)

    def wake_one(self, tx: Session, queues: Collection[str], tasks: Collection[str]) -> None:
        """Notify one worker that takes one of these queues and knows one of these tasks; none given: any."""
        if not self._pooled:
            tx.rows("wake_one", queues=_names(queues), task_names=_names(tasks))

    def wake_readers(self, tx: Session, name: str) -> None:
        """Notify every sleeping worker of this queue or consumer."""
        if not self._pooled:
            tx.rows("wake_readers", queue=name)

    def wake_another(self, worker: str) -> None:
        """Notify another worker, if there is work for it."""
        with self._read() as db:
            db.rows("wake_another", worker=worker)


def _names(names: Collection[str]) -> str | None:
    return json_text(sorted(names)) if names else None
