"""The janitor: deletes the files of rows that a limit asks for and the conditions allow, oldest first.

Nothing else, and nothing without its database. One run is in `janitor_run.py`, deletion in `deleting.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from rowlock.consumers import names
from rowlock.errors import ConfigurationError
from rowlock.files.deleting import Deleter
from rowlock.files.folder import Folder
from rowlock.files.janitor_run import JanitorRun
from rowlock.files.limits import Limits, Wanted, takes
from rowlock.files.oldest import whole_number
from rowlock.files.options import JanitorOptions
from rowlock.files.policy import Choice, Policy
from rowlock.files.records import Cleaned
from rowlock.files.service import ErrorBackoff, FileService
from rowlock.files.tables import App

log = logging.getLogger("rowlock.janitor")

_SUSPICIOUS = 100  # rows whose files are all gone: their disk may not be there


class Janitor(FileService):
    """A declared janitor: `run_once()` cleans up once, `run()` goes on until it is told to stop."""

    kind = "janitor"
    options = JanitorOptions

    def __init__(self, app: App, home: str, name: str, given: JanitorOptions) -> None:
        super().__init__(app, home, name, given)
        order_by, deleted, key = given.get("order_by"), given.get("deleted"), given.get("key")
        also, also_folder = given.get("also"), given.get("also_folder")
        self.also_folder = Folder(given["folder"] if also_folder is None else also_folder, home)
        self.cap = whole_number("cap", given.get("cap", 500))
        self.limits = Limits(self.title, given)
        self.choice = Choice(
            key=None if key is None else names.column("key", key),
            order_by=_order(order_by),
            after=_names_of_consumers(given.get("after", ())),
            failed_too=bool(given.get("failed_too")),
            where=_condition(given.get("where")),
            deleted=None if deleted is None else names.column("deleted", deleted),
            remove_rows=bool(given.get("remove_rows")),
            has_age=given.get("max_age") is not None,
        )
        if deleted is not None and self.choice.remove_rows:
            raise ConfigurationError(
                f"{self.title}: give it either deleted=... or remove_rows=True, not both"
            )
        if self.choice.has_age and order_by is None:
            raise ConfigurationError(f"{self.title}: max_age counts from order_by=..., a time: name it")
        if also is None and also_folder is not None:
            raise ConfigurationError(f"{self.title}: also_folder=... is for also=..., a function")
        self.also = _with_tx("also", also, 1)
        self.on_deleted = _with_tx("on_deleted", given.get("on_deleted"), 2)
        self._healed = False
        self._last_problem: str | None = None

    @property
    def declaration(self) -> tuple[Any, ...]:
        """Tiers have the table and the folder in common: their limits and conditions tell them apart."""
        return (*super().declaration, self.columns, self.limits.declared, self.choice, self.cap)

    # -- running ---------------------------------------------------------------------------------

    @cached_property
    def file_table(self) -> Policy:
        """What it may delete, as SQL on its table, which is described when this is first asked for."""
        return Policy(self._app, self, self.choice)

    def check(self) -> None:
        """Raise if the folder, the table, its columns or the conditions are not as they should be."""
        self.folder.check(writable=True)
        self.also_folder.check(writable=True)
        self.file_table  # noqa: B018 - it looks

    def run_once(
        self, now: float | None = None, dry_run: bool = False, earlier: Sequence[Cleaned] = ()
    ) -> Cleaned:
        """Delete what the limits ask for and the conditions allow; says what was deleted, and what was not.

        A dry run changes nothing. `earlier` are what the dry runs of tiers before this one would have done.
        Told to stop, it ends after the batch that it is at.
        """
        self.check()
        report = Cleaned(name=self.name, dry_run=dry_run)
        try:
            wanted = self.limits_now()
        except ConfigurationError as error:
            report.skipped = str(error)
        else:
            with self._opened(self.folder) as opened, self._opened(self.also_folder) as companions:
                deleter = Deleter(self, opened, companions, report, now)
                if not dry_run:
                    self._check_mounted()
                    deleter.finish_marked(self._app.janitors)
                    self._heal(deleter)
                JanitorRun(self, deleter, wanted, earlier).clean()
        if not dry_run:
            self._note_report(report)
        return report

    @classmethod
    def loops(cls, services: Sequence[Janitor]) -> list[Callable[[], None]]:
        """Tiers run one after the other, in the order in which they are declared."""
        return [partial(_run_tiers, services)]

    def _heal(self, deleter: Deleter) -> None:
        """Rows whose files are all gone are marked as deleted, once at the start."""
        if self._healed or not self.choice.tells_table:
            return
        named = 0
        for page in self.file_table.living():
            if not all(deleter.files.all_gone(row) for row in page):
                break
            named += len(page)
        else:
            if named >= _SUSPICIOUS:
                raise ConfigurationError(
                    f"{self.title}: {named} rows name files in {self.folder.path}, and not one of them is "
                    "there: is it the right folder, and mounted? If they are really gone, mark these "
                    "rows as deleted by hand"
                )
        for page in self.file_table.living():
            deleter.heal(page)
        self._healed = True

    def _note_report(self, report: Cleaned) -> None:
        """Note how it went, and log what has changed since the last run."""
        problem = report.skipped or report.short
        self._note_run(len(report.refused), problem)
        kinds = {
            "unconfirmed": report.unconfirmed,
            "skipped": report.skipped,
            "too full": report.too_full,
            "short": report.short,
        }
        kind = next((kind for kind, is_so in kinds.items() if is_so), None)
        if kind is not None and kind != self._last_problem:
            level = logging.WARNING if kind == "short" else logging.ERROR
            said = "nothing is deleted: " if report.skipped else ""
            self._log.log(level, "%s: %s%s", self.title, said, problem)
        elif kind is None and self._last_problem is not None:
            self._log.info("%s: within its limits again", self.title)
        self._last_problem = kind
        for one in report.refused:
            self._log_once(one, "is kept")

    def is_last_resort(self, min_free: int) -> bool:
        """Whether no other janitor of this folder waits until less than this is free."""
        others = [one for one in self._app.janitors.values() if one.folder.path == self.folder.path]
        least = [one.least_free for one in others if one is not self]
        return all(one is None or one >= min_free for one in least)

    @property
    def least_free(self) -> int | None:
        """What has to be free in bytes, if that can be told without a database."""
        return self.limits.least_free(self.folder.path)

    def limits_now(self) -> Wanted:
        """What its limits are at this moment."""
        return self.limits.read(self.folder.path, self.file_table.writing_with_user)


def _run_tiers(janitors: Sequence[Janitor]) -> None:
    """Run each when its interval is over, until they are told to stop, which all of them are."""
    stopping = janitors[-1].stopping
    due = {one.name: time.monotonic() for one in janitors}
    backoff = {one.name: ErrorBackoff(one.title) for one in janitors}
    while not stopping.is_set():
        for one in janitors:
            if not stopping.is_set() and time.monotonic() >= due[one.name]:
                wait = _seconds_after_run(one, backoff[one.name])
                due[one.name] = time.monotonic() + wait
        stopping.wait(min(due.values()) - time.monotonic())


def _seconds_after_run(one: Janitor, backoff: ErrorBackoff) -> float:
    """One run; returns the seconds until the next."""
    try:
        done = one.run_once()
    except Exception as error:  # a database or a disk that comes back
        return backoff.failed(error)
    backoff.succeeded()
    if done.deleted:
        log.info("%s: %d rows deleted, %d bytes freed", one.title, len(done.deleted), done.freed)
    return one.interval


def _order(value: Any) -> str | None:
    if value is None:
        return None
    (column, descending), *more = names.order_by(value)
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
    if function is None or takes(what, function, fewest):
        return function
    return lambda *given: function(*given[:-1])
