"""Reads `.sql` files of named statements and writes a dialect's words into them.

A file holds `-- name: x` blocks (statements) and `-- fragment: x` blocks (pieces that statements use as {x}).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

_BLOCK = re.compile(
    r"^-- (name|fragment): (\w+)\n(.*?)(?=^-- (?:name|fragment): |\Z)", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"^\s*--.*\n?|\s+-- .*$", re.MULTILINE)
_TOKEN = re.compile(r"\{(\w+)(?:([+-])(\w+))?\}")


class Queries(dict[str, str]):
    """Statements by name; an unknown name is a mistake in the code and raises `KeyError`."""


def load(*sources: tuple[str, str], words: Mapping[str, str]) -> Queries:
    """Load statements from (package, file) pairs; `words` are the dialect's, e.g. {"now": ":now"}.

    `{now+delay}` is written with the word `now+`, a template such as "(:now + {0})" around ":delay".
    """
    statements: dict[str, str] = {}
    pieces = dict(words)
    for package, file in sources:
        text = files(package).joinpath(file).read_text(encoding="utf-8")
        for kind, name, body in _BLOCK.findall(text):
            (pieces if kind == "fragment" else statements)[name] = _COMMENT.sub("", body).strip()

    def word(match: re.Match[str]) -> str:
        name, sign, operand = match.groups()
        return pieces[name + sign].format(f":{operand}") if sign else pieces[name]

    def written(text: str) -> str:
        while _TOKEN.search(text):
            text = _TOKEN.sub(word, text)
        return text

    return Queries({name: written(text) for name, text in statements.items()})
