"""The little that the verbs need of a database: run a named statement, read its rows, know the time.

Each database's folder implements it over its own driver; what can be built from `run` and `rows` is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Session(Protocol):
    """An open transaction (or a short read) in which named statements are run."""

    @property
    def now(self) -> float:
        """The store's clock."""
        ...

    def run(self, name: str, /, **values: Any) -> int:
        """Run a statement; returns the number of rows it changed."""
        ...

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        """All rows of a statement."""
        ...

    def each(self, name: str, /, values: Sequence[dict[str, Any]]) -> None:
        """Run a statement once for each set of values, in one round trip where there are any."""
        self.count_each(name, values)

    def count_each(self, name: str, /, values: Sequence[dict[str, Any]]) -> list[int]:
        """The same; returns how many rows each of them changed."""
        return [self.run(name, **one) for one in values]

    def take(self, statement: str, /, **values: Any) -> list[Any]:
        """The claims that a statement of `claim_sql` chooses, in any order, marked as running."""
        ...

    def row(self, name: str, /, **values: Any) -> Any:
        """The first row, or None."""
        rows = self.rows(name, **values)
        return rows[0] if rows else None

    def using(self, statements: Mapping[str, str]) -> Session:
        """The same transaction with other statements: those of a package that has its own."""
        ...
