"""The little that the verbs need of a database: run a named statement, read its rows, know the time.

Each database's folder implements it over its own driver; what can be built from `run` and `rows` is here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

S = TypeVar("S", bound="Session")


class Session(ABC):
    """An open transaction (or a short read) in which named statements are run."""

    # Sees in the database that this transaction was committed, should the answer to its COMMIT be lost.
    witness: Callable[[Session], bool] | None = None

    def __init__(self, statements: Mapping[str, str]) -> None:
        self._statements = statements

    @property
    @abstractmethod
    def now(self) -> float:
        """The store's clock."""

    @abstractmethod
    def run(self, name: str, /, **values: Any) -> int:
        """Run a statement; returns the number of rows it changed."""

    @abstractmethod
    def rows(self, name: str, /, **values: Any) -> list[Any]:
        """All rows of a statement."""

    @abstractmethod
    def take(self, statement: str, /, **values: Any) -> list[Any]:
        """The claims that a statement of `claim_sql` chooses, in any order, marked as running."""

    def each(self, name: str, /, values: Sequence[dict[str, Any]]) -> list[int]:
        """Run a statement once for each set of values; returns how many rows each of them changed."""
        return [self.run(name, **one) for one in values]

    def row(self, name: str, /, **values: Any) -> Any:
        """The first row, or None."""
        rows = self.rows(name, **values)
        return rows[0] if rows else None

    def using(self: S, statements: Mapping[str, str]) -> S:
        """The same transaction, at the same moment, with other statements: those of a package of its own."""
        other = copy(self)
        other._statements = statements
        return other


class FileSession(Session):
    """A session of a database in a file: the clocks are this machine's, and stand still for the session."""

    def __init__(self, statements: Mapping[str, str], now: float | None) -> None:
        super().__init__(statements)
        wall = time.time()
        self._now = wall if now is None else now
        # A given time moves both clocks by the same distance, so that tests can let leases run out.
        self._mono = time.monotonic() + (self._now - wall)

    @property
    def now(self) -> float:
        """The store's clock."""
        return self._now

    @abstractmethod
    def execute(self, statement: str, values: dict[str, Any]) -> Any:
        """Run a statement at this moment; returns what its rows are fetched from."""

    def take(self, statement: str, /, **values: Any) -> list[Any]:
        # Read, then mark each by its id: one `UPDATE ... WHERE id IN (SELECT ...) RETURNING` fills temporary
        # tables of SQLite's and took 160 us against 28. Whoever writes has the file for itself.
        rows: list[Any] = self.execute(statement, values).fetchall()
        if rows:
            ids = str([row[0] for row in rows])
            self.run("mark_taken", ids=ids, worker=values["worker"], begins=values["begins"])
        return rows
