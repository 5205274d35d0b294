"""The janitor: deletes the files of rows that a limit asks for and the conditions give free, oldest first.

Nothing else, and nothing without its database. How a file is deleted is in `deleting.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from rowlock.consumers import names
from rowlock.errors import TRANSIENT, ConfigurationError
from rowlock.files import limits
from rowlock.files.deleting import Candidate, Deleter, Done
from rowlock.files.folder import FileRefused, Folder, refuse_missing_disk
from rowlock.files.limits import Free, limit, takes
from rowlock.files.oldest import whole_number
from rowlock.files.places import Places
from rowlock.files.policy import Choice, Policy
from rowlock.files.records import Cleaned, DeletedRow, FileTrouble
from rowlock.files.service import Stop, Troubles, interval_of, monotonic, run_services
from rowlock.files.space import Space, space
from rowlock.files.tables import App, own_files, path_columns, table_name
from rowlock.insights.filing import FileServiceRecord
from rowlock.job import utc
from rowlock.options import check_name

log = logging.getLogger("rowlock.janitor")

_BATCH = 50  # rows in one round of marking and deleting
_MOST_ROWS = 50_000  # that are looked at in one run
_SUSPICIOUS = 100  # rows whose files are all gone: their disk may not be there


class Janitor:
    """A declared janitor: `run_once()` cleans up once, `run()` goes on until it is told to stop."""

    kind = "janitor"

    def __init__(
        self,
        app: App,
        name: str,
        *,
        table: str,
        folder: str | os.PathLike[str],
        path: str | Sequence[str] = "path",
        paths: str = "absolute",
        key: str | None = None,
        order_by: str | None = None,
        after: Sequence[str] = (),
        failed_too: bool = False,
        where: str | None = None,
        deleted: str | None = None,
        remove_rows: bool = False,
        min_free: Any = None,
        target_free: Any = None,
        max_age: Any = None,
        max_size: Any = None,
        cap: int = 500,
        also: Callable[..., Iterable[Any]] | None = None,
        also_folder: str | os.PathLike[str] | None = None,
        on_deleted: Callable[..., Any] | None = None,
        interval: float = 60.0,
        home: str = "",
    ) -> None:
        self._app = app
        self.name = check_name("name", name)
        self.table = table_name(table)
        self.folder = Folder(folder, home)
        self.also_folder = self.folder if also_folder is None else Folder(also_folder, home)
        self.paths = paths
        self._places = Places(self.folder.path, paths)
        self.cap = whole_number("cap", cap)
        self.interval = interval_of(interval)
        self.limits = _Limits(self.title, min_free, target_free, max_age, max_size)
        self.choice = Choice(
            table=self.table,
            columns=path_columns(path),
            key=None if key is None else names.column("key", key),
            order_by=_order(order_by),
            after=_names_of_consumers(after),
            failed_too=bool(failed_too),
            where=_condition(where),
            deleted=None if deleted is None else names.column("deleted", deleted),
            remove_rows=bool(remove_rows),
            has_age=max_age is not None,
        )
        if deleted is not None and remove_rows:
            raise ConfigurationError(
                f"{self.title}: give it either deleted=... or remove_rows=True, not both"
            )
        if max_age is not None and order_by is None:
            raise ConfigurationError(f"{self.title}: max_age counts from order_by=..., a time: name it")
        if also is None and also_folder is not None:
            raise ConfigurationError(f"{self.title}: also_folder=... is for also=..., a function")
        self._also = _with_tx("also", also, 1)
        self._on_deleted = _with_tx("on_deleted", on_deleted, 2)
        self._stop = Stop()
        self._policy: Policy | None = None
        self._healed = False
        self._said: str | None = None
        self._told: set[FileTrouble] = set()

    def __repr__(self) -> str:
        return f"<janitor {self.name!r} of {self.folder.path} by {self.table}>"

    @property
    def title(self) -> str:
        """How it is called in messages."""
        return f"janitor {self.name!r}"

    # -- running ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the folder, the table, its columns or the conditions are not as they should be."""
        self.folder.check(writable=True)
        if self._also is not None:
            self.also_folder.check(writable=True)
        self._bound()

    def run_once(
        self, now: float | None = None, dry_run: bool = False, earlier: Sequence[Cleaned] = ()
    ) -> Cleaned:
        """Delete what the limits ask for and the conditions allow; says what was deleted, and what was not.

        A dry run changes nothing. `earlier` are what the dry runs of tiers before this one would have done.
        """
        self.check()
        policy = self._bound()
        try:
            wanted = self.limits_now()
        except TRANSIENT:
            raise
        except Exception as error:
            return self._skipped(policy, error, dry_run)
        run = _Run(self, policy, wanted, now, dry_run, earlier)
        keep = own_files(self._app.store)
        with Deleter(
            policy,
            self.name,
            self._places,
            Folder(self.folder.path, keep=keep),
            self._also,
            Folder(self.also_folder.path, keep=keep),
            self._on_deleted,
            dry_run,
        ) as deleter:
            if not dry_run:
                self._see_that_it_is_mounted(policy)
                run.add(deleter.finish_marked(now))
                if not self._healed:
                    self._heal(policy, deleter, run, now)
            run.clean(deleter)
        report = run.report()
        if not dry_run:
            self._ran(policy, report)
        return report

    def run(self) -> None:
        """Clean up every `interval` seconds until told to stop."""
        run_services([self], self._stop)

    def stop(self) -> None:
        """Let `run` end, after the batch that it is at."""
        self._stop.tell()

    def loop(self, stop: Stop) -> None:
        """The same without signals, for a thread."""
        Tiers([self]).loop(stop)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.told

    def listen(self, stop: Stop | None) -> None:
        """Stop when this one is told; None: when nobody is."""
        self._stop = Stop() if stop is None else stop

    def _heal(self, policy: Policy, deleter: Deleter, run: _Run, now: float | None) -> None:
        """Rows whose files are all gone are marked as deleted, once at the start."""
        if policy.choice.deleted is not None or policy.choice.remove_rows:
            named = 0
            for page in policy.living():
                if deleter.has_files(page):
                    named = 0
                    break
                named += len(page)
            if named >= _SUSPICIOUS:
                raise ConfigurationError(
                    f"{self.title}: {named} rows name files in {self.folder.path}, and not one of them is "
                    "there: is it the right folder, and mounted? If they are really gone, mark these "
                    "rows as deleted by hand"
                )
            for page in policy.living():
                run.add(deleter.heal(page, now))
        self._healed = True

    def _see_that_it_is_mounted(self, policy: Policy) -> None:
        with policy.table.reading(policy.statements) as db:
            known = db.row("service", kind=self.kind, name=self.name)
        refuse_missing_disk(self.title, self.folder, known is not None and bool(known[3]))

    def _skipped(self, policy: Policy, error: Exception, dry_run: bool) -> Cleaned:
        why = str(error) if isinstance(error, ConfigurationError) else f"a limit raised {error!r}"
        report = Cleaned(name=self.name, dry_run=dry_run, skipped=why)
        if not dry_run:
            self._ran(policy, report)
        return report

    def _ran(self, policy: Policy, report: Cleaned) -> None:
        """Note how it went, and say aloud what has changed."""
        trouble = report.skipped or report.short
        with policy.table.writing(policy.statements) as tx:
            tx.session.run(
                "service_ran",
                kind=self.kind,
                name=self.name,
                refused=len(report.refused),
                mounted=int(self.folder.is_mounted),
                error=trouble,
            )
        kind = None
        if trouble is not None:
            kind = "skipped" if report.skipped else "too full" if report.too_full else "short"
        if kind is not None and kind != self._said:
            level = logging.ERROR if report.skipped or report.too_full else logging.WARNING
            log.log(level, "%s: %s%s", self.title, "nothing is deleted: " if report.skipped else "", trouble)
        elif kind is None and self._said is not None:
            log.info("%s: all is well again", self.title)
        self._said = kind
        for one in report.refused:
            if one not in self._told:
                self._told.add(one)
                log.warning("%s: %r is kept: %s", self.title, one.path, one.why)

    def is_last_resort(self, min_free: int) -> bool:
        """Whether no other janitor of this folder waits until less than this is free."""
        for other in self._app.janitors.values():
            if other is not self and other.folder.path == self.folder.path:
                least = other.limits.least_free(other.folder.path)
                if least is not None and least < min_free:
                    return False
        return True

    def _bound(self) -> Policy:
        if self._policy is None:
            self._policy = Policy(self._app, self.name, self.choice)
        return self._policy

    def limits_now(self) -> Wanted:
        """What its limits are at this moment."""
        return self.limits.read(self._bound(), self.folder.path)

    # -- asking ----------------------------------------------------------------------------------

    def record(self) -> FileServiceRecord:
        """How it stands, for front ends."""
        policy = self._bound()
        with policy.table.reading(policy.statements) as db:
            row = db.row("service", kind=self.kind, name=self.name)
        done, size, refused, _, last, error = row or (0, 0, 0, 0, None, None)
        disk = space(self.folder.path) if os.path.isdir(self.folder.path) else None
        return FileServiceRecord(
            kind=self.kind,
            name=self.name,
            table=self.table,
            folder=self.folder.path,
            done=done,
            bytes=size,
            refused=refused,
            free=None if disk is None else disk.free,
            total=None if disk is None else disk.total,
            last_run=None if last is None else utc(last),
            error=error,
        )


