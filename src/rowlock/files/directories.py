"""One folder on the disk, open: what is in it, and the few things that are done there, by name.

On POSIX it is a handle, so that nothing can be exchanged on the way to it; elsewhere it is a path that is
looked at part by part. Neither goes through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

# Windows lacks all of these.
HAS_HANDLES = (
    {os.open, os.stat, os.unlink, os.rename, os.link} <= os.supports_dir_fd
    and os.scandir in os.supports_fd
    and hasattr(os, "O_DIRECTORY")
    and hasattr(os, "O_NOFOLLOW")
)
_OPEN = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
_REPARSE_POINT = 0x400  # Windows: a link, a junction, or something else that leads elsewhere


class HandleDirectory:
    """A folder by its handle: it stays the same one, wherever it is moved to."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def enter(self, name: str) -> HandleDirectory:
        """A folder in it; raises OSError if that is a link or no folder."""
        return HandleDirectory(os.open(name, _OPEN, dir_fd=self._handle))

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """What is in it, in any order."""
        with os.scandir(self._handle) as found:
            yield from found

    def look(self, name: str) -> os.stat_result:
        """What is there under this name, without following a link."""
        return os.stat(name, dir_fd=self._handle, follow_symlinks=False)

    def rename(self, name: str, other: str) -> None:
        """Give it another name in this folder."""
        os.rename(name, other, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def link(self, name: str, other: str) -> None:
        """Give it a second name in this folder; raises FileExistsError if that is taken."""
        os.link(name, other, src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        """Remove the name."""
        os.unlink(name, dir_fd=self._handle)

    def close(self) -> None:
        """Let go of it."""
        with suppress(OSError):
            os.close(self._handle)


class PathDirectory:
    """A folder by its path, where there are no handles; each use makes sure that it is no link by now."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._here()

    def _here(self) -> None:
        found = os.lstat(self._path)
        if _leads_elsewhere(found) or not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "a link, or no folder", self._path)

    def _at(self, name: str) -> str:
        self._here()
        return os.path.join(self._path, name)

    def enter(self, name: str) -> PathDirectory:
        return PathDirectory(self._at(name))

    def entries(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self._at("")) as found:
            yield from found

    def look(self, name: str) -> os.stat_result:
        found = os.lstat(self._at(name))
        if _leads_elsewhere(found) and not stat.S_ISLNK(found.st_mode):
            raise OSError(f"{name} is a junction")
        return found

    def rename(self, name: str, other: str) -> None:
        os.rename(self._at(name), self._at(other))

    def link(self, name: str, other: str) -> None:
        os.link(self._at(name), self._at(other), follow_symlinks=os.link not in os.supports_follow_symlinks)

    def unlink(self, name: str) -> None:
        os.unlink(self._at(name))

    def close(self) -> None:
        """There is nothing to let go of."""


Directory: TypeAlias = HandleDirectory | PathDirectory


def open_directory(path: str) -> Directory:
    """The folder at this path; raises OSError if it is a link or no folder."""
    if HAS_HANDLES:
        return HandleDirectory(os.open(path, _OPEN))
    return PathDirectory(path)


def _leads_elsewhere(found: os.stat_result) -> bool:
    attributes = getattr(found, "st_file_attributes", 0)
    return stat.S_ISLNK(found.st_mode) or bool(attributes & _REPARSE_POINT)
