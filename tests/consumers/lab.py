"""A user's database with a table of recordings, as consumers find it, on any store."""

from __future__ import annotations

import json
from typing import Any

from rowlock import Rowlock
from rowlock.stores.sql.store import Store
from tests.user_database import UserDatabase

SQLITE = {"id": "INTEGER PRIMARY KEY", "json": "TEXT", "time": "REAL"}
POSTGRES = {"id": "bigint PRIMARY KEY", "json": "jsonb", "time": "double precision"}


class Lab(UserDatabase):
    """The database of a laboratory."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.types = SQLITE if self.is_sqlite else POSTGRES

    def app(self, **chosen: Any) -> Rowlock:
        made = super().app(**chosen)
        made.store.open()
        return made

    def create(self, rows: int = 0, key: str | None = None) -> None:
        """The table of recordings, with so many rows; the one with the number n was made at n seconds."""
        self.execute(
            f"CREATE TABLE {self.table} (id {key or self.types['id']}, time {self.types['time']}, "
            f"path TEXT, analysis_state {self.types['json']})"
        )
        self.execute(f"CREATE TABLE {self.prefix}detections (recording TEXT, consumer TEXT)")
        self.fill(1, rows)

    def fill(self, first: int, last: int) -> None:
        if last >= first:
            self.execute(
                f"INSERT INTO {self.table} (id, time, path) WITH RECURSIVE n (n) AS (SELECT {first} "
                f"UNION ALL SELECT n + 1 FROM n WHERE n < {last}) SELECT n, n, 'rec-' || n FROM n"
            )

    def states(self) -> dict[Any, Any]:
        rows = self.execute(f"SELECT id, analysis_state FROM {self.table}")
        return {key: json.loads(text) if isinstance(text, str) else text for key, text in rows}

    def marks(self, consumer: str) -> dict[Any, Any]:
        return {key: (state or {}).get(consumer) for key, state in self.states().items()}

    def set_state(self, key: Any, state: str | None) -> None:
        self.execute(f"UPDATE {self.table} SET analysis_state = ? WHERE id = ?", (state, key))

    def claims(self) -> list[Any]:
        name = f"{self.prefix}rowlock_consumer_claims"
        return self.execute(f"SELECT consumer, row_key, claimed_by, failures FROM {name} ORDER BY claim")

    def sleeps(self, worker: str) -> bool:
        """True if the worker waits to be told; on SQLite every commit tells it, and it says nothing."""
        asked = f"SELECT 1 FROM {self.prefix}rowlock_workers WHERE id = ? AND sleeping"
        return self.is_sqlite or bool(self.execute(asked, (worker,)))

    def lose_claims(self) -> None:
        """As if all who hold one had been declared dead."""
        self.execute(f"DELETE FROM {self.prefix}rowlock_consumer_claims")

    def detections(self) -> list[tuple[str, str]]:
        return sorted(map(tuple, self.execute(f"SELECT recording, consumer FROM {self.prefix}detections")))

    def count_detections(self) -> int:
        return int(self.execute(f"SELECT count(*) FROM {self.prefix}detections")[0][0])

    def detect(self, tx: Any, key: Any, consumer: str) -> None:
        """What a consumer's function writes for a row."""
        mark = self.mark
        tx.execute(f"INSERT INTO {self.prefix}detections VALUES ({mark}, {mark})", (str(key), consumer))


def store_of(app: Rowlock, consumer: str) -> Store:
    """The consumer's rows as a store, for tests that take its verbs one by one."""
    store = app.workload(consumer=consumer).store
    assert isinstance(store, Store)
    return store
