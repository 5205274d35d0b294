"""How a file's path is written in a table: absolute, or relative to the folder, wherever that is mounted.

Text only: no disk is looked at. A relative path is never taken from the working directory.
"""

from __future__ import annotations

import os
from typing import Any

from rowlock.errors import ConfigurationError
from rowlock.files.folder import FileRefused, parts_of

PATHS = ("absolute", "relative")


class Places:
    """The paths of one folder, as a table has them."""

    def __init__(self, folder: str, paths: str) -> None:
        if paths not in PATHS:
            raise ConfigurationError(f"paths={paths!r}: must be one of {', '.join(PATHS)}")
        self._folder = folder
        self._relative = paths == "relative"

    def written(self, path: str) -> str:
        """A path below the folder, as the table has it."""
        return path if self._relative else os.path.join(self._folder, *path.split("/"))

    def read(self, value: Any) -> str:
        """What the table has, as a path below the folder; raises FileRefused if it is none."""
        if not isinstance(value, str):
            raise FileRefused(f"its path is {type(value).__name__} and no text")
        if self._relative:
            return "/".join(parts_of(value))
        return self._below(value)

    def given(self, value: Any) -> str | None:
        """What a user's function returned for a path column (absolute or relative), as the table has it."""
        if value is None:
            return None
        if not isinstance(value, (str, os.PathLike)):
            raise FileRefused(f"{value!r} is no path")
        text = os.fspath(value)
        if not isinstance(text, str):
            raise FileRefused(f"{value!r} is no text")
        if os.path.isabs(text):
            return self.written(self._below(text))
        return self.written("/".join(parts_of(text.replace(os.sep, "/"))))

    def _below(self, text: str) -> str:
        inside = text.removeprefix(self._folder.rstrip(os.sep) + os.sep)
        if inside == text:
            raise FileRefused(f"its path is not inside {self._folder}")
        return "/".join(parts_of(inside.replace(os.sep, "/")))
