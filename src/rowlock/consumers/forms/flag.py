"""A boolean column: false or null while the row is due, true when it is done.

It has no value for failure, so failures are in rowlock's own table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.consumers import names
from rowlock.consumers.forms.base import Form
from rowlock.job import Ending, Outcome

if TYPE_CHECKING:
    from rowlock.consumers.described import DescribedTable


class Flag(Form, msgspec.Struct, frozen=True):
    """A boolean column of the user's that says what is done; `at` gets the time at which it was."""

    column_types = {
        "sqlite": (".*(BOOL|INT)", "BOOLEAN (or INTEGER), for it holds false (or null) or true"),
        "postgresql": ("boolean$", "boolean"),
    }

    column: str
    at: str | None = None

    def __post_init__(self) -> None:
        names.column("Flag column", self.column)
        if self.at is not None:
            names.column("Flag at", self.at)

    @property
    def columns(self) -> dict[str, str]:
        return {"flag": self.column, **({"at": self.at} if self.at else {})}

    @property
    def keeps_failures(self) -> bool:
        return True

    def pieces(self, table: DescribedTable) -> dict[str, str]:
        return {
            "due": "«flag» IS NOT TRUE",
            # Another program that has set it meanwhile has done the row. Not as in `due`: see markable_state.
            "markable": "NOT coalesce(«flag», false)",
            "marked": "«flag» = TRUE" + (f", «at» = {table.now_in(self.at)}" if self.at else ""),
            "row_done": "«flag» IS TRUE",
            "row_failed": "(«flag» IS NOT TRUE AND (SELECT f.row_key {failure}) IS NOT NULL)",
            "not_given_up": "(SELECT f.row_key {failure}) IS NULL",
            "failed_rows": "{rows_with_failures}",
            "still_failed": "true",
        }

    def mark_values(self, outcome: Outcome, failures: int) -> dict[str, Any] | None:
        return {} if outcome.ending is Ending.COMPLETED else None
