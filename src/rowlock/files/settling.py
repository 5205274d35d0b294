"""Which files are finished: those whose size and modification time stood still for long enough.

Memory only; the disk is looked at elsewhere, and time is a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from rowlock.files.folder import Found

SETTLE_SECONDS = 2.0  # that a file has to stand still, unless its ingest says otherwise


class _Seen(msgspec.Struct, frozen=True):
    found: Found
    since: float  # on the monotonic clock: the first look at it as it is now


class FileSettling:
    """Files that may still be written to."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[str, _Seen] = {}

    @property
    def paths(self) -> list[str]:
        """The files that are still watched."""
        return sorted(self._seen)

    def is_finished(self, found: Found, wall: float, moment: float) -> bool:
        """Whether it stood still; `wall` is the time of day, `moment` the monotonic clock."""
        before = self._seen.get(found.path)
        seen = before if before is not None and before.found.is_same(found) else _Seen(found, moment)
        if self._left(seen, wall, moment) <= 0:
            self._seen.pop(found.path, None)
            return True
        self._seen[found.path] = seen
        return False

    def is_old_enough(self, found: Found, wall: float) -> bool:
        """Whether by its own time alone it stood still."""
        return wall - found.modified / 1e9 >= self._seconds

    def is_busy(self, found: Found, wall: float) -> bool:
        """Whether by its own time somebody may still be writing it."""
        return 0 <= wall - found.modified / 1e9 < self._seconds

    def wait_for(self, path: str, others: Iterable[Found], moment: float) -> None:
        """Look at this file again when the last of the others is finished."""
        self._seen[path] = _Seen(max(others, key=lambda one: one.modified), moment)

    def due(self, wall: float, moment: float) -> list[str]:
        """The files that are finished by now unless they have changed again."""
        return [path for path, seen in self._seen.items() if self._left(seen, wall, moment) <= 0]

    def next_due(self, wall: float, moment: float) -> float:
        """Seconds until a file may be finished."""
        return max(
            0.0, min((self._left(seen, wall, moment) for seen in self._seen.values()), default=math.inf)
        )

    def _left(self, seen: _Seen, wall: float, moment: float) -> float:
        """Seconds until it stood still for long enough."""
        if seen.found.size == 0:  # nobody knows when it gets its content: an event or a scan tells
            return math.inf
        age = wall - seen.found.modified / 1e9
        # By its own time, or if that lies in the future (the clock was set back) by how long it was watched.
        return self._seconds - (age if age >= 0 else moment - seen.since)

    def forget(self, path: str) -> None:
        """It is gone, or taken."""
        self._seen.pop(path, None)

    def keep(self, paths: Iterable[str]) -> None:
        """Forget all but these: a scan has found what there is."""
        there = set(paths)
        self._seen = {path: seen for path, seen in self._seen.items() if path in there}
