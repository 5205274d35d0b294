"""The files that rows name, as they are in the folder: there, gone, or not to be touched.

Looks only (a file whose removal was broken off gets its name back); what is deleted, and when, is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rowlock.files.folder import FileRefused, Folder, Found, OpenFolder
from rowlock.files.policy import Named


class Keeping(msgspec.Struct, frozen=True):
    """What speaks against deleting files, by their paths as the table has them."""

    needed: set[str]  # other rows name them, which are not to be deleted
    ingested: dict[str, tuple[int, int]]  # their sizes and times when they got their row


class RowFiles:
    """The files of rows in a folder that is open."""

    def __init__(self, folder: Folder, opened: OpenFolder, recover: bool) -> None:
        self._folder = folder
        self.opened = opened
        self._recover = recover

    def look(self, row: Named) -> dict[str, Found | None]:
        """The files that a row names by their paths below the folder; None is one that is gone.

        Raises FileRefused if one of them must not be touched.
        """
        files: dict[str, Found | None] = {}
        for text in row.paths:
            try:
                path = self._folder.read(text)
                files[path] = self.opened.look(path, recover=self._recover)
            except FileRefused as error:
                raise FileRefused(str(error), str(text)) from None
        return files

    def deletable(self, row: Named, keeping: Keeping) -> dict[str, Found | None]:
        """The row's files, if all of them may go."""
        if shared := keeping.needed & set(row.paths):
            raise FileRefused("another row that is not to be deleted names it, too", min(shared))
        files = self.look(row)
        for found in there(files):
            before = keeping.ingested.get(self._folder.written(found.path))
            if before is not None and before != (found.size, found.modified):
                raise FileRefused("it has changed since it was ingested", found.path)
        return files

    def all_gone(self, row: Named) -> list[str]:
        """The paths of the row's files if none of them is there, nor anything in its place; else none."""
        try:
            files = self.look(row)
        except FileRefused:
            return []
        return [] if there(files) else list(files)

    def readable_paths(self, row: Named) -> list[str]:
        """The row's paths below the folder; what is wrong with others is told when they are looked at."""
        found = []
        for text in row.paths:
            try:
                found.append(self._folder.read(text))
            except FileRefused:
                continue
        return found

    def total_size(self, rows: Iterable[Named]) -> int:
        """The size of all files that these rows name, each counted once."""
        sizes = {found.path: found.size for found in self.opened.scan(lambda path: True, _ignore)}
        return sum(sizes.pop(path, 0) for row in rows for path in self.readable_paths(row))


def there(files: Mapping[str, Found | None]) -> list[Found]:
    """Those of the files that are there."""
    return [found for found in files.values() if found is not None]


def texts_of(rows: Iterable[Named]) -> list[Any]:
    """The paths of these rows as the table has them."""
    return [text for row in rows for text in row.paths if isinstance(text, str)]


def _ignore(path: str, why: str) -> None:
    """What cannot be read has no size."""
