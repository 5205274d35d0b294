"""The queue's database as somebody beside rowlock sees it: plain rows, and the table that effects go to.

Knows the two stores' drivers; nothing of faults.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg

from rowlock.stores.postgres.url import parse


def rows(url: str, sql: str) -> Sequence[tuple[Any, ...]]:
    """What a query gives, read on a connection of its own."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            return file.execute(sql).fetchall()
    with _connected(url) as server:
        return server.execute(sql.encode()).fetchall()


def effects_table(url: str) -> str:
    """The name of the table that tasks write to through `ctx.transaction()`, in the queue's schema."""
    schema = None if url.startswith("sqlite:///") else parse(url).schema
    return f"{schema}.effects" if schema else "effects"


def make_effects(url: str) -> None:
    """Make that table."""
    sql = f"CREATE TABLE {effects_table(url)} (job BIGINT NOT NULL, claim BIGINT NOT NULL)"
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file, file:
            file.execute(sql)
        return
    with _connected(url) as server:
        server.execute(sql.encode())


def _connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    address = parse(url)
    connection = psycopg.connect(address.conninfo, autocommit=True)
    if address.schema:
        connection.execute(f"SET search_path TO {address.schema}".encode())
    return connection
