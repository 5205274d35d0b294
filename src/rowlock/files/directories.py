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


class Directory:
    """A folder that is open.

    By its handle it stays the same one, wherever it is moved to. By its path, where there are no handles,
    each use makes sure that it is no link by now.
    """

    def __init__(self, name: str, parent: Directory | None = None) -> None:
        """The folder at this path, or of this name in another; raises OSError if it is a link or none."""
        self._path = name if parent is None else parent._at(name)
        self._handle: int | None = None
        if HAS_HANDLES:
            self._handle = os.open(self._path, _OPEN, dir_fd=None if parent is None else parent._handle)
        else:
            self._at("")

    def _at(self, name: str) -> str:
        """How the system is told of a name in it, beside the handle."""
        if self._handle is not None:
            return name
        found = os.lstat(self._path)
        if _leads_elsewhere(found) or not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "a link, or no folder", self._path)
        return os.path.join(self._path, name)

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """What is in it, in any order."""
        with os.scandir(self._at("") if self._handle is None else self._handle) as found:
            yield from found

    def look(self, name: str) -> os.stat_result:
        """What is there under this name, without following a link."""
        found = os.stat(self._at(name), dir_fd=self._handle, follow_symlinks=False)
        if _leads_elsewhere(found) and not stat.S_ISLNK(found.st_mode):
            raise OSError(f"{name} is a junction")
        return found

    def rename(self, name: str, other: str) -> None:
        """Give it another name in this folder."""
        os.rename(self._at(name), self._at(other), src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def link(self, name: str, other: str) -> None:
        """Give it a second name in this folder; raises FileExistsError if that is taken."""
        follow = os.link not in os.supports_follow_symlinks  # Windows cannot be asked not to
        here = self._handle
        os.link(self._at(name), self._at(other), src_dir_fd=here, dst_dir_fd=here, follow_symlinks=follow)

    def unlink(self, name: str) -> None:
        """Remove the name."""
        os.unlink(self._at(name), dir_fd=self._handle)

    def close(self) -> None:
        """Let go of it."""
        if self._handle is not None:
            with suppress(OSError):
                os.close(self._handle)


def _leads_elsewhere(found: os.stat_result) -> bool:
    attributes = getattr(found, "st_file_attributes", 0)
    return stat.S_ISLNK(found.st_mode) or bool(attributes & _REPARSE_POINT)
