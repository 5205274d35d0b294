"""An app beside a table of its user's: where tasks write rows of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rowlock import Rowlock
from tests.stores.steps import worker as register


class Bench:
    """An app, a table of its user's beside the queue, and how somebody else sees that table."""

    def __init__(self, app: Rowlock, table: str, read: Callable[[str], list[Any]], mark: str) -> None:
        self.app = app
        self.table = table
        self.read = read
        self.mark = mark  # how the driver writes a parameter

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.table} (word) VALUES ({self.mark})"

    def words(self) -> list[str]:
        return [row[0] for row in self.read(f"SELECT word FROM {self.table} ORDER BY word")]

    def work(self) -> Any:
        """Run what is due until nothing is left; returns the tally."""
        return self.app.worker(concurrency=1).run(until_empty=True)

    def lose_the_claim(self) -> None:
        """Somebody declares every worker dead, a long time from now, and takes its claims back."""
        later = time.time() + 1000.0
        rescuer = register(self.app.store, f"rescuer {later}", now=later)
        assert self.app.store.rescue(rescuer, careful_age=10.0, now=later).requeued == 1
