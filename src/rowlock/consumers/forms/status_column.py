"""A status column with the user's own words, and the columns for times, attempts, progress and results.

Only data: pieces of SQL, the columns that they name, and the values that are bound in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.consumers import names
from rowlock.consumers.forms.base import Form, Index, Word, literal, reason
from rowlock.errors import ConfigurationError
from rowlock.job import Ending, Outcome
from rowlock.options import check_seconds

if TYPE_CHECKING:
    from rowlock.consumers.columns import Columns
    from rowlock.consumers.dialects import Dialect

_COLUMNS = (
    *("error", "started_at", "finished_at", "updated_at", "created_at", "progress", "progress_done"),
    *("claimed_by", "attempts", "max_attempts", "result"),
)
_BUDGET = "(SELECT «max_attempts» FROM «table» WHERE «t».«key» = {claimed_key})"
_REFUSED = frozenset("'{}«»\\\n\x00")


class Status(msgspec.Struct, frozen=True):
    """A status column of the user's, with the user's own words for what a row can be.

    `error` is the column that gets the reason of a failure. The other columns are kept up to date if they
    are named: `started_at`, `finished_at`, `updated_at`, `claimed_by` (a worker's id), `attempts`, `result`
    (JSON), and `progress` (in percent) or `progress_done` (as `ctx.progress` was given it). `max_attempts` is
    read for each row. `time_format` is how SQLite's `strftime` writes times. Rows that somebody else left
    `running` are due again `stale_after` seconds after `started_at` (without one, `updated_at`); rows that
    nobody has begun `deadline` seconds after `created_at` fail.
    """

    column: str
    due: Word = "pending"
    running: Word = "running"
    done: Word = "completed"
    failed: Word = "failed"
    error: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    updated_at: str | None = None
    progress: str | None = None
    progress_done: str | None = None
    claimed_by: str | None = None
    attempts: str | None = None
    max_attempts: str | None = None
    result: str | None = None
    time_format: str | None = None
    created_at: str | None = None
    stale_after: float | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        words = [self.due, self.running, self.done, self.failed]
        for word in words:
            if isinstance(word, bool) or not isinstance(word, (str, int)) or not str(word).isprintable():
                raise ConfigurationError(f"Status: {word!r} must be a word (or number) of the column's")
        if len(set(words)) < len(words):
            raise ConfigurationError(f"Status: due, running, done and failed must differ: {words}")
        for name in ("column", *_COLUMNS):
            if getattr(self, name) is not None:
                names.column(f"Status {name}", getattr(self, name))
        if self.progress is not None and self.progress_done is not None:
            raise ConfigurationError("Status: give it either progress= (percent) or progress_done= (a count)")
        if self.time_format is not None and (
            not isinstance(self.time_format, str) or set(self.time_format) & _REFUSED
        ):
            raise ConfigurationError(f"Status: time_format={self.time_format!r} must be text for strftime")
        for name, since, needs in (
            ("stale_after", self.running_since, "started_at=... or updated_at=..."),
            ("deadline", self.created_at, "created_at=..."),
        ):
            check_seconds(f"Status {name}", getattr(self, name))
            if getattr(self, name) is not None and since is None:
                raise ConfigurationError(f"Status: {name} needs {needs}, the column that it counts from")

    @property
    def running_since(self) -> str | None:
        """The column from which `stale_after` counts."""
        return self.started_at or self.updated_at


class StatusForm(Form):
    """A status column: from due to running when a row is claimed, to done or failed when it ends."""

    holds = shows_failures = True

    def __init__(self, status: Status, consumer: str) -> None:
        if not isinstance(status, Status):
            raise ConfigurationError(f"status={status!r}: must be Status(...)")
        self.status = status
        self.column = status.column
        self.stale_after, self.deadline = status.stale_after, status.deadline
        self.reads_attempts = status.attempts is not None
        self.time_format = status.time_format
        self.created_at = status.created_at

    def __str__(self) -> str:
        given = msgspec.structs.asdict(self.status)
        named = [
            f"{name}={value!r}" for name, value in given.items() if name != "column" and value is not None
        ]
        return f"Status({', '.join([repr(self.column), *named])})"

    def needed(self) -> list[tuple[str, str]]:
        named = [(f"Status {name}", value) for name in _COLUMNS if (value := getattr(self.status, name))]
        return [("status", self.status.column), *named]

    def refusal(self, types: Mapping[str, str], known: Dialect) -> str | None:
        kind = types[self.column]
        if not known.boolean(kind):
            return None
        return (
            f"status={self.column!r} is of type {kind}: a boolean column cannot hold four states; "
            "use state=... or a text column"
        )

    def distinct_words(self) -> dict[str, Word]:
        chosen = ("due", "running", "done", "failed")
        return {f"{name}={getattr(self.status, name)!r}": getattr(self.status, name) for name in chosen}

    def words(self, table: Columns) -> dict[str, str]:
        status, stamp, fitted = self.status, table.stamp, table.fitted
        taking, giving_back, marking, clearing = [
            ["«status» = {" + name + "}"] for name in ("now_running", "now_due", "now_word", "now_due")
        ]
        shown, handing_over, starting = [], [], []
        # A column that is `updated_at` as well is written once, as that.
        if status.started_at and status.started_at != status.updated_at:
            taking.append(f"«started_at» = {stamp(status.started_at)[0]}")
            handing_over.append("«started_at» = NULL")
            starting.append(f"«started_at» = {stamp(status.started_at)[0]}")
            giving_back.append("«started_at» = NULL")
            clearing.append("«started_at» = NULL")
        if status.finished_at and status.finished_at != status.updated_at:
            taking.append("«finished_at» = NULL")
            clearing.append("«finished_at» = NULL")
            marking.append(f"«finished_at» = {stamp(status.finished_at)[0]}")
        if status.claimed_by:
            taking.append(f"«claimed_by» = {fitted(status.claimed_by, ':worker')}")
            starting.append(f"«claimed_by» = {fitted(status.claimed_by, ':worker')}")
            giving_back.append(f"«claimed_by» = {fitted(status.claimed_by, 'NULL')}")
            clearing.append(f"«claimed_by» = {fitted(status.claimed_by, 'NULL')}")
        if status.attempts:  # while the row runs, the column counts this attempt, too
            taking.append("«attempts» = coalesce(«attempts», 0) + 1")
            giving_back.append("«attempts» = «attempts» - 1 + :charge")
            marking.append("«attempts» = «attempts» - 1 + :charge")
            clearing.append("«attempts» = 0")
        if status.error:
            marking.append(f"«error» = {fitted(status.error, ':error')}")
            clearing.append(f"«error» = {fitted(status.error, ':error')}")
        if status.result:
            marking.append(f"«result» = coalesce({table.json_value(status.result, ':result')}, «result»)")
        if status.progress:
            percent = table.number(status.progress, ":percent")
            taking.append("«progress» = 0")
            marking.append(f"«progress» = coalesce({percent}, «progress»)")
            shown.append(f"«progress» = {percent}")
        if status.progress_done:
            shown.append(f"«progress_done» = {table.number(status.progress_done, ':done')}")
        if status.updated_at:
            for changes in (taking, handing_over, starting, giving_back, marking, clearing, shown):
                changes.append(f"«updated_at» = {stamp(status.updated_at)[0]}")
        return {
            "due": f"«status» = {literal(status.due)}",
            "markable": "«status» = {now_running}",
            "row_failed": f"«status» = {literal(status.failed)}",
            "row_done": f"«status» = {literal(status.done)}",
            "row_running": f"«status» = {literal(status.running)}",
            "row_cleared": ", ".join(clearing),
            "row_taken": ", ".join(taking),
            "row_handed_over": ", ".join(handing_over or ["«status» = «status»"]),
            "row_started": ", ".join(starting or ["«status» = «status»"]),
            "row_given_back": ", ".join(giving_back),
            "marked": ", ".join(marking),
            "progress": ", ".join(shown or ["«status» = «status»"]),
            "row_attempts": "coalesce(«attempts», 0)" if status.attempts else "failures",
            "row_max_attempts": "«max_attempts»" if status.max_attempts else "NULL",
            "held_budget": _BUDGET if status.max_attempts else "NULL",
            "stale": stamp(since)[1] if (since := status.running_since) and status.stale_after else "false",
            "too_old": stamp(status.created_at)[1] if status.created_at and status.deadline else "false",
        }

    def theirs(self) -> dict[str, str]:
        named = {name: names.quoted(value) for name in _COLUMNS if (value := getattr(self.status, name))}
        return {"status": names.quoted(self.status.column), **named}

    def indexes(self, consumer: str, table: str, key: str) -> list[Index]:
        if self.stale_after is None:
            return []
        return [(f"rowlock_{consumer}_running", str(self.status.running_since), "running_condition")]

    def always(self) -> dict[str, Any]:
        return {"running_word": self.status.running, "due_word": self.status.due}

    def mark(self, outcome: Outcome, failures: int) -> dict[str, Any] | None:
        if outcome.ending is Ending.COMPLETED:
            result = None if outcome.result == "null" else outcome.result
            return {"word": self.status.done, "error": None, "percent": 100.0, "charge": 1, "result": result}
        failed = {"word": self.status.failed, "error": reason(outcome.error), "charge": outcome.charge}
        return {**failed, "percent": None, "result": None}

    def progress(self, done: float, total: float | None) -> dict[str, Any]:
        percent = 100.0 * done / total if total else done
        return {"percent": max(0.0, min(100.0, percent)), "done": done}
