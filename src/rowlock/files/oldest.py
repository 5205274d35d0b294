"""`delete_oldest`: the last resort, called by name only. It needs no database, knows no rows, asks nobody."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.files import disk, limits
from rowlock.files.folder import FileRefused, Folder, Found
from rowlock.files.patterns import matcher
from rowlock.files.records import FileTrouble


class DeletedOldest(msgspec.Struct, frozen=True):
    """What `delete_oldest` did."""

    deleted: list[str]  # paths below the folder, oldest first
    freed: int  # bytes
    refused: list[FileTrouble]
    free: int  # bytes that are free on the disk now
    enough: bool  # whether that is what was asked for


def delete_oldest(
    folder: str | os.PathLike[str], pattern: str, *, until_free: Any, cap: int = 500
) -> DeletedOldest:
    """Delete the files that were changed longest ago until so much of the disk is free, `cap` files at most.

    Only regular files strictly inside the folder that fit the pattern; links are not followed or deleted.
    """
    place, fits = Folder(folder), matcher(pattern)
    wanted = limits.free("until_free", until_free)
    whole_number("cap", cap)
    place.check(writable=True)
    refused: list[FileTrouble] = []
    deleted: list[str] = []
    freed = 0

    def report(path: str, why: str) -> None:
        refused.append(FileTrouble(path, why))

    began = disk.space(place.path)
    target = wanted.of(began.total)
    now = began.free
    with place.opened() as opened:
        files: dict[str, Found] = {}
        if now < target:
            files = {found.path: found for found in opened.scan(fits, report, recover=True)}
        for found in sorted(files.values(), key=lambda found: (found.modified, found.path)):
            if now >= target or len(deleted) >= cap:
                break
            try:
                opened.remove(found)
            except FileRefused as error:
                report(found.path, str(error))
                continue
            deleted.append(found.path)
            freed += found.frees
            # Some file systems tell later that something is free; what is known to be freed counts at once.
            now = max(disk.space(place.path).free, began.free + freed)
    return DeletedOldest(deleted, freed, refused, now, now >= target)


def whole_number(what: str, value: Any) -> int:
    """A number of things, checked."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{what}={value!r}: must be a whole number of 1 or more")
    return value
