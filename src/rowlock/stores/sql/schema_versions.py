"""The schema as far as every store shares it: its script, and the rules what code may use what tables.

Knows no database; a store's `schema.py` has its words for the types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files

from rowlock.errors import SchemaMismatch
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import fragments

VERSION = 1  # of the tables, in whichever database
Migration = tuple[int, str]
_FILE = re.compile(r"(\d{4})_\w+\.sql")
_INCLUDE = re.compile(r"-- include: (\w+)")
_WORD = re.compile(r"\{(\w+)\}")


def script(package: str, words: Mapping[str, str]) -> str:
    """A database's `schema.sql`, with the tables that all share, in its own `words` for their types.

    What the statements and the indexes both say is a fragment of `unique_keys.sql`.
    """

    def shared(match: re.Match[str]) -> str:
        return files("rowlock.stores.sql").joinpath(f"{match[1]}.sql").read_text(encoding="utf-8").rstrip()

    known = {**fragments("rowlock.stores.sql", "unique_keys.sql"), **words}
    own = files(package).joinpath("schema.sql").read_text(encoding="utf-8")
    return _WORD.sub(lambda word: known[word[1]], _INCLUDE.sub(shared, own))


def single_statements(script: str) -> Iterator[str]:
    """The statements of a script one by one, for drivers that would commit before they run several."""
    import sqlite3  # here: `import rowlock` brings no database driver along

    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        statement = "\n".join(lines)
        if line.split("--")[0].rstrip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement
            lines = []


def emptied(where: str) -> SchemaMismatch:
    """What is said when the tables are there, and the row that tells their version is not."""
    return SchemaMismatch(
        f"rowlock's tables in {where} are there, but rowlock_meta is empty: somebody has emptied them. If a "
        "test suite truncates every table, keep rowlock's apart from it: with ?schema=rowlock in the URL on "
        "PostgreSQL, in a file of their own on SQLite. To begin anew, drop the tables whose names begin with "
        "rowlock_ and run `rowlock init`"
    )


def facts_in(db: Session) -> dict[str, str] | None:
    """The queue's own facts, or None if its tables are not there."""
    return dict(db.rows("meta")) if db.row("queue_there") else None


def version_of(facts: Mapping[str, str], where: str) -> int:
    """The version of the tables that have these facts."""
    if "version" not in facts:
        raise emptied(where)
    return int(facts["version"])


def check(facts: Mapping[str, str], where: str) -> None:
    """Raise unless this code can use tables with these facts."""
    there, needed = version_of(facts, where), int(facts["compatible_from"])
    if needed > VERSION:
        raise SchemaMismatch(
            f"the queue in {where} has schema {there} and needs code that knows schema {needed}; "
            f"this rowlock knows {VERSION}: install a newer rowlock"
        )
    if there < VERSION:
        raise SchemaMismatch(
            f"the queue in {where} has schema {there}, this rowlock needs {VERSION}: run `rowlock upgrade`"
        )


def migrations_in(package: str) -> list[Migration]:
    """The (version, SQL) pairs of a store's migrations folder, in order."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(entry.name)
        if match:
            found.append((int(match[1]), entry.read_text(encoding="utf-8")))
    return sorted(found)


def migrate(
    steps: Sequence[Migration], facts: Mapping[str, str], where: str, run: Callable[[str], object]
) -> tuple[int, int]:
    """Run the migrations that tables with these facts still miss; returns the version before and after."""
    before = after = version_of(facts, where)
    for version, text in steps:
        if version > after:
            run(text)
            run(f"UPDATE rowlock_meta SET value = '{version}' WHERE key = 'version';")  # noqa: S608
            after = version
    return before, after
