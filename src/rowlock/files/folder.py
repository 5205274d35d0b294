"""The folder whose files are ingested and deleted: finds its regular files, and removes one of them safely.

Knows no table and no policy. Nothing outside the folder, no link and nothing behind a link is ever touched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from rowlock.errors import ConfigurationError
from rowlock.files.directories import HAS_HANDLES, Directory

_REMOVAL_SUFFIX = ".rowlock-delete"  # the end of a file's name while it is being removed
_LONGEST_NAME = 255  # bytes
_DEEPEST = 100
_BLOCK = 512  # what st_blocks counts, whatever the file system
_CANNOT_LINK = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_PATHS = ("absolute", "relative")
Report = Callable[[str, str], Any]


class FileRefused(Exception):
    """This file is not touched; the message says why, and `path` which it is if the caller cannot know."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.path = path


class Found(msgspec.Struct, frozen=True):
    """A regular file, as it was when it was looked at."""

    path: str  # below the folder, with / between the parts
    size: int
    modified: int  # nanoseconds
    device: int
    inode: int
    frees: int  # bytes on the disk that go with it: none while it has another name (a hard link)

    def is_same(self, other: Found) -> bool:
        """Whether both are the same file with, as far as can be seen, the same content."""
        mine = (self.device, self.inode, self.size, self.modified)
        return mine == (other.device, other.inode, other.size, other.modified)


class Folder:
    """A folder by its path, and how a table writes the paths of its files: absolute, or relative to it.

    It is opened for each piece of work, so that what is there by then counts.
    """

    def __init__(self, path: str | os.PathLike[str], home: str = "", paths: str = "relative") -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path) or "\x00" in os.fspath(path):
            raise ConfigurationError(f"folder={path!r}: must be a folder's path")
        # Absolute from the start: who changes the working directory must not change the folder.
        self.path = os.path.abspath(os.path.join(home, os.path.expanduser(os.fspath(path))))
        if paths not in _PATHS:
            raise ConfigurationError(f"paths={paths!r}: must be one of {', '.join(_PATHS)}")
        self.paths = paths

    def __repr__(self) -> str:
        return f"<folder {self.path}>"

    def at(self, path: str) -> Path:
        """A path below the folder, as an absolute one."""
        return Path(self.path, *path.split("/"))

    # -- its paths in a table; no disk is looked at, and the working directory has no say ------------

    def written(self, path: str) -> str:
        """A path below the folder, as the table has it."""
        return path if self.paths == "relative" else os.path.join(self.path, *path.split("/"))

    def read(self, value: Any) -> str:
        """What the table has, as a path below the folder; raises FileRefused if it is none."""
        if not isinstance(value, str):
            raise FileRefused(f"its path is {type(value).__name__} and no text")
        return "/".join(parts_of(value)) if self.paths == "relative" else self._below(value)

    def given(self, value: Any) -> str:
        """What a user's function returned for a path (absolute or relative), as the table has it."""
        text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if not isinstance(text, str):
            raise FileRefused(f"{value!r} is no path")
        if os.path.isabs(text):
            return self.written(self._below(text))
        return self.written("/".join(parts_of(text.replace(os.sep, "/"))))

    def _below(self, text: str) -> str:
        inside = text.removeprefix(self.path.rstrip(os.sep) + os.sep)
        if inside == text:
            raise FileRefused(f"its path is not inside {self.path}")
        return "/".join(parts_of(inside.replace(os.sep, "/")))

    # -- on the disk -----------------------------------------------------------------------------

    def check(self, writable: bool) -> None:
        """Raise unless it is a folder, no link, that can be read (and files removed from it)."""
        if os.path.islink(self.path):
            raise ConfigurationError(
                f"the folder {self.path} is a link to {os.path.realpath(self.path)}: name the folder itself"
            )
        if not os.path.isdir(self.path):
            there = "is no folder" if os.path.exists(self.path) else "does not exist"
            raise ConfigurationError(f"the folder {self.path} {there}; create it, or mount it, first")
        needed = os.R_OK | os.X_OK | (os.W_OK if writable else 0)
        if not os.access(self.path, needed):
            verb = "deleted from" if writable else "read in"
            raise ConfigurationError(f"no files can be {verb} the folder {self.path}: change its permissions")

    @contextmanager
    def opened(self, keep: Sequence[str] = ()) -> Iterator[OpenFolder]:
        """The folder, open, for one piece of work; files of `keep` (the queue's own) are never touched."""
        try:
            root = Directory(self.path)
        except OSError as error:
            self.check(writable=False)
            raise ConfigurationError(f"the folder {self.path} cannot be opened: {_reason(error)}") from error
        try:
            yield OpenFolder(root, frozenset(_identities(keep)))
        finally:
            root.close()

    @property
    def is_mounted(self) -> bool:
        """Whether another disk begins here: one that may be missing some day."""
        return os.path.ismount(self.path)


