"""A user's own database beside the queue's tables, on any store."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import psycopg

from rowlock import Rowlock


class UserDatabase:
    """A database with a table of recordings, through a connection that is not rowlock's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        self.mark = "?" if self.is_sqlite else "%s"
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
        self._apps.append(made)
        return made

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self._connection.execute(statement.replace("?", self.mark), values)
        return list(cursor.fetchall()) if cursor.description else []

    def close_apps(self) -> None:
        for app in self._apps:
            app.close()

    def close(self) -> None:
        self.close_apps()
        self._connection.close()
