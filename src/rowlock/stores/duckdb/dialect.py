"""DuckDB's words in the statements that all stores share, and how its parameters are written.

Opens nothing and imports no driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from rowlock.stores.sql import statements as queries
from rowlock.stores.sql.claim_sql import LINE, READY, ClaimSql
from rowlock.stores.sql.claiming import CLAIM_COLUMNS
from rowlock.stores.sql.reading import JOB_COLUMNS
from rowlock.strategies import HIGHEST, NEWEST

# What a claim will look like once `mark_taken` has been run on it.
_TAKEN = {"claim": "j.claim + 1", "claimed_at": ":now", "claimed_by": ":worker"}
_LIST = """SELECT unnest(from_json(:{0}, '["{1}"]'))"""
WORDS = {
    "now": ":now",
    "now+": "(:now + {0})",
    "now-": "(:now - {0})",
    "running": "state = 'running'",
    "lock": "",  # a transaction that was faster makes this one fail, and it is made again
    "ids": _LIST.format("ids", "BIGINT"),
    "queues": _LIST.format("queues", "VARCHAR"),
    "task_names": _LIST.format("task_names", "VARCHAR"),
    "job": JOB_COLUMNS,
    "claim_as_it_is": ", ".join(CLAIM_COLUMNS),
    "claim": ", ".join(_TAKEN.get(name, f"j.{name}") for name in CLAIM_COLUMNS),
}
_NAMED = re.compile(r"\$([a-z_]+)")


@cache
def names_in(statement: str) -> tuple[str, ...]:
    """The parameters of a statement; DuckDB refuses values for any others."""
    return tuple(dict.fromkeys(_NAMED.findall(statement)))


def load(
    *sources: tuple[str, str], words: Mapping[str, str] | None = None, style: str | None = None
) -> queries.Statements:
    """The store's statements and those of the sources; `style` is "named" for :name (SQLAlchemy's)."""
    parameter = None if style == "named" else "${0}".format
    return queries.load(
        ("rowlock.stores.duckdb", "queries.sql"),
        *sources,
        words=WORDS | dict(words or {}),
        parameter=parameter,
    )


STATEMENTS = load()
# It reads its columns whole in any case: one order costs as much as another, and marks would spare nothing.
CLAIM_SQL = ClaimSql(STATEMENTS, indexes=(READY, LINE, (HIGHEST, NEWEST)), has_marks=False)


@cache
def named() -> queries.Statements:
    """The same statements with parameters as :name."""
    return load(style="named")
