"""What a relay asks of its target; nothing here knows one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from rowlock.job import Claim, ClaimKey


class Target(Protocol):
    """Another engine that carries ids to workers. What it cannot do raises `TargetError`."""

    name: str

    def check(self) -> None:
        """Raise if it cannot be used now."""
        ...

    def waiting(self, name: str) -> int:
        """How many claims of this queue wait there and have not been taken by anybody."""
        ...

    def send(self, claims: Sequence[Claim]) -> None:
        """Hand these over, all of one queue, in this order."""
        ...

    def kept(self, names: Collection[str]) -> set[ClaimKey]:
        """The claims of these queues that still wait there; tidies away what dead workers left behind."""
        ...

    def remove(self, claims: Sequence[Claim]) -> None:
        """Forget about these: they were taken back."""
        ...

    def close(self) -> None:
        """Close what it has open; it opens again what it is used for afterwards."""
        ...
