"""The SQL of the usual claims for docs/claims.md: `python -m tests.docs.claims_page` writes it.

What the page says about it is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from rowlock.stores.postgres import dialect as postgres
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sqlite import dialect as sqlite
from rowlock.strategies import get_strategy

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
WIDTH = 110
_PART = re.compile(r"(?= (?:FROM|WHERE|AND|OR|ORDER BY|JOIN|CROSS JOIN|LIMIT) )|(?<=,)(?= )")
_BLOCK = re.compile(r"^## (?P<title>[^\n]+)(?P<words>.*?^```sql\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def statements() -> dict[str, list[str]]:
    """By the titles of the page."""
    priority, lifo = get_strategy("PRIORITY"), get_strategy("LIFO")
    on_sqlite, on_postgres = sqlite.CLAIM_SQL, ClaimSql(postgres.statements(None), postgres.INDEXES)
    marking = sqlite.STATEMENTS["mark_taken"]
    one = postgres.exchange(None, priority, many=False, named=False, done="one", asleep=False)
    many = postgres.exchange(None, priority, many=True, named=False, done="many", asleep=False)
    return {
        "SQLite: several jobs by PRIORITY": [on_sqlite.take(priority), marking],
        "SQLite: several jobs by LIFO": [on_sqlite.take(lifo)],
        "SQLite: a job that has to run alone": [on_sqlite.isolated],
        "SQLite: a batch of completed jobs": [sqlite.STATEMENTS["finish_all_completed"]],
        "PostgreSQL: several jobs by PRIORITY": [on_postgres.take(priority)],
        "PostgreSQL: a job that has to run alone": [on_postgres.isolated],
        "PostgreSQL: a completed job": [postgres.statements(None)["finish"]],
        "PostgreSQL: the fused exchange, one job": [one],
        "PostgreSQL: the fused exchange, many jobs": [many],
    }


def laid_out(sql: str) -> str:
    """The statement with its lines indented by the brackets that are open, and no casts of parameters."""
    sql = re.sub(r"CAST\(%\((\w+)\)s AS [^)]+\)", r":\1", sql)
    sql = sql.replace("coalesce(to_timestamp(:now), statement_timestamp())", "statement_timestamp()")
    lines: list[str] = []
    depth = 0
    for line in sql.splitlines():
        text = line.strip()
        margin = "    " * (depth - text.startswith(")"))
        depth += text.count("(") - text.count(")")
        lines.append(margin)
        for part in _PART.split(text):  # as many of them on a line as there is room for
            if len(lines[-1] + part) > WIDTH and lines[-1].strip():
                lines.append(f"{margin}    ")
            lines[-1] += part if lines[-1].strip() else part.lstrip()
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def written(page: str) -> str:
    """The page with the statements as they are now."""

    def block(found: re.Match[str]) -> str:
        sql = "\n".join(map(laid_out, statements()[found["title"]]))
        return f"## {found['title']}{found['words']}{sql}"

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
