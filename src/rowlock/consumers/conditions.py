"""Splits a user's SQL condition at its top-level ANDs, as text: only the database knows what a part means.

A condition that is not surely understood stays in one piece, which is always correct.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PIECE = re.compile(
    r"""
    (?P<comment> --[^\n]* | /\*.*?\*/ )
  | (?P<text> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
  | (?P<name> "(?:[^"]|"")*" | `(?:[^`]|``)*` )
  | (?P<word> [^\W\d][\w$]* )
  | (?P<space> \s+ )
  | (?P<sign> . )
    """,
    re.DOTALL | re.VERBOSE,
)
_OPENING, _CLOSING = frozenset(("(", "[", "CASE")), frozenset((")", "]", "END"))
_UNCLEAR = frozenset("'\"`;,\\")  # at the top level: quotes that do not end, and signs that no condition has
# SQLite's functions of time read the clock if an argument is "now", and refuse an index only at that moment.
_OF_TIME = frozenset(("DATE", "TIME", "DATETIME", "JULIANDAY", "UNIXEPOCH", "STRFTIME", "TIMEDIFF"))


def parts(condition: str) -> list[str]:
    """The parts that the condition joins by AND; only the condition itself, if it is anything else."""
    found: list[str] = []
    start = depth = betweens = 0
    for kind, piece, at in _pieces(condition):
        word = piece.upper() if kind in ("word", "sign") else ""
        if kind == "comment":
            if "/*" in piece[2:]:  # comments can be nested in PostgreSQL only
                return [condition]
        elif word in _OPENING:
            depth += 1
        elif word in _CLOSING:
            depth -= 1
            if depth < 0:
                return [condition]
        elif depth:
            continue
        elif word == "OR" or word in _UNCLEAR:
            return [condition]
        elif word == "BETWEEN":
            betweens += 1
        elif word == "AND" and betweens:
            betweens -= 1
        elif word == "AND":
            found.append(condition[start:at].strip())
            start = at + len(piece)
    found.append(condition[start:].strip())
    return [condition] if depth or betweens or not all(found) else found


def may_read_clock(condition: str) -> bool:
    """Whether it calls a function of SQLite's that may read the clock."""
    calls = ""
    for kind, piece, _ in _pieces(condition):
        if kind in ("word", "name"):
            calls = piece.strip('"`').upper()
        elif kind == "sign" and piece in "(]":
            if piece == "(" and calls in _OF_TIME:
                return True
        elif kind not in ("space", "comment"):
            calls = ""
    return False


def _pieces(condition: str) -> Iterator[tuple[str, str, int]]:
    for match in _PIECE.finditer(condition):
        yield match.lastgroup or "", match[0], match.start()
