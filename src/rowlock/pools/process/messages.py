"""The messages between the worker and its child processes: small records, as MessagePack, over pipes.

Nothing is pickled; arguments and results stay the JSON text that they are in the store. A child has one run
at a time and its pipe keeps the order, so that a message need not say which run it is about.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rowlock.job import Claim, Outcome, Report


class ChildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a child has to know before it can run anything."""

    app: str  # module:attribute, which may have dots
    consumer: str | None = None  # it runs the rows of this consumer, not jobs
    tasks: list[str]  # those that run here
    database: str
    home: str  # the folder that the app was made in, for relative paths
    folder: str
    parent: int
    levels: dict[str, int]  # of the loggers


# -- to the child --------------------------------------------------------------------------------


class RunJob(msgspec.Struct, tag=True, frozen=True):
    """Run this."""

    claim: Claim


class ClaimChanged(msgspec.Struct, tag=True, frozen=True):
    """The run was cancelled, or its claim was lost."""

    lost: bool


class AskStack(msgspec.Struct, tag=True, frozen=True):
    """Send the stack of the run."""


class UnwrittenReport(msgspec.Struct, tag=True, frozen=True):
    """The run's report that nobody has written yet, given back to it."""

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
    trace: str = ""


class RunEnded(msgspec.Struct, tag=True, frozen=True):
    """What the run came to; its last report went before."""

    outcome: Outcome


class Reported(msgspec.Struct, tag=True, frozen=True):
    """The run's progress and log lines since the last report."""

    report: Report


class AskUnwrittenReport(msgspec.Struct, tag=True, frozen=True):
    """The run opens its transaction: it asks for its unwritten report, to commit it itself."""


class StackReply(msgspec.Struct, tag=True, frozen=True):
    """The stack of the run."""

    text: str


class LogRecord(msgspec.Struct, tag=True, frozen=True):
    """A log record, and whether it belongs to the run."""

    of_run: bool
    record: dict[str, Any]


ToChild = RunJob | ClaimChanged | AskStack | UnwrittenReport | Shutdown
ToParent = Ready | StartFailed | RunEnded | Reported | AskUnwrittenReport | StackReply | LogRecord

encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
for_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
for_parent: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)
