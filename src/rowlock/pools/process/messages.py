"""The messages between the worker and its child processes: small records, as MessagePack, over pipes.

Nothing is pickled; arguments and results stay the JSON text that they are in the store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rowlock.job import Claim, Outcome, Report

# A run is named by its number: each supervisor counts what it sends to its children, and never goes back.


class ChildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a child has to know before it can run anything."""

    app: str  # module:attribute, which may have dots
    consumer: str | None = None  # it runs the rows of this consumer, not jobs
    tasks: list[str]  # those that run here
    database: str
    home: str  # the folder that the app was made in, for relative paths
    folder: str
    parent: int
    send_interval: float  # seconds that outcomes may wait for those of the next runs
    levels: dict[str, int]  # of the loggers


# -- to the child --------------------------------------------------------------------------------


class RunJobs(msgspec.Struct, tag=True, frozen=True):
    """Run these, one after the other; the first has this number."""

    first: int
    claims: list[Claim]


class ClaimChanged(msgspec.Struct, tag=True, frozen=True):
    """This run was cancelled, or its claim was lost."""

    number: int
    lost: bool


class AskStack(msgspec.Struct, tag=True, frozen=True):
    """Send the stack of the current run."""


class UnwrittenReport(msgspec.Struct, tag=True, frozen=True):
    """The run's report that nobody has written yet, given back to it."""

    number: int
    report: Report | None


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """End in good order; nothing more will come."""


# -- to the parent -------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The app is imported, and its residents are loaded: in so many seconds each."""

    residents: dict[str, float]


class StartFailed(msgspec.Struct, tag=True, frozen=True):
    """This child cannot run anything."""

    reason: str
    trace: str


class EndedRun(msgspec.Struct, frozen=True):
    """What one run came to, and its last report."""

    number: int
    outcome: Outcome
    report: Report | None = None


class RunsEnded(msgspec.Struct, tag=True, frozen=True):
    """Runs that have ended."""

    ended: list[EndedRun]


class Reported(msgspec.Struct, tag=True, frozen=True):
    """A run's progress and log lines since the last report."""

    number: int
    report: Report


class AskUnwrittenReport(msgspec.Struct, tag=True, frozen=True):
    """A run opens its transaction: it asks for its unwritten report, to commit it itself."""

    number: int


class StackReply(msgspec.Struct, tag=True, frozen=True):
    """The stack of a run."""

    number: int
    text: str


class LogRecord(msgspec.Struct, tag=True, frozen=True):
    """A log record, and the run that it belongs to."""

    number: int | None
    record: dict[str, Any]


ToChild = RunJobs | ClaimChanged | AskStack | UnwrittenReport | Shutdown
ToParent = Ready | StartFailed | RunsEnded | Reported | AskUnwrittenReport | StackReply | LogRecord

encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
for_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
for_parent: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)
