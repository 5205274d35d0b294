"""What the table, claiming and settling need of a form: the base class.

It knows no form of its own, and no database.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rowlock.error_text import headline
from rowlock.job import Outcome

if TYPE_CHECKING:
    from rowlock.consumers.described import DescribedTable

_MAX_REASON = 2_000  # characters of an error that are kept in the user's own row
Word = str | int
# What is written into a row when its claim is made, when another worker begins it, when it is given back,
# when it ends, when a run reports progress, and when a failed row is made due again.
CHANGES = ("row_taken", "row_started", "row_given_back", "marked", "progress", "row_cleared")
# The pieces of SQL of which a form is made, as they are in a form that leaves them out.
PIECES = {
    **dict.fromkeys(CHANGES, ""),
    **dict.fromkeys(("broken", "stale", "too_old"), "false"),
    "not_given_up": "true",
    "failed_rows": "«table»",
    "still_failed": "{row_failed}",
    "kept_mark": "NULL",
    "row_attempts": "failures",
    "row_max_attempts": "NULL",
    "held_budget": "NULL",
}


class Form:
    """One way in which a table says what is due and what is done, with defaults for most of it.

    Users write forms themselves (`Status(...)`), so that the names of their fields are not free here.
    """

    column: str  # says whether a row is due
    # By database: a pattern for its type, and that in words. The form is not for other databases.
    column_types: Mapping[str, tuple[str, str]]
    holds = False  # claims are written into the user's rows, and cleared there when they are given back
    has_broken = False  # rows may hold values that cannot be read
    shows_failures = False  # rows that have failed carry a mark, which `retry` takes away
    stale_after: float | None = None  # seconds until rows are due again that other programs left running
    deadline: float | None = None  # seconds until rows fail that were not begun after their `created_at`
    time_format: str | None = None  # how SQLite writes times; None: as the column has them

    @property
    @abstractmethod
    def columns(self) -> dict[str, str]:
        """The user's columns by their marks in the SQL; the first is `column`."""

    @property
    def words(self) -> dict[str, Word]:
        """The user's values for what a row can be, in the SQL as «due_word»."""
        return {}

    @property
    def keeps_failures(self) -> bool:
        """Whether failed rows are recorded in rowlock's own table."""
        return False

    @property
    def running_since(self) -> str | None:
        """The column from which `stale_after` counts."""
        return None

    @property
    def ages(self) -> bool:
        """Whether rows may become too old."""
        return self.stale_after is not None or self.deadline is not None

    @property
    def needed(self) -> list[tuple[str, str]]:
        """The columns that the form names, each with the option that names it: "status", "Status error"."""
        (option, column), *others = self.columns.items()
        return [(option, column), *((f"{option.capitalize()} {name}", other) for name, other in others)]

    @abstractmethod
    def pieces(self, table: DescribedTable) -> dict[str, str]:
        """The pieces of SQL that make up the form: due, markable, row_done, row_failed, and of `PIECES`."""

    @abstractmethod
    def mark_values(self, outcome: Outcome, failures: int) -> dict[str, Any] | None:
        """The values that are bound when a row ends; None: the outcome does not show in the row."""

    def progress_values(self, done: float, total: float | None) -> dict[str, Any]:
        """The values that are bound when a run reports progress."""
        return {}


def reason(error: str | None) -> str:
    """An error for the user's row: the line that names it, without the traceback."""
    return (headline(error) or "cancelled")[:_MAX_REASON]
