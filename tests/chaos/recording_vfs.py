"""A file system for apsw that does everything for real and writes down what would have to survive.

The index of the log (-shm) is not recorded: SQLite makes it anew after a power cut.
"""

from __future__ import annotations

import os
import random
from typing import Any

import apsw

from tests.chaos.disk import Record

_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_RECORDED = _JOURNALS | apsw.SQLITE_OPEN_MAIN_DB


class RecordingVfs(apsw.VFS):
    """Hands out files that are recorded."""

    name = "recording"

    def __init__(self, record: Record, seed: int) -> None:
        super().__init__(self.name, "unix")
        self._record = record
        self._chance = random.Random(seed)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's own names
        if not flags[0] & _RECORDED:
            return apsw.VFSFile("unix", name, flags)
        return _RecordedFile(self._record, name, flags)

    def xDelete(self, name: str, sync_names: bool) -> None:  # noqa: N802
        super().xDelete(name, False)
        self._record.add("unlink", os.path.basename(name))
        if sync_names:
            self._record.add("sync_names")

    def xRandomness(self, count: int) -> bytes:  # noqa: N802
        return self._chance.randbytes(count)  # the same seed, the same bytes in the files


class _RecordedFile(apsw.VFSFile):
    def __init__(self, record: Record, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        is_new = not os.path.exists(path)
        super().__init__("unix", name, flags)
        self._record = record
        self._name = os.path.basename(path)
        # As SQLite's own unix file system: the first sync of a journal syncs the folder, too.
        self._sync_names = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _JOURNALS)
        if is_new:
            record.add("create", self._name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._record.add("write", self._name, offset, bytes(data))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._record.add("truncate", self._name, size)

    def xSync(self, flags: int) -> None:  # noqa: N802 - and no real sync: this disk's power is not cut
        self._record.add("sync", self._name)
        if self._sync_names:
            self._sync_names = False
            self._record.add("sync_names")
