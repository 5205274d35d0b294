"""How full a disk is. Called as `disk.space(...)`, so that a test can say what it likes."""

from __future__ import annotations

import shutil

import msgspec


class Space(msgspec.Struct, frozen=True):
    """A disk's size and what is free on it, in bytes."""

    total: int
    free: int


def space(folder: str) -> Space:
    """The disk that holds the folder; free is what programs without special rights can still write."""
    usage = shutil.disk_usage(folder)
    return Space(usage.total, usage.free)
