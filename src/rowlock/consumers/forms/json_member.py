"""A member of a JSON column: each consumer of the table has its own member.

The SQL is in each database's statements; here are the values that are bound in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock import codec
from rowlock.codec import json_text
from rowlock.consumers import names
from rowlock.consumers.forms.base import Form, reason
from rowlock.errors import ConfigurationError
from rowlock.job import Ending, Outcome

if TYPE_CHECKING:
    from rowlock.consumers.described import DescribedTable

log = logging.getLogger("rowlock.consumer")

Failed = Callable[[str, int], Any]  # an error and the attempts to a JSON value
_MOST_BYTES = 65_536


class JsonMember(Form, msgspec.Struct, frozen=True):
    """One member of a JSON object: null or missing while the row is due."""

    has_broken = shows_failures = True

    column_types = {
        "sqlite": ("$|.*(JSON|CHAR|CLOB|TEXT)", "TEXT (or JSON), for it holds one JSON object"),
        "postgresql": ("jsonb$", "jsonb, for it holds one JSON object"),
    }

    column: str
    consumer: str
    failed: Failed | None = None

    def __post_init__(self) -> None:
        names.column("state", self.column)
        if self.failed is not None and not callable(self.failed):
            raise ConfigurationError(f"failed={self.failed!r}: must be a function of an error and attempts")

    @property
    def columns(self) -> dict[str, str]:
        return {"state": self.column}

    @property
    def keeps_failures(self) -> bool:
        return self.failed is not None  # the user's own value does not tell a failure from a result

    def __str__(self) -> str:
        return f"state={self.column!r}"

    def pieces(self, table: DescribedTable) -> dict[str, str]:
        pieces = ("due", "markable", "marked", "broken", "row_failed", "row_done", "row_cleared", "kept_mark")
        words = {name: f"{{{name}_state}}" for name in pieces}
        if not self.keeps_failures:
            return words
        in_a_table = {"row_failed": "{row_failed_by_mark}", "failed_rows": "{rows_with_failures}"}
        return {**words, **in_a_table, "still_failed": "true"}

    def mark_values(self, outcome: Outcome, failures: int) -> dict[str, Any]:
        if outcome.ending is Ending.COMPLETED:
            result = outcome.result
            return {"mark": "true" if result is None or result == "null" else result}
        error, attempts = reason(outcome.error), failures + outcome.charge
        own = self._own_mark(error, attempts)
        return {"mark": own or json_text({"failed": error, "attempts": attempts})}

    def _own_mark(self, error: str, attempts: int) -> str | None:
        """The user's own value for a failure, as JSON; None if there is none, or it cannot be used."""
        if self.failed is None:
            return None
        try:
            made = self.failed(error, attempts)
            if made is not None:  # None would leave the row due
                return codec.encode(made, "what failed= returned", _MOST_BYTES)
            log.error("consumer %s: failed= returned None; the usual mark is set", self.consumer)
        except Exception:
            log.exception("consumer %s: failed= raised; the usual mark is set", self.consumer)
        return None
