"""What travels through a relay's target: which claim of which database is to be begun.

Ids only. Whoever receives a message looks the claim up in the database, which alone says what is run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rowlock.errors import RowlockError
from rowlock.job import Claim, ClaimKey

JOBS = "job"  # the source of a message about a job; that of a row is its consumer's queue, "consumer:NAME"
_LARGEST, _LARGEST_CLAIM_OF_JOB = 2**63, 2**31  # as the databases have them


class TargetError(RowlockError):
    """A relay's target cannot be used now: it is unreachable, or it refuses to work."""


class BadMessage(RowlockError):
    """Something in the target that no relay of this database has sent."""


class Message(msgspec.Struct, frozen=True):
    """One claim that was handed over."""

    install: str  # the database's own id
    source: str
    row: str  # a job's id, or the key of a consumer's row; for people
    id: int
    claim: int

    @property
    def key(self) -> ClaimKey:
        """By which the store knows the claim."""
        return (self.id, self.claim)

    @property
    def title(self) -> str:
        """How it is called in log lines."""
        what = f"job {self.row}" if self.source == JOBS else f"{self.source}, row {self.row}"
        return f"{what}, claim {self.claim}"

    def arguments(self) -> list[Any]:
        """As it is sent: install, source, key and claim number."""
        return [self.install, self.source, self.row, self.claim]


def message_of(install: str, claim: Claim) -> Message:
    """The message about a claim."""
    if claim.row is not None:
        return Message(install, claim.queue, claim.unique_key or claim.row, claim.id, claim.claim)
    return Message(install, JOBS, str(claim.id), claim.id, claim.claim)


def received(install: str, arguments: Any) -> Message:
    """The message that was sent with these arguments; raises `BadMessage` for anything else."""
    match arguments:
        case [str(theirs), str(source), str(row), int(claim)] if 0 < claim < _LARGEST:
            pass
        case _:
            raise BadMessage("its arguments are not those of a relay")
    if theirs != install:
        raise BadMessage(f"it belongs to another database ({theirs[:32]!r}, this one is {install!r})")
    if source != JOBS:
        return Message(theirs, source, row, claim, claim)
    if not (row.isascii() and row.isdigit() and 0 < int(row[:19]) < _LARGEST):
        raise BadMessage(f"{row[:40]!r} is no job's id")
    if claim >= _LARGEST_CLAIM_OF_JOB:
        raise BadMessage(f"{claim} is no job's claim number")
    return Message(theirs, source, row, int(row[:19]), claim)
