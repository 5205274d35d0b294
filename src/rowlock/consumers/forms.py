"""How what is done is written in the user's table: as a member of a JSON column, or in a status column.

Only data: which pieces of SQL make up the form, which columns they name, and what is bound to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from rowlock.consumers import names
from rowlock.errors import ConfigurationError
from rowlock.headline import headline
from rowlock.job import Ending, Outcome
from rowlock.options import check_seconds

_MAX_REASON = 2_000  # characters of an error that are kept in the user's own row
Word = str | int
Stamp = Callable[[str], tuple[str, str]]  # a column to what writes "now" into it, and what asks for its age
Fitted = Callable[[str, str], str]  # a column and a text (as SQL) to what the column can hold of it


class Form(Protocol):
    """What a table and the settling of outcomes ask of a form."""

    holds: bool  # a claim shows in the user's row, and has to be taken back there
    has_broken: bool  # rows may hold what cannot be read
    ages: bool  # rows may be too old

    def needed(self) -> list[tuple[str, str]]:
        """The columns that it names, each with the option that does so."""
        ...

    def words(self, stamp: Stamp, fitted: Fitted) -> dict[str, str]:
        """The pieces of SQL that make up the form."""
        ...

    def theirs(self) -> dict[str, str]:
        """The user's names in those pieces, quoted."""
        ...

    def always(self) -> dict[str, Any]:
        """What is bound in every statement."""
        ...

    def mark(self, outcome: Outcome, failures: int) -> dict[str, Any]:
        """What is bound when a row is done with."""
        ...


class StateForm:
    """One member of a JSON object: null or missing while the row is due."""

    holds = ages = False
    has_broken = True

    def __init__(self, column: str, consumer: str) -> None:
        self.column = names.column("state", column)
        self._consumer = consumer

    def needed(self) -> list[tuple[str, str]]:
        return [("state", self.column)]

    def words(self, stamp: Stamp, fitted: Fitted) -> dict[str, str]:
        pieces = ("due", "markable", "marked", "broken", "row_failed", "row_done", "row_cleared")
        return {name: f"{{{name}_state}}" for name in pieces} | _NOTHING

    def theirs(self) -> dict[str, str]:
        return {"state": names.quoted(self.column), "name": self._consumer}

    def always(self) -> dict[str, Any]:
        return {}

    def mark(self, outcome: Outcome, failures: int) -> dict[str, Any]:
        if outcome.ending is Ending.COMPLETED:
            result = outcome.result
            return {"mark": "true" if result is None or result == "null" else result}
        attempts = failures + outcome.charge
        return {"mark": _json({"failed": reason(outcome.error), "attempts": attempts})}


class Status(msgspec.Struct, frozen=True):
    """A status column of the user's, with the user's own words for what a row can be.

    `error` is the column that gets the reason of a failure; `started_at`, `finished_at` and `progress`
    (in percent) are kept up to date if they are named. Rows that somebody else left `running` are due again
    `stale_after` seconds after `started_at`; rows that nobody has begun `deadline` seconds after `created_at`
    fail.
    """

    column: str
    due: Word = "pending"
    running: Word = "running"
    done: Word = "completed"
    failed: Word = "failed"
    error: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    progress: str | None = None
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
        for name in ("column", "error", "started_at", "finished_at", "progress", "created_at"):
            if getattr(self, name) is not None:
                names.column(f"Status {name}", getattr(self, name))
        for name, needs in (("stale_after", "started_at"), ("deadline", "created_at")):
            check_seconds(f"Status {name}", getattr(self, name))
            if getattr(self, name) is not None and getattr(self, needs) is None:
                raise ConfigurationError(f"Status: {name} needs {needs}=..., the column that it counts from")


class StatusForm:
    """A status column: from due to running when a row is claimed, to done or failed when it ends."""

    holds = True
    has_broken = False

    def __init__(self, status: Status) -> None:
        self.status = status
        self.ages = status.stale_after is not None or status.deadline is not None

    def needed(self) -> list[tuple[str, str]]:
        chosen = ("error", "started_at", "finished_at", "progress", "created_at")
        named = [(f"Status {name}", value) for name in chosen if (value := getattr(self.status, name))]
        return [("status", self.status.column), *named]

    def words(self, stamp: Stamp, fitted: Fitted) -> dict[str, str]:
        status = self.status
        taking, giving_back, marking = [
            ["«status» = {" + name + "}"] for name in ("now_running", "now_due", "now_word")
        ]
        if status.started_at:
            taking.append(f"«started_at» = {stamp(status.started_at)[0]}")
            giving_back.append("«started_at» = NULL")
        if status.finished_at:
            taking.append("«finished_at» = NULL")
            marking.append(f"«finished_at» = {stamp(status.finished_at)[0]}")
        error = [f"«error» = {fitted(status.error, ':error')}"] if status.error else []
        marking += error
        if status.progress:
            taking.append("«progress» = 0")
            marking.append("«progress» = coalesce(:percent, «progress»)")
        return {
            "due": f"«status» = {literal(status.due)}",
            "markable": "«status» = {now_running}",
            "row_failed": f"«status» = {literal(status.failed)}",
            "row_done": f"«status» = {literal(status.done)}",
            "row_cleared": ", ".join(["«status» = {now_due}", *error]),
            "broken": "false",
            "row_taken": ", ".join(taking),
            "row_given_back": ", ".join(giving_back),
            "marked": ", ".join(marking),
            "progress": "«progress» = :percent" if status.progress else "«status» = «status»",
            "stale": stamp(status.started_at)[1] if status.started_at and status.stale_after else "false",
            "too_old": stamp(status.created_at)[1] if status.created_at and status.deadline else "false",
        }

    def theirs(self) -> dict[str, str]:
        chosen = ("error", "started_at", "finished_at", "progress", "created_at")
        named = {name: names.quoted(value) for name in chosen if (value := getattr(self.status, name))}
        return {"status": names.quoted(self.status.column), **named}

    def always(self) -> dict[str, Any]:
        return {"running_word": self.status.running, "due_word": self.status.due}

    def mark(self, outcome: Outcome, failures: int) -> dict[str, Any]:
        if outcome.ending is Ending.COMPLETED:
            return {"word": self.status.done, "error": None, "percent": 100.0}
        return {"word": self.status.failed, "error": reason(outcome.error), "percent": None}


# What a form that leaves the row alone until the end has nothing to say about.
_NOTHING = dict.fromkeys(("row_taken", "row_given_back", "progress"), "") | dict.fromkeys(
    ("stale", "too_old"), "false"
)


def reason(error: str | None) -> str:
    """An error for the user's row: the line that names it, without the way there."""
    return (headline(error) or "cancelled")[:_MAX_REASON]


def percent(done: float, total: float | None) -> float:
    """How far a run has come, of a hundred; without a total, as it said itself."""
    return done if not total else max(0.0, min(100.0, 100.0 * done / total))


def literal(word: Word) -> str:
    """A word as SQL, for where nothing can be bound."""
    return names.literal(word) if isinstance(word, str) else str(word)


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
