"""Which files of a tree are meant: a pattern such as `**/*.wav`, as a test on relative paths.

`*` and `?` stop at a `/`, `**` stands for any number of folders; upper and lower case differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rowlock.errors import ConfigurationError


def matcher(value: Any) -> Callable[[str], bool]:
    """A test whether a path below the folder, written with `/`, fits the pattern."""
    parts = value.split("/") if isinstance(value, str) else []
    if not parts or not all(parts) or ".." in parts or "\x00" in value or "\\" in value:
        raise ConfigurationError(
            f'pattern={value!r}: must be a pattern below the folder, such as "*.wav" or "**/*.wav"'
        )
    return re.compile("".join(_parts(parts)), re.DOTALL).fullmatch  # type: ignore[return-value]


def _parts(parts: list[str]) -> list[str]:
    last = len(parts) - 1
    written = []
    for place, part in enumerate(parts):
        if part == "**":
            written.append(".+" if place == last else "(?:[^/]+/)*")
        else:
            written.append(_part(part) + ("" if place == last else "/"))
    return written


def _part(part: str) -> str:
    written, place = [], 0
    while place < len(part):
        one = part[place]
        end = part.find("]", place + 2) if one == "[" else -1
        if end > 0:
            inner = part[place + 1 : end]
            negated, inner = ("^/", inner[1:]) if inner[0] in "!^" and len(inner) > 1 else ("", inner)
            inner = re.sub(r"([\[\\&~|^])", r"\\\1", inner)
            written.append(f"[{negated}{inner}]")
            place = end
        else:
            written.append({"*": "[^/]*", "?": "[^/]"}.get(one, re.escape(one)))
        place += 1
    return "".join(written)
