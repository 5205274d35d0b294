"""Where the tests write: in memory if there is room, for no test cuts the machine's power.

With a disk that is waited for at every commit the suite takes half as long again.
"""

from __future__ import annotations

import os

_ROOM = 4_000_000_000  # bytes; a run fills 1 GB of it at most


def folder_in_memory() -> str | None:
    """A folder of a file system in memory; None if there is none that is large and lets programs run."""
    place = "/dev/shm"
    if not os.access(place, os.W_OK | os.X_OK) or not hasattr(os, "statvfs"):
        return None
    found = os.statvfs(place)
    if found.f_flag & getattr(os, "ST_NOEXEC", 0):
        return None
    return place if found.f_bavail * found.f_frsize >= _ROOM else None


MEMORY = folder_in_memory()
