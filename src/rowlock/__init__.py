"""rowlock: a durable job queue in the database you already run."""

from rowlock._version import __version__
from rowlock.app import Rowlock
from rowlock.consumers.forms import Flag, Status
from rowlock.errors import (
    CancelRequested,
    ClaimLost,
    ConfigurationError,
    Fail,
    InvalidPayload,
    JobCancelled,
    JobFailed,
    JobNotFound,
    RetryLater,
    RowlockError,
    StoreBusy,
    StoreError,
    UnknownTask,
    WrongState,
)
from rowlock.execution.context import JobContext, JobLogFilter
from rowlock.job import Claim, Ending, HistoryEntry, Job, JobList, LogEntry, Outcome, Progress, State
from rowlock.resident import resident
from rowlock.retry import Retry
from rowlock.strategies import Key, Strategy, Weight, get_strategy, register
from rowlock.task import Task
from rowlock.worker.poller import Poller

__all__ = [
    "CancelRequested",
    "Claim",
    "ClaimLost",
    "ConfigurationError",
    "Ending",
    "Fail",
    "Flag",
    "HistoryEntry",
    "InvalidPayload",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobList",
    "JobLogFilter",
    "JobNotFound",
    "Key",
    "LogEntry",
    "Outcome",
    "Poller",
    "Progress",
    "Retry",
    "RetryLater",
    "Rowlock",
    "RowlockError",
    "State",
    "Status",
    "StoreBusy",
    "StoreError",
    "Strategy",
    "Task",
    "UnknownTask",
    "Weight",
    "WrongState",
    "__version__",
    "get_strategy",
    "register",
    "resident",
]
