"""The files that rows name, as they are in the folder: there, gone, or not to be touched.

Looks only (a file whose removal was broken off gets its name back); what is deleted, and when, is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rowlock.files.folder import FileRefused, Found, OpenFolder
from rowlock.files.places import Places
from rowlock.files.policy import Named


class Files(msgspec.Struct, frozen=True):
    """The files of a row: those that are there, and the paths of those that are gone."""

    there: list[Found]
    gone: list[str]

    @property
    def paths(self) -> list[str]:
        """All of them, below the folder."""
        return [*(found.path for found in self.there), *self.gone]


class RowFiles:
    """The files of rows in a folder that is open."""

    def __init__(self, places: Places, opened: OpenFolder, recover: bool) -> None:
        self.places = places
        self.opened = opened
        self._recover = recover

    def look(self, row: Named) -> Files:
        """The files that a row names; raises FileRefused if one of them must not be touched."""
        there: dict[str, Found] = {}
        gone: list[str] = []
        for text in row.paths:
            try:
                path = self.places.read(text)
                found = self.opened.look(path, recover=self._recover)
            except FileRefused as error:
                raise FileRefused(str(error), str(text)) from None
            if found is None:
                gone.append(path)
            else:
                there[found.path] = found
        return Files(list(there.values()), gone)

    def deletable(self, row: Named, needed: set[str], ingested: dict[str, tuple[int, int]]) -> Files:
        """The row's files, if all of them may go.

        `needed` are files that other rows must keep, `ingested` the sizes and times of files when they were
        ingested.
        """
        if shared := needed & set(row.paths):
            raise FileRefused("another row that is not to be deleted names it, too", min(shared))
        files = self.look(row)
        for found in files.there:
            before = ingested.get(self.places.written(found.path))
            if before is not None and before != (found.size, found.modified):
                raise FileRefused("it has changed since it was ingested", found.path)
        return files

    def all_gone(self, row: Named) -> list[str]:
        """The paths of the row's files if none of them is there, nor anything in its place; else none."""
        try:
            files = self.look(row)
        except FileRefused:
            return []
        return [] if files.there else files.gone

    def readable_paths(self, row: Named) -> list[str]:
        """The row's paths below the folder; what is wrong with others is told when they are looked at."""
        found = []
        for text in row.paths:
            try:
                found.append(self.places.read(text))
            except FileRefused:
                continue
        return found

    def total_size(self, rows: Iterable[Named]) -> int:
        """The size of all files that these rows name, each counted once."""
        sizes = {found.path: found.size for found in self.opened.scan(lambda path: True, _ignore)}
        return sum(sizes.pop(path, 0) for row in rows for path in self.readable_paths(row))


def texts_of(rows: Iterable[Named]) -> list[Any]:
    """The paths of these rows as the table has them."""
    return [text for row in rows for text in row.paths if isinstance(text, str)]


def _ignore(path: str, why: str) -> None:
    """What cannot be read has no size."""
