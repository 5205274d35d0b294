"""One run of a janitor: which rows its limits ask for, oldest first, until it is enough.

How a row's files are deleted is in `deleting.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rowlock.files import disk
from rowlock.files.deleting import Deleter, Reason
from rowlock.files.folder import FileRefused, Found
from rowlock.files.limits import Wanted
from rowlock.files.policy import Named
from rowlock.files.records import Cleaned
from rowlock.files.row_files import there

if TYPE_CHECKING:
    from rowlock.files.janitor import Janitor

_BATCH = 50  # rows in one round of marking and deleting
_MOST_ROWS = 50_000  # that are looked at in one run


class JanitorRun:
    """What one run of a janitor does; the report is filled in as it happens."""

    def __init__(
        self, janitor: Janitor, deleter: Deleter, wanted: Wanted, earlier: Sequence[Cleaned]
    ) -> None:
        self._janitor = janitor
        self._policy = janitor.file_table
        self._deleter = deleter
        self._report = deleter.report
        self._wanted = wanted
        self._deleted_before: set[Any] = {row.key for one in earlier for row in one.deleted}
        self._freed_before = sum(one.freed for one in earlier)
        self._protected = 0  # rows, by the conditions

    def clean(self) -> None:
        """Ask each limit in turn: each is a reason of its own."""
        report = self._report
        for limit in (self._by_age, self._by_size, self._by_space):
            if not report.unconfirmed:
                limit()
        if count := len(report.unconfirmed):
            report.short = (
                f"it has stopped: the files of {count} rows are gone, at least in part, and "
                f"{self._policy.name} does not say so: {report.refused[-1].why}"
            )
        report.freed = self._freed
        report.free = self._free()
        report.kept += self._protected
        report.refused = list(dict.fromkeys(report.refused))

    def _by_age(self) -> None:
        age = self._wanted.max_age
        if age is not None:
            self._delete(Reason(f"older than {_span(age)}", age), lambda: math.inf, _frees)

    def _by_size(self) -> None:
        most = self._wanted.max_size
        if most is None:
            return
        gone = self._gone
        living = (row for page in self._policy.living() for row in page)
        total = self._deleter.files.total_size(
            row for row in living if self._policy.shown(row.key) not in gone
        )
        before = self._size

        def excess() -> int:
            return total - (self._size - before) - most

        if excess() <= 0:
            return
        complete = self._delete(Reason(f"more than {_bytes(most)} in all"), excess, lambda one: one.size)
        if complete and excess() > 0:
            now = _bytes(excess() + most)
            self._report.short = (
                f"{now} are more than max_size={_bytes(most)}, and nothing else may be deleted"
            )

    def _by_space(self) -> None:
        least, target = self._wanted.min_free, self._wanted.target_free
        if least is None or self._free() >= least:
            return
        reason = Reason(f"less than {_bytes(least)} free")
        complete = self._delete(reason, lambda: target - self._free(), _frees)
        if complete and self._free() < least:
            protected = self._protected + self._report.kept
            self._report.too_full = self._janitor.is_last_resort(least)
            self._report.short = (
                f"the disk of {self._janitor.folder.path} is too full: {_bytes(self._free())} are free of "
                f"{_bytes(least)} wanted, and nothing else may be deleted ({protected} rows are protected)"
            )

    def _free(self) -> int:
        """What is free, or will be: some file systems count it some time after a file is gone."""
        before = self._wanted.disk.free
        now = before if self._report.dry_run else disk.space(self._janitor.folder.path).free
        return max(now, before + self._freed) + self._freed_before

    @property
    def _freed(self) -> int:
        """Bytes on the disk that went with the deleted, confirmed or not."""
        return sum(row.freed for row in (*self._report.deleted, *self._report.unconfirmed))

    @property
    def _size(self) -> int:
        """Bytes of the deleted."""
        return sum(row.size for row in (*self._report.deleted, *self._report.unconfirmed))

    @property
    def _gone(self) -> set[Any]:
        """Keys of rows that are deleted by now, in this run or in the dry runs before it."""
        return self._deleted_before | {row.key for row in self._report.deleted}

    def _delete(self, reason: Reason, left: Callable[[], float], bring: Callable[[Found], int]) -> bool:
        """Delete rows, oldest first, while `left()` bytes are too many; True if all rows were tried.

        `bring` says how many bytes of these a file takes with it.
        """
        report, gone = self._report, self._gone
        self._protected = self._policy.count_protected(reason.age, self._deleter.now)
        found = self._policy.deletable(_MOST_ROWS, reason.age, self._deleter.now)
        still_left = left()
        batch: list[Named] = []
        expected = 0  # bytes that the batch brings, if all of it may go
        for row in found:
            if self._policy.shown(row.key) in gone:
                continue
            most = min(_BATCH, self._janitor.cap - len(report.deleted))
            if batch and (len(batch) >= most or expected >= still_left):
                self._deleter.delete(batch, reason)
                batch, expected, still_left = [], 0, left()
                if report.unconfirmed or self._janitor.stopping.is_set():
                    return False
            if not batch and (still_left <= 0 or len(report.deleted) >= self._janitor.cap):
                return False
            try:
                expected += sum(map(bring, there(self._deleter.files.look(row))))
            except FileRefused as error:
                self._deleter.refuse(error.path, error)
                continue
            batch.append(row)
        if batch:
            self._deleter.delete(batch, reason)
        return len(found) < _MOST_ROWS and not report.unconfirmed


def _frees(file: Found) -> int:
    return file.frees


def _bytes(size: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if abs(size) >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def _span(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
