"""A status column with the user's own words, and the columns for times, attempts, progress and results.

Only data: pieces of SQL, the columns that they name, and the values that are bound in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.consumers import names
from rowlock.consumers.forms.base import CHANGES, Form, Word, reason
from rowlock.errors import ConfigurationError
from rowlock.job import Ending, Outcome
from rowlock.options import check_seconds

if TYPE_CHECKING:
    from rowlock.consumers.described import DescribedTable

_NOW = "«now»"
# What is written into each column, and when: see `CHANGES`. `_NOW` is the time as the column holds it.
_BOOKS: dict[str, dict[str, str]] = {
    "status": {"«running_word»": "row_taken", "«due_word»": "row_given_back row_cleared", "{word}": "marked"},
    "started_at": {
        f"CASE WHEN :begins = 1 THEN {_NOW} END": "row_taken",  # a relay claims rows that others begin
        _NOW: "row_started",
        "NULL": "row_given_back row_cleared",
    },
    "finished_at": {_NOW: "marked", "NULL": "row_taken row_cleared"},
    "claimed_by": {":worker": "row_taken row_started", "NULL": "row_given_back row_cleared"},
    "attempts": {  # while the row runs, the column counts this attempt, too
        "coalesce(«attempts», 0) + 1": "row_taken",
        "«attempts» - 1 + :charge": "row_given_back marked",
        "0": "row_cleared",
    },
    "error": {":error": "marked row_cleared"},
    "result": {"coalesce(:result, «result»)": "marked"},
    "progress": {"0": "row_taken", "coalesce(:percent, «progress»)": "marked", ":percent": "progress"},
    "progress_done": {":done": "progress"},
    "updated_at": {_NOW: " ".join(CHANGES)},
}
_COLUMNS = (*(name for name in _BOOKS if name != "status"), "created_at", "max_attempts")
_WORDS = ("due", "running", "done", "failed")
_BUDGET = "(SELECT «max_attempts» FROM «table» WHERE «t».«key» = {claimed_key})"
_FOUR_STATES = "text: a boolean column cannot hold four states; use state=... or a text column"
_REFUSED = frozenset("'{}«»\\\n\x00")


class Status(Form, msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A status column of the user's, with the user's own words for what a row can be.

    `error` is the column that gets the reason of a failure. The other columns are kept up to date if they
    are named: `started_at`, `finished_at`, `updated_at`, `claimed_by` (a worker's id), `attempts`, `result`
    (JSON), and `progress` (in percent) or `progress_done` (as `ctx.progress` was given it). `max_attempts` is
    read for each row. `time_format` is how SQLite's `strftime` writes times. Rows that somebody else left
    `running` are due again `stale_after` seconds after `started_at` (without one, `updated_at`); rows that
    nobody has begun `deadline` seconds after `created_at` fail.
    """

    holds = shows_failures = True
    column_types = {
        "sqlite": ("(?!.*BOOL)", _FOUR_STATES),
        "postgresql": ("(?!boolean$)", _FOUR_STATES),  # a type of the user's may be called "booleanish"
        "duckdb": ("(?!.*BOOL)", _FOUR_STATES),
    }

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
        words = list(self.words.values())
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
        return self.started_at or self.updated_at

    @property
    def columns(self) -> dict[str, str]:
        named = {name: column for name in _COLUMNS if (column := getattr(self, name))}
        return {"status": self.column, **named}

    @property
    def words(self) -> dict[str, Word]:
        return {name: getattr(self, name) for name in _WORDS}

    def pieces(self, table: DescribedTable) -> dict[str, str]:
        return {
            **{change: self._written(change, table) for change in CHANGES},
            "due": "«status» = «due_word»",
            "markable": "«status» = «running_word»",
            "row_failed": "«status» = «failed_word»",
            "row_done": "«status» = «done_word»",
            **({"row_attempts": "coalesce(«attempts», 0)"} if self.attempts else {}),
            **({"row_max_attempts": "«max_attempts»", "held_budget": _BUDGET} if self.max_attempts else {}),
            **({"stale": table.older(str(self.running_since))} if self.stale_after else {}),
            **({"too_old": table.older(str(self.created_at))} if self.deadline else {}),
        }

    def _written(self, change: str, table: DescribedTable) -> str:
        """What this change sets in the user's row."""
        written = [
            f"«{name}» = {self._value(name, column, value, table)}"
            for name, column in self.columns.items()
            for value, changes in _BOOKS.get(name, {}).items()
            # A column that is `updated_at` as well is written once, as that.
            if change in changes.split() and (name == "updated_at" or column != self.updated_at)
        ]
        return ", ".join(written) or "«status» = «status»"

    def _value(self, name: str, column: str, value: str, table: DescribedTable) -> str:
        """The value as that column takes it."""
        if _NOW in value:
            return value.replace(_NOW, table.now_in(column))
        match name:
            case "claimed_by" | "error":
                return table.fitted(column, value)
            case "result":
                return value.replace(":result", table.json_value(column, ":result"))
            case "progress":
                return value.replace(":percent", table.number(column, ":percent"))
            case "progress_done":
                return table.number(column, value)
            case _:
                return value

    def mark_values(self, outcome: Outcome, failures: int) -> dict[str, Any] | None:
        if outcome.ending is Ending.COMPLETED:
            result = None if outcome.result == "null" else outcome.result
            return {"word": self.done, "error": None, "percent": 100.0, "charge": 1, "result": result}
        failed = {"word": self.failed, "error": reason(outcome.error), "charge": outcome.charge}
        return {**failed, "percent": None, "result": None}

    def progress_values(self, done: float, total: float | None) -> dict[str, Any]:
        percent = 100.0 * done / total if total else done
        return {"percent": max(0.0, min(100.0, percent)), "done": done}
