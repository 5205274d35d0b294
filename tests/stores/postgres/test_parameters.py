"""Every parameter of a statement is sent with a type: its own, or text."""

from __future__ import annotations

import re
from pathlib import Path

import rowlock
from rowlock.stores.postgres.dialect import TYPED

TEXT = {
    *("after", "error", "error_kind", "event", "host", "janitor", "key", "kind", "mark", "message", "mount"),
    *("name", "note", "number", "other", "other_word", "path", "queue", "reason", "row_key", "source"),
    *("state", "strategy", "table", "task", "unique_key", "value", "version", "word", "worker"),
}
NOT_HERE = {"mono"}  # in fragments that PostgreSQL has its own of
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)|\{now[+-]([a-z_]+)\}")


def named(*endings: str) -> set[str]:
    """The parameters that the sources of PostgreSQL's statements name."""
    package = Path(rowlock.__file__).parent
    paths = [path for path in package.rglob("*") if path.suffix in endings]
    shared = [path for path in paths if not re.search("sqlite|duckdb", str(path.relative_to(package)))]
    texts = [re.sub(r"--.*", "", path.read_text(encoding="utf-8")) for path in shared]
    return {first or second for text in texts for first, second in PARAMETER.findall(text)}


def test_a_parameter_without_a_type_is_text() -> None:
    assert named(".sql") - TYPED.keys() - NOT_HERE == TEXT


def test_every_type_is_of_a_parameter() -> None:
    assert TYPED.keys() - named(".sql", ".py") == set()
