"""A member of a JSON column, which each consumer of the table has for itself.

The SQL is in each database's statements; here is what is bound to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rowlock.consumers import names
from rowlock.consumers.forms.base import Index, TableTypes, TypeNames, Word, reason
from rowlock.job import Ending, Outcome


class StateForm:
    """One member of a JSON object: null or missing while the row is due."""

    holds = keeps_failures = False
    has_broken = True
    stale_after: float | None = None
    deadline: float | None = None
    reads_attempts = reads_budget = False
    time_format: str | None = None

    def __init__(self, column: str, consumer: str) -> None:
        self.column = names.column("state", column)
        self._consumer = consumer

    def __str__(self) -> str:
        return f"state={self.column!r}"

    def needed(self) -> list[tuple[str, str]]:
        return [("state", self.column)]

    def refusal(self, types: Mapping[str, str], known: TypeNames) -> str | None:
        kind = types[self.column]
        if known.state_type(kind):
            return None
        return f"{self} is of type {kind}; it must be {known.wanted_state}, for it holds one JSON object"

    def distinct_words(self) -> dict[str, Word]:
        return {}

    def words(self, table: TableTypes) -> dict[str, str]:
        pieces = ("due", "markable", "marked", "broken", "row_failed", "row_done", "row_cleared")
        return {name: f"{{{name}_state}}" for name in pieces}

    def theirs(self) -> dict[str, str]:
        return {"state": names.quoted(self.column), "name": self._consumer}

    def indexes(self, consumer: str, table: str, key: str) -> list[Index]:
        # small, and shared by all consumers of the table
        return [(f"rowlock_{table}_{self.column}_broken"[:63], key, "broken")]

    def always(self) -> dict[str, Any]:
        return {}

    def mark(self, outcome: Outcome, failures: int) -> dict[str, Any]:
        if outcome.ending is Ending.COMPLETED:
            result = outcome.result
            return {"mark": "true" if result is None or result == "null" else result}
        attempts = failures + outcome.charge
        mark = {"failed": reason(outcome.error), "attempts": attempts}
        return {"mark": msgspec.json.encode(mark).decode()}

    def progress(self, done: float, total: float | None) -> dict[str, Any]:
        return {}
