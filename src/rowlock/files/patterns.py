"""Which files of a tree are meant: a pattern such as `**/*.wav`, as a test on relative paths.

`*` and `?` stop at a `/`, `**` stands for any number of folders; upper and lower case differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rowlock.errors import ConfigurationError


def matcher(value: Any) -> Callable[[str], bool]:
    """A test whether a path below the folder, written with `/`, fits the pattern."""
    parts = value.split("/") if isinstance(value, str) else []
    if not parts or not all(parts) or ".." in parts or "\x00" in value or "\\" in value:
        raise ConfigurationError(
            f'pattern={value!r}: must be a pattern below the folder, such as "*.wav" or "**/*.wav"'
        )
    parts = [part.replace("[^", "[!") for part in parts]  # some shells write it like this
    return lambda path: _fit(path.split("/"), parts)


def _fit(path: Sequence[str], pattern: Sequence[str]) -> bool:
    if not path or not pattern:
        return not path and not pattern
    if pattern[0] == "**":
        return len(pattern) == 1 or any(_fit(path[skip:], pattern[1:]) for skip in range(len(path)))
    return fnmatchcase(path[0], pattern[0]) and _fit(path[1:], pattern[1:])