class Wanted(msgspec.Struct, frozen=True):
    """The limits of one run, in bytes and seconds."""

    min_free: int | None
    target_free: int
    max_age: float | None
    max_size: int | None
    disk: Space


class _Limits:
    """The limits as they were declared; functions are asked at each run."""

    def __init__(self, title: str, min_free: Any, target_free: Any, max_age: Any, max_size: Any) -> None:
        self.min_free = limit("min_free", min_free, limits.free)
        self.target_free = limit("target_free", target_free, limits.free)
        self.max_age = limit("max_age", max_age, limits.age)
        self.max_size = limit("max_size", max_size, limits.size)
        if self.target_free is not None and self.min_free is None:
            raise ConfigurationError(f"{title}: target_free is where min_free ends: give it both")
        if self.min_free is None and self.max_age is None and self.max_size is None:
            raise ConfigurationError(f"{title}: give it a limit: min_free, max_age or max_size")
        if (
            self.target_free
            and self.min_free
            and not (self.min_free.is_function or self.target_free.is_function)
        ):
            least, most = self.min_free.read(), self.target_free.read()
            if (least.share is None) == (most.share is None):
                _in_order(
                    least.of(1_000_000), most.of(1_000_000), self.min_free.given, self.target_free.given
                )

    def least_free(self, folder: str) -> int | None:
        """What has to be free in bytes, if that can be told without a database."""
        try:
            least = None if self.min_free is None or self.min_free.wants_tx else self.min_free.read()
        except Exception:  # its own run says so
            return None
        return None if least is None else least.of(space(folder).total)

    def read(self, policy: Policy, folder: str) -> Wanted:
        """What they are now."""
        each = (self.min_free, self.target_free, self.max_age, self.max_size)
        if any(one is not None and one.wants_tx for one in each):
            with policy.table.writing(policy.statements, with_connection=True) as tx:
                values = [None if one is None else one.read(tx.connection) for one in each]
        else:
            values = [None if one is None else one.read() for one in each]
        disk = space(folder)
        least: Free | None = values[0]
        most: Free | None = values[1] or least
        if least is None or most is None:
            return Wanted(None, 0, values[2], values[3], disk)
        _in_order(least.of(disk.total), most.of(disk.total), least, most)
        return Wanted(least.of(disk.total), most.of(disk.total), values[2], values[3], disk)


