"""The plain data that travels through rowlock: jobs, claims, outcomes.

Frozen records; no SQL, no threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.errors import JobNotFound
from rowlock.monitoring import Minute
from rowlock.record import Record

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

EVERY_TASK = "*"  # among the tasks of a worker: it takes whatever there is
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST, _LAST = datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)


def utc(seconds: float) -> datetime:
    """Unix seconds as an aware datetime, whatever they are."""
    try:  # `fromtimestamp` refuses negative ones on Windows, and those far ahead everywhere
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:  # one odd row must not hide a whole page
        return _FIRST if seconds < 0 else _LAST


class State(str, Enum):
    """The states of a job; see the diagram in docs/states.md."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    __str__ = str.__str__

    @property
    def final(self) -> bool:
        """True for the states that only an operator's `retry` leaves."""
        return self in _FINAL


_FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class Progress(Record, frozen=True):
    """How far a run has come, as it last said itself."""

    done: float
    total: float | None = None
    note: str = ""

    def __iter__(self) -> Iterator[float | str | None]:
        """So that `done, total, note = job.progress` works."""
        return iter((self.done, self.total, self.note))


class Job(Record, frozen=True, kw_only=True):
    """One row of the queue: this task with these arguments, and what became of it."""

    id: int
    task: str
    queue: str
    args: dict[str, Any]
    priority: int
    state: State
    claim: int
    failures: int
    max_attempts: int | None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None = None
    claimed_by: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    progress: Progress | None = None
    result: Any = None
    error: str | None = None
    error_kind: str | None = None
    unique_key: str | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    is_new: bool = True

    @property
    def cancelling(self) -> bool:
        """True while a cancel was asked for and the run has not ended yet."""
        return self.state is State.RUNNING and self.cancel_requested_at is not None


class JobList(list[Job]):
    """A page of jobs, newest first; `cursor` asks for the next page (None: there is none)."""

    def __init__(self, jobs: Sequence[Job] = (), cursor: str | None = None) -> None:
        super().__init__(jobs)
        self.cursor = cursor

    def to_dict(self) -> dict[str, Any]:
        """The page as JSON types: its `jobs`, and the `cursor` for the next one."""
        return {"jobs": [job.to_dict() for job in self], "cursor": self.cursor}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """For pydantic, and so for FastAPI, it is a list of jobs."""
        return handler.generate_schema(list[Job])


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a producer hands to the store: arguments are JSON already."""

    task: str
    queue: str = "default"
    args: str = "{}"
    priority: int = 0
    max_attempts: int | None = 3
    delay: float | None = None
    run_at: float | None = None
    expires: float | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    meta: str | None = None

    @property
    def is_plain(self) -> bool:
        """True if it has nothing but what every job has."""
        return self.unique_key is None and self.expires is None and self.meta is None

    def placed(self, now: float) -> tuple[State, float, float | None]:
        """Its first state, when it is due, and its deadline to start, if it is enqueued at `now`."""
        due = self.run_at if self.run_at is not None else now + (self.delay or 0.0)
        deadline = None if self.expires is None else max(now, due) + self.expires
        return (State.SCHEDULED if due > now else State.QUEUED), due, deadline


class Inserted(msgspec.Struct, frozen=True, gc=False):
    """What the store answers: the id, when, and whether it is a new row or the holder of the unique key."""

    id: int
    is_new: bool
    now: float


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A job taken by one worker, under one claim number: all that is needed to run it."""

    # Up to `position` in the order of CLAIM_COLUMNS, in which the databases give them.
    id: int
    claim: int
    task: str
    queue: str
    args_json: str
    priority: int
    failures: int
    max_attempts: int | None
    created: float
    due: float
    taken: float
    claimed_by: str
    deadline: float | None = None
    unique_key: str | None = None
    meta_json: str | None = None
    isolate: int = 0
    position: int = 0  # in the order in which jobs came into their queue
    claimed_before: bool = False  # and may have killed the worker that had it
    row: str | None = None  # a consumer's: the key of the user's row; then `id` is only the claim number

    # Most claims are never asked for these, so they are made when asked: a job of 10 us must not pay.

    @property
    def title(self) -> str:
        """How it is called in log lines."""
        return _title(self.id, self.task, self.row)

    @property
    def args(self) -> dict[str, Any]:
        """The arguments, as plain JSON values."""
        decoded: dict[str, Any] = msgspec.json.decode(self.args_json)
        return decoded

    @property
    def meta(self) -> dict[str, Any]:
        """The job's headers."""
        decoded: dict[str, Any] = msgspec.json.decode(self.meta_json) if self.meta_json else {}
        return decoded

    def ended(self, ending: Ending, **values: Any) -> Outcome:
        """What this claim came to."""
        return Outcome(
            id=self.id,
            claim=self.claim,
            ending=ending,
            queue=self.queue,
            task=self.task,
            started=self.taken,
            row=self.row,
            **values,
        )

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued."""
        return utc(self.created)

    @property
    def run_at(self) -> datetime:
        """When the job was due."""
        return utc(self.due)

    @property
    def claimed_at(self) -> datetime:
        """When it was claimed."""
        return utc(self.taken)

    @property
    def expires_at(self) -> datetime | None:
        """Its deadline to start."""
        return None if self.deadline is None else utc(self.deadline)


def _title(id: int, task: str, row: str | None) -> str:
    return f"job {id} ({task})" if row is None else f"consumer {task}, row {row}"


class Ending(str, Enum):
    """What a run came to."""

    COMPLETED = "completed"
    RETRY = "retry"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"

    __str__ = str.__str__


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a claim ended; `delay` counts from the moment at which the store writes it."""

    id: int
    claim: int
    ending: Ending
    result: str | None = None
    error: str | None = None
    error_kind: str | None = None
    delay: float | None = None
    charge: int = 0  # attempts
    isolate: int = 0  # its worker died: for so many seconds it runs without company next time
    queue: str = ""
    task: str = ""
    started: float | None = None
    run_seconds: float | None = None  # None: it had not begun, or nobody measured it
    wait_seconds: float = 0.0
    row: str | None = None  # as in the claim
    pause: bool = False  # for as long as its delay, nothing of its queue is to be claimed
    unless_known: bool = False  # the delay is only for a task that no other living worker knows
    single: bool = False  # of one row of a batch
    not_begun: bool = False  # of a claim that was handed over: refused if somebody has begun it meanwhile
    written: bool = False  # by the task's own transaction; only to be counted
    lost: bool = False  # and refused by the fence, with all that the task wrote
    rescued: bool = False  # its worker died, and somebody else has decided

    @property
    def is_usual(self) -> bool:
        """True for a first-try completion: it leaves no history, and as of a job it pauses nothing."""
        return self.ending is Ending.COMPLETED and self.claim == 1

    @property
    def title(self) -> str:
        """How what it ended is called in log lines."""
        return _title(self.id, self.task, self.row)


