"""Reads `.sql` files of named statements and writes a dialect's words into them.

A file holds `-- name: x` blocks (statements) and `-- fragment: x` blocks (pieces that statements use as {x}).
What all databases share is here, in files by what it is for; a block of the same name in a database's own
file is taken instead. Values are always bound (:name). A database's words are {now}, {now+delay} and
{now-age}, its clock; {job} and {claim}, the columns of a job and of a claim; {running}, which guards a claim;
{lock}, which keeps rows for us; {ids}, {queues} and {task_names}, lists that are bound as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.resources import files

_SHARED = ("claiming", "finishing", "maintenance", "operators", "reading", "unique_keys", "workers")
_BLOCK = re.compile(
    r"^-- (name|fragment): (\w+)\n(.*?)(?=^-- (?:name|fragment): |\Z)", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"^\s*--.*\n?|\s+-- .*$", re.MULTILINE)
_TOKEN = re.compile(r"\{(\w+)(?:([+-])(\w+))?\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_TABLE = re.compile(r"(?<![\w.])(rowlock_[a-z_]+)")


class Statements(dict[str, str]):
    """Statements by name; an unknown name is a mistake in the code and raises `KeyError`."""

    # Writes a statement that is put together from fragments; `words` fill the holes that they leave open.
    write: Callable[[str, Mapping[str, str]], str]


def load(
    *sources: tuple[str, str],
    words: Mapping[str, str],
    parameter: Callable[[str], str] | None = None,
    schema: str | None = None,
) -> Statements:
    """The shared statements and those of (package, file) pairs; `words` are the dialect's: {"now": ":now"}.

    `{now+delay}` is written with the word `now+`, a template such as "(:now + {0})" around ":delay".
    `parameter` writes `:name` in the driver's own way; `schema` is put before the names of the tables.
    """
    statements: dict[str, str] = {}
    pieces = dict(words)
    for package, file in (*(("rowlock.stores.sql", f"{name}.sql") for name in _SHARED), *sources):
        for kind, name, body in _blocks(package, file):
            (pieces if kind == "fragment" else statements)[name] = body

    name_of = parameter or ":{0}".format

    def write(text: str, words: Mapping[str, str]) -> str:
        def word(match: re.Match[str]) -> str:
            name, sign, operand = match.groups()
            if sign:
                return pieces[name + sign].format(f":{operand}")
            return words[name] if name in words else pieces[name]

        while _TOKEN.search(text):
            text = _TOKEN.sub(word, text)
        return _PARAMETER.sub(lambda match: name_of(match[1]), qualified(text, schema))

    written = Statements({name: write(text, {}) for name, text in statements.items()})
    written.write = write
    return written


def fragments(package: str, file: str) -> dict[str, str]:
    """The fragments of one file as they stand there."""
    return {name: body for kind, name, body in _blocks(package, file) if kind == "fragment"}


def _blocks(package: str, file: str) -> list[tuple[str, str, str]]:
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    return [(kind, name, _COMMENT.sub("", body).strip()) for kind, name, body in _BLOCK.findall(text)]


def qualified(text: str, schema: str | None) -> str:
    """The statement with the schema before the names of rowlock's tables, indexes and sequences."""
    return text if schema is None else _TABLE.sub(rf'"{schema}".\1', text)
