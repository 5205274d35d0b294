"""What `TableSql`, claiming and settling need of a form: the base class.

It knows no form of its own, and no database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rowlock.consumers import names
from rowlock.error_text import headline
from rowlock.job import Outcome

if TYPE_CHECKING:
    from rowlock.consumers.columns import Columns
    from rowlock.consumers.dialects import Dialect

_MAX_REASON = 2_000  # characters of an error that are kept in the user's own row
Word = str | int
Index = tuple[str, str, str]  # its name, the column in it, and the statement that is its condition
# The pieces of SQL of which a form is made; one that a form leaves out is empty.
PIECES = (
    *("due", "markable", "marked", "row_failed", "row_done", "row_cleared"),
    *("row_taken", "row_handed_over", "row_started", "row_given_back", "progress", "not_given_up"),
    *("failed_rows", "row_attempts", "row_max_attempts", "held_budget"),
)
CONDITIONS = ("broken", "row_running", "stale", "too_old")  # never true if a form leaves them out


class Form(ABC):
    """One way in which a table says what is due and what is done, with defaults for most of it."""

    column: str  # the one that says whether a row is due
    holds = False  # claims are written into the user's rows, and cleared there when they are given back
    has_broken = False  # rows may hold values that cannot be read
    keeps_failures = False  # failed rows are recorded in rowlock's own table
    shows_failures = False  # rows that have failed carry a mark, which `retry` takes away
    stale_after: float | None = None  # seconds until rows are due again that other programs left running
    reads_attempts = False  # the number of attempts is read from the user's row
    time_format: str | None = None  # how SQLite writes times; None: as the column has them
    deadline: float | None = None  # seconds until rows fail that were not begun
    created_at: str | None = None  # the column that says when a row was made

    @abstractmethod
    def __str__(self) -> str:
        """The form as the user has written it."""

    @abstractmethod
    def needed(self) -> list[tuple[str, str]]:
        """The columns that the form names, each with the option that names it."""

    @abstractmethod
    def refusal(self, types: Mapping[str, str], known: Dialect) -> str | None:
        """Why the form cannot use columns of these types; None: it can."""

    def distinct_words(self) -> dict[str, Word]:
        """Words that have to be different values in its column, each with how the user has written it."""
        return {}

    @abstractmethod
    def words(self, table: Columns) -> dict[str, str]:
        """The pieces of SQL that make up the form; see `PIECES` and `CONDITIONS`."""

    @abstractmethod
    def theirs(self) -> dict[str, str]:
        """The user's names in those pieces, quoted."""

    def indexes(self, consumer: str, table: str, key: str) -> list[Index]:
        """Indexes that the form needs beside those of due and failed rows."""
        return []

    def always(self) -> dict[str, Any]:
        """The values that are bound in every statement."""
        return {}

    @abstractmethod
    def mark(self, outcome: Outcome, failures: int) -> dict[str, Any] | None:
        """The values that are bound when a row ends; None: the outcome does not show in the row."""

    def progress(self, done: float, total: float | None) -> dict[str, Any]:
        """The values that are bound when a run reports progress."""
        return {}


def ages(form: Form) -> bool:
    """Whether rows may become too old."""
    return form.stale_after is not None or form.deadline is not None


def pieces(form: Form, table: Columns) -> dict[str, str]:
    """The form's pieces of SQL, and a default for each that it leaves out."""
    nothing = dict.fromkeys(PIECES, "") | dict.fromkeys(CONDITIONS, "false")
    return {
        **nothing,
        "not_given_up": "true",
        "failed_rows": "«table»",
        "row_max_attempts": "NULL",
        "held_budget": "NULL",
        **form.words(table),
    }


def reason(error: str | None) -> str:
    """An error for the user's row: the line that names it, without the traceback."""
    return (headline(error) or "cancelled")[:_MAX_REASON]


def literal(word: Word) -> str:
    """A word as SQL, for conditions of indexes, where no value can be bound."""
    return names.literal(word) if isinstance(word, str) else str(word)