class OpenFolder:
    """The folder while it is open; every path is taken from its own handle on."""

    def __init__(self, root: Directory, keep: frozenset[tuple[int, int]]) -> None:
        self._root = root
        self._keep = keep

    # -- looking ---------------------------------------------------------------------------------

    def scan(
        self, fits: Callable[[str], Any], report: Report, below: str = "", recover: bool = False
    ) -> Iterator[Found]:
        """All regular files whose path fits; what cannot be read or named is reported, and left out.

        With `recover`, files whose removal was broken off get their names back; some may come twice.
        """
        parents = below.split("/") if below else []
        if len(parents) > _DEEPEST:
            report(below, f"it lies more than {_DEEPEST} folders deep")
            return
        try:
            with self._entered(parents) as here:
                for entry in here.entries():
                    path = "/".join([*parents, entry.name])
                    if not is_text(entry.name):
                        report(path, "its name is not UTF-8")
                    elif entry.is_dir(follow_symlinks=False):
                        yield from self.scan(fits, report, path, recover)
                    elif recover or not is_being_removed(entry.name):
                        yield from self._entry(here, parents, entry, fits)
        except FileNotFoundError:  # it has vanished meanwhile
            return
        except OSError as error:
            report(below, _reason(error))

    def _entry(
        self, here: Directory, parents: list[str], entry: os.DirEntry[str], fits: Callable[[str], Any]
    ) -> Iterator[Found]:
        """The file, if it is regular and fits; one that was being removed gets its name back."""
        name = entry.name
        removed = is_being_removed(name) and entry.is_file(follow_symlinks=False)
        if removed:
            name = name[1 : -len(_REMOVAL_SUFFIX)]
        path = "/".join([*parents, name])
        if not fits(path):
            return
        with suppress(FileNotFoundError, FileRefused):
            if removed:
                _restore_name(here, name)
            # What a listing says on Windows lacks some of it.
            is_listed = HAS_HANDLES and not removed
            yield self._regular(path, entry.stat(follow_symlinks=False) if is_listed else here.look(name))

    def look(self, path: str, recover: bool = False) -> Found | None:
        """The regular file at this path, or None if there is nothing; anything else is refused.

        With `recover`, a file whose removal was broken off gets its name back first.
        """
        *parents, name = parts_of(path)
        try:
            with self._entered(parents) as there:
                if recover and _can_be_renamed(name):
                    _restore_name(there, name)
                return self._regular(path, there.look(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileRefused(_reason(error)) from error

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at this path, and no link on the way."""
        try:
            with self._entered(parts_of(path)):
                return True
        except (OSError, FileRefused):
            return False

    # -- removing --------------------------------------------------------------------------------

    def remove(self, expected: Found) -> None:
        """Remove this very file: nothing that has taken its name, and nothing that has changed meanwhile.

        POSIX removes names, not files. So the name is first changed to one that nobody else uses; then it is
        certain which file that is, and only then it goes. Otherwise it gets its name back.
        """
        *parents, name = parts_of(expected.path)
        try:
            with self._entered(parents) as there:
                if not self._regular(expected.path, there.look(name)).is_same(expected):
                    raise FileRefused("it has changed meanwhile")
                if not _can_be_renamed(name):
                    there.unlink(name)
                    return
                self._rename_and_unlink(there, parents, name, expected)
        except FileNotFoundError as error:
            raise FileRefused("it has vanished meanwhile") from error
        except OSError as error:
            raise FileRefused(_reason(error)) from error

    def _rename_and_unlink(self, there: Directory, parents: list[str], name: str, expected: Found) -> None:
        renamed = f".{name}{_REMOVAL_SUFFIX}"
        if _is_there(there, renamed):
            raise FileRefused(f"a deletion that was broken off left {renamed} beside it: look at both")
        there.rename(name, renamed)
        try:
            with self._entered(parents) as again:  # the folder itself may have been moved out meanwhile
                if not self._regular(expected.path, again.look(renamed)).is_same(expected):
                    raise FileRefused("it has changed meanwhile")
                again.unlink(renamed)
        except BaseException:
            if not _restore_name(there, name) and _is_there(there, renamed):
                raise FileRefused(f"another file has its name by now: it is kept as {renamed}") from None
            raise

    def _regular(self, path: str, seen: os.stat_result) -> Found:
        if stat.S_ISLNK(seen.st_mode):
            raise FileRefused("it is a link")
        if not stat.S_ISREG(seen.st_mode):
            raise FileRefused("it is no regular file")
        if (seen.st_dev, seen.st_ino) in self._keep:
            raise FileRefused("it belongs to the queue's own database")
        blocks = getattr(seen, "st_blocks", None)
        frees = 0 if seen.st_nlink > 1 else seen.st_size if blocks is None else blocks * _BLOCK
        return Found(path, seen.st_size, seen.st_mtime_ns, seen.st_dev, seen.st_ino, frees)

    @contextmanager
    def _entered(self, parents: Sequence[str]) -> Iterator[Directory]:
        """The folder at these parts, from the root on and through no link."""
        here, opened = self._root, None
        try:
            for part in parents:
                there = Directory(part, here)
                if opened is not None:
                    opened.close()
                here = opened = there
            yield here
        finally:
            if opened is not None:
                opened.close()


def parts_of(path: str) -> list[str]:
    """The parts of a path below the folder; raises FileRefused if it could lead anywhere else."""
    parts = path.split("/")
    if "\x00" in path or not all(parts) or {".", ".."} & set(parts):
        raise FileRefused("its path is not one below the folder")
    if os.name == "nt" and any(set('\\:*?"<>|') & set(part) or part[-1] in " ." for part in parts):
        raise FileRefused("its path is not one below the folder")
    if not is_text(path):
        raise FileRefused("its path is not UTF-8")
    return parts


def is_text(name: str) -> bool:
    """Whether a name is UTF-8, and so can be in a table."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_being_removed(name: str) -> bool:
    """Whether a file of this name is just being removed."""
    return name.startswith(".") and name.endswith(_REMOVAL_SUFFIX)


def _can_be_renamed(name: str) -> bool:
    return len(name.encode()) + len(_REMOVAL_SUFFIX) + 1 <= _LONGEST_NAME


def _is_there(here: Directory, name: str) -> bool:
    try:
        here.look(name)
    except FileNotFoundError:
        return False
    return True


def _restore_name(here: Directory, name: str) -> bool:
    """Give a file that was being removed its name back; False if there is none, or the name is taken."""
    renamed = f".{name}{_REMOVAL_SUFFIX}"
    try:
        here.link(renamed, name)  # unlike a rename, it never takes a name away from another file
    except FileNotFoundError:
        return False
    except FileExistsError:
        if not _is_same_file(here, renamed, name):
            return False  # else it ended here between the link and the unlink
    except OSError as error:
        if error.errno not in _CANNOT_LINK or not _is_there(here, renamed) or _is_there(here, name):
            return False
        here.rename(renamed, name)  # a folder, or a disk that knows no hard links
        return True
    here.unlink(renamed)
    return True


def _is_same_file(here: Directory, name: str, other: str) -> bool:
    try:
        return os.path.samestat(here.look(name), here.look(other))
    except FileNotFoundError:
        return False


def _identities(paths: Sequence[str]) -> Iterator[tuple[int, int]]:
    for path in paths:
        with suppress(OSError):
            seen = os.stat(path)
            yield seen.st_dev, seen.st_ino


def _reason(error: OSError) -> str:
    """The error in the words of its kind, without the path that the caller names anyway."""
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return "a part of its path is a link, or no folder"
    return (error.strerror or str(error)).lower()