KEPT_LOG_LINES = 500  # per job; older ones go


class LogLine(msgspec.Struct, frozen=True):
    """One `ctx.log(...)` call."""

    at: float
    message: str
    fields: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run said about itself since the last report: its latest progress and new log lines."""

    id: int
    claim: int
    title: str = ""  # of its claim; log lines of a row are not stored but logged with it
    progress: Progress | None = None
    lines: Sequence[LogLine] = ()


ClaimKey = tuple[int, int]  # a job and its claim number; of a consumer's row, the claim number twice


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for: how many jobs, from which queues (none named: all), in which order."""

    count: int
    strategy: str = "PRIORITY"
    queues: tuple[str, ...] = ()
    after: str = ""
    may_isolate: bool = True  # whether one that has to run alone may come
    unknown: tuple[str, ...] = ()  # tasks whose jobs are left to other workers


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker writes and asks for: outcomes are written and claims taken in one transaction."""

    worker: str
    outcomes: Sequence[Outcome] = ()
    request: ClaimRequest | None = None
    reports: Sequence[Report] = ()
    minutes: Sequence[Minute] = ()
    now: float | None = None
    resent: bool = False  # these outcomes may have been written already: the last answer was lost
    hand_over: bool = False  # what is claimed has not begun: others are to begin it
    start: ClaimKey | None = None  # in place of a request: a claim that was handed over, to be begun,
    start_queues: tuple[str, ...] = ()  # if it is of these queues (none named: of any)
    needs_transaction: bool = False  # one statement was tried, and could not do it

    @property
    def writes(self) -> bool:
        """True if there is something to write, whatever is claimed."""
        return bool(self.outcomes or self.reports or self.minutes)

    def claims_only(self) -> Exchange:
        """The same without anything to write."""
        return msgspec.structs.replace(self, outcomes=(), reports=(), minutes=(), resent=False)


class ExchangeResult(msgspec.Struct, frozen=True):
    """The store's answer to an exchange: new claims, and which outcomes came too late."""

    claims: list[Claim] = []
    lost: list[Outcome] = []
    refused: list[Outcome] = []  # by the database: as the failures that they have become
    unwritable: list[ClaimKey] = []  # claims that stay as they are: the database refuses their failure, too
    was_split: bool = False  # something was refused, and the rest was written by itself
    look_again_in: float = math.inf  # seconds; another claim may find more then, though nobody tells

    @property
    def last_queue(self) -> str:
        """The queue after which the next claim begins its turn; empty if nothing was claimed."""
        return self.claims[-1].queue if self.claims else ""


class HistoryEntry(Record, frozen=True, kw_only=True):
    """One claim that did not end as a first-try completion, or an operator's act."""

    claim: int
    event: str
    at: datetime
    worker: str | None = None
    started_at: datetime | None = None
    error: str | None = None
    error_kind: str | None = None


class LogEntry(Record, frozen=True, kw_only=True):
    """A kept log line, as it is read back."""

    claim: int
    at: datetime
    message: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


def id_of(job: int | Job) -> int:
    """The id of a job that is given by its id or as itself; raises for what cannot be one."""
    if isinstance(job, Job):
        return job.id
    if isinstance(job, bool) or not isinstance(job, int):
        raise TypeError(f"a job's id is a whole number, not {job!r}")
    if not 0 < job < 2**63:
        raise JobNotFound(f"there is no job {job}")
    return job