def _in_order(least: int, most: int, given: Any, other: Any) -> None:
    if most < least:
        raise ConfigurationError(f"target_free={other!r} is below min_free={given!r}: nothing could ever end")


class _Run:
    """One run of a janitor: which rows are asked for, by which limit, until it is enough."""

    def __init__(
        self,
        janitor: Janitor,
        policy: Policy,
        wanted: Wanted,
        now: float | None,
        dry_run: bool,
        earlier: Sequence[Cleaned],
    ) -> None:
        self._janitor = janitor
        self._policy = policy
        self._wanted = wanted
        self._now = now
        self._dry_run = dry_run
        self._deleted: list[DeletedRow] = []
        self._refused: list[FileTrouble] = []
        self._seen: set[Any] = {row.key for report in earlier for row in report.deleted}
        self._freed_before = sum(report.freed for report in earlier)
        self._healed = 0
        self._kept = 0  # by somebody who has them at this moment
        self._protected = 0  # by the conditions
        self._too_full = False
        self._short: str | None = None

    def clean(self, deleter: Deleter) -> None:
        """Ask each limit in turn: each is a reason of its own."""
        self._by_age(deleter)
        self._by_size(deleter)
        self._by_space(deleter)

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
        total = deleter.total_size(self._policy.living(), self._seen)
        before = len(self._deleted)

        def excess() -> int:
            return total - sum(row.size for row in self._deleted[before:]) - most

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
            protected = self._protected + self._kept
            self._short = (
                f"the disk of {self._janitor.folder.path} is too full: {_bytes(self._free())} are free of "
                f"{_bytes(least)} wanted, and nothing else may be deleted ({protected} rows are protected)"
            )

    def _free(self) -> int:
        """What is free, or will be: some file systems tell later that something is."""
        now = self._wanted.disk.free if self._dry_run else space(self._janitor.folder.path).free
        return max(now, self._wanted.disk.free + self._freed) + self._freed_before

    @property
    def _freed(self) -> int:
        return sum(row.freed for row in self._deleted)

    def _delete(
        self, deleter: Deleter, why: str, age: float | None, left: Callable[[], int], by_size: bool = False
    ) -> bool:
        """Delete rows, oldest first, while `left()` says that it is not enough; True if all was tried."""
        rows = [
            row
            for row in self._policy.deletable(_MOST_ROWS, age, self._now)
            if self._policy.shown(row.key) not in self._seen
        ]
        batch: list[Candidate] = []
        expected = 0
        for row in rows:
            if left() - expected <= 0 and age is None:
                self._flush(deleter, batch, age)
                expected = 0
                if left() <= 0:
                    return False
            if len(self._deleted) + len(batch) >= self._janitor.cap:
                self._flush(deleter, batch, age)
                expected = 0
                if len(self._deleted) >= self._janitor.cap:
                    return False
            try:
                there = deleter.look(row).there
                expected += sum(found.size if by_size else found.frees for found in there)
            except FileRefused as error:
                self._refused.append(FileTrouble(error.path, str(error)))
                continue
            batch.append(Candidate(row, why))
            if len(batch) >= _BATCH:
                self._flush(deleter, batch, age)
                expected = 0
                if self._janitor.stopping:
                    return False
        self._flush(deleter, batch, age)
        return len(rows) < _MOST_ROWS

    def _flush(self, deleter: Deleter, batch: list[Candidate], age: float | None) -> None:
        if batch:
            self.add(
                deleter.would_delete(batch, age, self._now)
                if self._dry_run
                else deleter.delete(batch, age, self._now)
            )
            batch.clear()

    def add(self, done: Done) -> None:
        """Note what became of some rows."""
        self._deleted += done.deleted
        self._seen |= {row.key for row in done.deleted}
        self._refused += done.refused
        self._healed += done.healed
        self._kept += done.kept

    def report(self) -> Cleaned:
        """What it came to."""
        return Cleaned(
            name=self._janitor.name,
            dry_run=self._dry_run,
            deleted=self._deleted,
            freed=self._freed,
            kept=self._protected + self._kept,
            refused=list(dict.fromkeys(self._refused)),
            healed=self._healed,
            free=self._free(),
            short=self._short,
            too_full=self._too_full,
        )


