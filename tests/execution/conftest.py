"""The stores on which a task's own rows have to behave alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rowlock import Rowlock
from tests.execution.bench import Bench


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Bench]:
    file = tmp_path / "app.db"

    def read(sql: str) -> list[Any]:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            return other.execute(sql).fetchall()

    read("CREATE TABLE note (word TEXT NOT NULL)")
    with closing(Rowlock(f"sqlite:///{file}")) as app:
        yield Bench(app, "note", read, "?")


@pytest.fixture
def on_postgres(postgres_schema: str) -> Iterator[Bench]:
    url, _, schema = postgres_schema.partition("?schema=")
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"CREATE TABLE {schema}.note (word text NOT NULL)")

        def read(sql: str) -> list[Any]:
            return other.execute(sql).fetchall()

        with closing(Rowlock(postgres_schema)) as app:
            yield Bench(app, f"{schema}.note", read, "%s")


@pytest.fixture(params=["on_sqlite", "on_postgres"])
def bench(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.getfixturevalue(request.param)
    return made
