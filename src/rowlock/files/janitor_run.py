"""One run of a janitor: which rows its limits ask for, oldest first, until it is enough.

How a row's files are deleted is in `deleting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rowlock.files import disk
from rowlock.files.deleting import Candidate, Deleter, Done
from rowlock.files.folder import FileRefused
from rowlock.files.limits import Wanted
from rowlock.files.policy import Policy
from rowlock.files.records import Cleaned
from rowlock.files.service import Stop

if TYPE_CHECKING:
    from rowlock.files.janitor import Janitor

_BATCH = 50  # rows in one round of marking and deleting
_MOST_ROWS = 50_000  # that are looked at in one run


class JanitorRun:
    """What one run of a janitor does, as it happens."""

    def __init__(
        self,
        janitor: Janitor,
        policy: Policy,
        wanted: Wanted,
        now: float | None,
        dry_run: bool,
        earlier: Sequence[Cleaned],
        stop: Stop,
    ) -> None:
        self._janitor = janitor
        self._policy = policy
        self._wanted = wanted
        self._now = now
        self._dry_run = dry_run
        self._stop = stop
        self.done = Done()
        self._deleted_before: set[Any] = {row.key for report in earlier for row in report.deleted}
        self._freed_before = sum(report.freed for report in earlier)
        self._freed = self._size = 0  # bytes of the deleted: on the disk, and of their content
        self._protected = 0  # rows, by the conditions
        self._too_full = False
        self._short: str | None = None

    def clean(self, deleter: Deleter) -> None:
        """Ask each limit in turn: each is a reason of its own."""
        for limit in (self._by_age, self._by_size, self._by_space):
            if not self.done.unconfirmed:
                limit(deleter)
        if count := len(self.done.unconfirmed):
            self._short = (
                f"it has stopped: the files of {count} rows are gone, at least in part, and "
                f"{self._policy.table.name} does not say so: {self.done.refused[-1].why}"
            )

    def _by_age(self, deleter: Deleter) -> None:
        age = self._wanted.max_age
        if age is None:
            return
        self._protected = self._policy.count_protected(age, self._now)
        self._delete(deleter, f"older than {_span(age)}", age, lambda: 1)

    def _by_size(self, deleter: Deleter) -> None:
        most = self._wanted.max_size
        if most is None:
            return
        gone = self._gone
        living = (row for page in self._policy.living() for row in page)
        total = deleter.files.total_size(row for row in living if self._policy.shown(row.key) not in gone)
        before = self._size

        def excess() -> int:
            return total - (self._size - before) - most

        if excess() <= 0:
            return
        self._protected = self._policy.count_protected(None, self._now)
        complete = self._delete(deleter, f"more than {_bytes(most)} in all", None, excess, by_size=True)
        if complete and excess() > 0:
            now = _bytes(excess() + most)
            self._short = f"{now} are more than max_size={_bytes(most)}, and nothing else may be deleted"

    def _by_space(self, deleter: Deleter) -> None:
        least, target = self._wanted.min_free, self._wanted.target_free
        if least is None or self._free() >= least:
            return
        self._protected = self._policy.count_protected(None, self._now)
        why = f"less than {_bytes(least)} free"
        complete = self._delete(deleter, why, None, lambda: target - self._free())
        if complete and self._free() < least:
            self._too_full = self._janitor.is_last_resort(least)
            protected = self._protected + self.done.kept
            self._short = (
                f"the disk of {self._janitor.folder.path} is too full: {_bytes(self._free())} are free of "
                f"{_bytes(least)} wanted, and nothing else may be deleted ({protected} rows are protected)"
            )

    def _free(self) -> int:
        """What is free, or will be: some file systems count it some time after a file is gone."""
        before = self._wanted.disk.free
        now = before if self._dry_run else disk.space(self._janitor.folder.path).free
        return max(now, before + self._freed) + self._freed_before

    @property
    def _gone(self) -> set[Any]:
        """Keys of rows that are deleted by now, in this run or in the dry runs before it."""
        return self._deleted_before | {row.key for row in self.done.deleted}

    def _delete(
        self, deleter: Deleter, why: str, age: float | None, left: Callable[[], int], by_size: bool = False
    ) -> bool:
        """Delete rows, oldest first, while `left()` says that it is not enough; True if all was tried."""
        gone, cap = self._gone, self._janitor.cap
        found = self._policy.deletable(_MOST_ROWS, age, self._now)
        batch: list[Candidate] = []
        expected = 0  # what the batch brings, if all of it may go

        def flush() -> None:
            nonlocal expected
            if batch:
                new = deleter.delete(batch, age, self._now)
                self.done.add(new)
                self._freed += sum(row.freed for row in (*new.deleted, *new.unconfirmed))
                self._size += sum(row.size for row in (*new.deleted, *new.unconfirmed))
            batch.clear()
            expected = 0

        for row in found:
            if self._policy.shown(row.key) in gone:
                continue
            if age is None and left() - expected <= 0:
                flush()
                if left() <= 0 or self.done.unconfirmed:
                    return False
            if len(self.done.deleted) + len(batch) >= cap:
                flush()
                if len(self.done.deleted) >= cap or self.done.unconfirmed:
                    return False
            try:
                there = deleter.files.look(row).there
            except FileRefused as error:
                self.done.refuse(error.path, error)
                continue
            expected += sum(one.size if by_size else one.frees for one in there)
            batch.append(Candidate(row, why))
            if len(batch) >= _BATCH:
                flush()
                if self._stop.told or self.done.unconfirmed:
                    return False
        flush()
        return len(found) < _MOST_ROWS and not self.done.unconfirmed

    def report(self) -> Cleaned:
        """What it came to."""
        return Cleaned(
            name=self._janitor.name,
            dry_run=self._dry_run,
            deleted=self.done.deleted,
            unconfirmed=self.done.unconfirmed,
            freed=self._freed,
            kept=self._protected + self.done.kept,
            refused=list(dict.fromkeys(self.done.refused)),
            healed=self.done.healed,
            free=self._free(),
            short=self._short,
            too_full=self._too_full,
        )


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
