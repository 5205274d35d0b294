"""A user's database with a table of recordings, as consumers find it, on any store."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import psycopg

from rowlock import Rowlock
from rowlock.consumers.store import ConsumerStore

SQLITE = {"id": "INTEGER PRIMARY KEY", "json": "TEXT", "time": "REAL"}
POSTGRES = {"id": "bigint PRIMARY KEY", "json": "jsonb", "time": "double precision"}


class Lab:
    """The database as its user sees it: through a connection that is not rowlock's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        self.mark = "?" if self.is_sqlite else "%s"
        self.types = SQLITE if self.is_sqlite else POSTGRES
        self.prefix = ""
        if not self.is_sqlite:
            found = re.search(r"[?&]schema=(\w+)", url)
            assert found is not None
            self.prefix = f"{found[1]}."
        self._connection: Any = self.connect()
        self._apps: list[Rowlock] = []

    def connect(self) -> Any:
        if self.is_sqlite:
            path = self.url.removeprefix("sqlite:///")
            return sqlite3.connect(path, isolation_level=None, timeout=20, check_same_thread=False)
        return psycopg.connect(re.sub(r"[?&]schema=\w+", "", self.url), autocommit=True)

    @property
    def table(self) -> str:
        return f"{self.prefix}recordings"

    def app(self, **chosen: Any) -> Rowlock:
        made = Rowlock(self.url, **{"poll_interval": 0.05, **chosen})
        made.store.open()
        self._apps.append(made)
        return made

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self._connection.execute(statement.replace("?", self.mark), values)
        return list(cursor.fetchall()) if cursor.description else []

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

    def close(self) -> None:
        for app in self._apps:
            app.close()
        self._connection.close()


def store_of(app: Rowlock, consumer: str) -> ConsumerStore:
    """The consumer's rows as a store, for tests that take its verbs one by one."""
    store = app.consumer_host(consumer).store
    assert isinstance(store, ConsumerStore)
    return store
