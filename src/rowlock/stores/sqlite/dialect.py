"""SQLite's words in the shared statements; pure data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rowlock.stores.sql import statements
from rowlock.stores.sql.claim_sql import READY, ClaimSql
from rowlock.stores.sql.claiming import CLAIM_COLUMNS
from rowlock.stores.sql.reading import JOB_COLUMNS
from rowlock.stores.sql.statements import Statements

# What a claim will look like once it has been marked.
_TAKEN = {"claim": "j.claim + 1", "claimed_at": ":now", "claimed_by": ":worker"}
_WORDS = {
    "now": ":now",
    "now+": "(:now + {0})",
    "now-": "(:now - {0})",
    "running": "state = 'running'",
    "lock": "",  # BEGIN IMMEDIATE has locked everything
    "ids": "SELECT value FROM json_each(:ids)",
    "queues": "SELECT value FROM json_each(:queues)",
    "task_names": "SELECT value FROM json_each(:task_names)",
    "job": JOB_COLUMNS,
    "claim_as_it_is": ", ".join(CLAIM_COLUMNS),
    "claim": ", ".join(_TAKEN.get(name, f"j.{name}") for name in CLAIM_COLUMNS),
}


def written(
    *sources: tuple[str, str], words: Mapping[str, str] | None = None, style: str = "named"
) -> Statements:
    """All statements and those of the sources; `style` is "named" (:name) or "pyformat" (%(name)s)."""
    return statements.load(
        ("rowlock.stores.sqlite", "queries.sql"),
        *sources,
        words=_WORDS | dict(words or {}),
        parameter="%({0})s".format if style == "pyformat" else None,
    )


@cache
def own_statements(style: str) -> Statements:
    """The queue's own statements in that style."""
    return written(style=style)


STATEMENTS = own_statements("named")
CLAIM_SQL = ClaimSql(STATEMENTS, indexes=(READY,))
