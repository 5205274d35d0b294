"""What the worker and its child processes say to each other: small records, as MessagePack, over pipes.

Nothing is pickled; arguments and results stay the JSON text that they are in the store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rowlock.job import Claim, Outcome, Report

# A run is named by its number: each place counts what it hands to its children, and never goes back.


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a child has to know before it can run anything."""

    app: str  # module:attribute, which may have dots
    consumer: str | None = None  # it runs the rows of this consumer, not jobs
    tasks: list[str]  # those that run here
    database: str
    home: str  # the folder that the app was made in, for relative paths
    folder: str
    parent: int
    together: float  # seconds that outcomes may wait for those of the next runs
    levels: dict[str, int]  # of the loggers


# -- to the child --------------------------------------------------------------------------------


class Jobs(msgspec.Struct, tag=True, frozen=True):
    """Run these, one after the other; the first has this number."""

    first: int
    claims: list[Claim]


class Tell(msgspec.Struct, tag=True, frozen=True):
    """This run was cancelled, or its claim was lost."""

    number: int
    lost: bool


class Where(msgspec.Struct, tag=True, frozen=True):
    """Say where you stand."""


class Unwritten(msgspec.Struct, tag=True, frozen=True):
    """What the run has said and nobody has written yet; it has it back."""

    number: int
    report: Report | None


class Leave(msgspec.Struct, tag=True, frozen=True):
    """End in good order; nothing more will come."""


# -- to the parent -------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The app is imported, and its residents are loaded: in so many seconds each."""

    residents: dict[str, float]


class Broken(msgspec.Struct, tag=True, frozen=True):
    """This child cannot run anything."""

    reason: str
    trace: str


class Ended(msgspec.Struct, frozen=True):
    """What one run came to, and what it said last."""

    number: int
    outcome: Outcome
    report: Report | None = None


class HandIn(msgspec.Struct, tag=True, frozen=True):
    """Runs that have ended."""

    ended: list[Ended]


class Said(msgspec.Struct, tag=True, frozen=True):
    """What a run has said since the last time."""

    number: int
    report: Report


class Hush(msgspec.Struct, tag=True, frozen=True):
    """A run opens its transaction: it wants back what is not written yet, to commit it itself."""

    number: int


class Stack(msgspec.Struct, tag=True, frozen=True):
    """Where a run stands."""

    number: int
    text: str


class Logged(msgspec.Struct, tag=True, frozen=True):
    """A log record, and the run that it belongs to."""

    number: int | None
    record: dict[str, Any]


ToChild = Jobs | Tell | Where | Unwritten | Leave
ToParent = Ready | Broken | HandIn | Said | Hush | Stack | Logged

encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
for_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
for_parent: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)