class Tiers:
    """Janitors that run one after the other, in the order in which they are declared."""

    name = "janitors"

    def __init__(self, janitors: Sequence[Janitor]) -> None:
        self._janitors = list(janitors)
        self.interval = min(one.interval for one in janitors)

    def check(self) -> None:
        """Raise if something has to be mended first."""
        for one in self._janitors:
            one.check()

    def loop(self, stop: Stop) -> None:
        """Run each when its interval is over, until told to stop."""
        due = {one.name: monotonic() for one in self._janitors}
        troubles = {one.name: Troubles(one.title) for one in self._janitors}
        for one in self._janitors:
            one.listen(stop)
        try:
            while not stop.told:
                for one in self._janitors:
                    if stop.told or monotonic() < due[one.name]:
                        continue
                    try:
                        done = one.run_once()
                        if done.deleted:
                            said = "%s: %d rows deleted, %d bytes freed"
                            log.info(said, one.title, len(done.deleted), done.freed)
                        troubles[one.name].over()
                        due[one.name] = monotonic() + one.interval
                    except Exception as error:  # a database or a disk that comes back
                        due[one.name] = monotonic() + troubles[one.name].happened(error)
                stop.wait(min(due.values()) - monotonic())
        finally:
            for one in self._janitors:
                one.listen(None)


def _order(value: Any) -> str | None:
    if value is None:
        return None
    (column, descending), *more = names.order(value)
    if more:
        raise ConfigurationError(f"order_by={value!r}: a janitor takes one column")
    if descending:
        raise ConfigurationError(f"order_by={value!r}: the oldest go first, so leave DESC out")
    return column


def _names_of_consumers(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        raise ConfigurationError(f"after={value!r}: must be a list of consumers' names, or () for none")
    return tuple(names.consumer_name(one) for one in value)


def _condition(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or "\x00" in value or "«" in value:
        raise ConfigurationError(f"where={value!r}: must be an SQL condition on the row")
    return value.strip()


def _with_tx(what: str, function: Callable[..., Any] | None, fewest: int) -> Callable[..., Any] | None:
    """The function, as one that takes a transaction as its last argument."""
    if function is None or takes(what, function, fewest, "tx"):
        return function
    return lambda *given: function(*given[:-1])


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
