"""What a table, and the settling of outcomes, ask of a form.

Nothing here knows a single form, or a database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rowlock.consumers import names
from rowlock.headline import headline
from rowlock.job import Outcome

_MAX_REASON = 2_000  # characters of an error that are kept in the user's own row
Word = str | int
Index = tuple[str, str, str]  # its name, the column in it, and the statement that is its condition
# The pieces of SQL of which a form is made; for those that it leaves out there is nothing to say.
PIECES = (
    *("due", "markable", "marked", "row_failed", "row_done", "row_cleared"),
    *("row_taken", "row_given_back", "progress", "not_given_up", "failed_rows"),
    *("row_attempts", "row_max_attempts", "held_budget"),
)
CONDITIONS = ("broken", "row_running", "stale", "too_old")  # never true if a form leaves them out


class TableTypes(Protocol):
    """The user's table, as far as a form looks at it."""

    @property
    def types(self) -> Mapping[str, str]:
        """The types of its columns, as the database describes them."""
        ...

    def stamp(self, column: str) -> tuple[str, str]:
        """What writes the current time into that column, and what asks whether it is older than :age."""
        ...

    def fitted(self, column: str, text: str) -> str:
        """What that column can hold of a text (given as SQL)."""
        ...

    def json_value(self, column: str, text: str) -> str:
        """A JSON text (given as SQL) as that column takes it, uncut."""
        ...


class TypeNames(Protocol):
    """What a database calls its types."""

    @property
    def state_type(self) -> Callable[[str], bool]:
        """Whether a column of this type can hold a JSON object."""
        ...

    @property
    def wanted_state(self) -> str:
        """That type, for people."""
        ...

    @property
    def flag_type(self) -> Callable[[str], bool]:
        """Whether a column of this type can be a flag."""
        ...

    @property
    def wanted_flag(self) -> str:
        """That type, for people."""
        ...

    @property
    def boolean(self) -> Callable[[str], bool]:
        """Whether this type is for true and false."""
        ...


class Form(Protocol):
    """One way in which a table says what is due and what is done."""

    column: str  # the one that says whether a row is due
    holds: bool  # a claim shows in the user's row, and has to be taken back there
    has_broken: bool  # rows may hold what cannot be read
    keeps_failures: bool  # which rows have failed is known by rowlock's own table
    shows_failures: bool  # rows that have failed carry a mark, which `retry` takes away
    stale_after: float | None  # seconds after which rows that others left running are due again
    reads_attempts: bool  # how often a row was tried is read in the row
    reads_budget: bool  # and so is how often it may be tried
    time_format: str | None  # how SQLite writes times; None: as the column has them
    deadline: float | None  # seconds after which rows that nobody began fail

    def __str__(self) -> str:
        """The form as the user has written it."""
        ...

    def needed(self) -> list[tuple[str, str]]:
        """The columns that it names, each with the option that does so."""
        ...

    def refusal(self, types: Mapping[str, str], known: TypeNames) -> str | None:
        """Why columns of these types are not what the form needs; None: they are."""
        ...

    def distinct_words(self) -> dict[str, Word]:
        """Words that have to be different values in its column, each with how the user has written it."""
        ...

    def words(self, table: TableTypes) -> dict[str, str]:
        """The pieces of SQL that make up the form; see `PIECES` and `CONDITIONS`."""
        ...

    def theirs(self) -> dict[str, str]:
        """The user's names in those pieces, quoted."""
        ...

    def indexes(self, consumer: str, table: str, key: str) -> list[Index]:
        """Indexes that it needs beside those of what is due and what has failed."""
        ...

    def always(self) -> dict[str, Any]:
        """What is bound in every statement."""
        ...

    def mark(self, outcome: Outcome, failures: int) -> dict[str, Any] | None:
        """What is bound when a row is done with; None: that does not show in the row."""
        ...

    def progress(self, done: float, total: float | None) -> dict[str, Any]:
        """What is bound when a run says how far it has come."""
        ...


def ages(form: Form) -> bool:
    """Whether rows may become too old."""
    return form.stale_after is not None or form.deadline is not None


def pieces(form: Form, table: TableTypes) -> dict[str, str]:
    """The form's pieces of SQL, and something for each that it leaves out."""
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
    """An error for the user's row: the line that names it, without the way there."""
    return (headline(error) or "cancelled")[:_MAX_REASON]


def literal(word: Word) -> str:
    """A word as SQL, for where nothing can be bound."""
    return names.literal(word) if isinstance(word, str) else str(word)
