"""What an adapter offers: enqueue one job durably, run all that wait one by one, and say what differs."""

from __future__ import annotations

from typing import Protocol


class Peer(Protocol):
    """Another queue in a SQLite file."""

    durability: str
    difference: str

    def enqueue(self, a: int, b: int) -> None:
        """Enqueue `add(a, b)`."""
        ...

    def drain(self) -> int:
        """Run every job that waits, one after another, in this thread; returns how many."""
        ...

    def close(self) -> None:
        """Close its file."""
        ...
