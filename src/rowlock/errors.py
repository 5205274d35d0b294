"""Every error that rowlock raises, in one place.

Says what happened and what to do next; holds no logic.
"""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING

from rowlock.error_text import headline

if TYPE_CHECKING:
    from rowlock.job import Job

LONGEST = 100 * 365 * 86_400.0  # seconds; what lies further ahead is a mistake


class RowlockError(Exception):
    """The base of all of rowlock's own errors."""


# -- what a caller got wrong ---------------------------------------------------------------------


class ConfigurationError(RowlockError, ValueError):
    """A setting, URL, option or name that rowlock cannot work with."""


class UnknownTask(RowlockError, LookupError):
    """No task of that name is registered."""


class JobNotFound(RowlockError, LookupError):
    """No job has that id (it may have been pruned)."""


class WrongState(RowlockError, ValueError):
    """The job is in a state in which this cannot be done."""


class InvalidPayload(RowlockError, ValueError, TypeError):
    """A value that JSON cannot hold, or that is larger than the limit."""


# -- what became of a job ------------------------------------------------------------------------


class JobFailed(RowlockError):
    """Raised by `app.result` when the job ended `failed`."""

    def __init__(self, job: Job) -> None:
        reason = headline(job.error) or "no reason recorded"
        super().__init__(f"job {job.id} ({job.task}) failed: {reason}")
        self.job = job


class JobCancelled(RowlockError):
    """Raised by `app.result` when the job ended `cancelled`."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"job {job.id} ({job.task}) was cancelled")
        self.job = job


# -- what a task raises to steer its own job -----------------------------------------------------


class RetryLater(RowlockError):
    """Raise it in a task to run again after `seconds`, without using up an attempt.

    With `pause=True` nothing else of its queue (or consumer) is claimed for as long, by any worker.
    """

    def __init__(self, seconds: float, reason: str = "", *, pause: bool = False) -> None:
        if not isinstance(seconds, Number) or not 0 <= seconds <= LONGEST:
            raise ValueError(f"RetryLater(seconds={seconds!r}): must be seconds from 0 to 100 years")
        super().__init__(reason or f"asked to run again in {seconds:g} s")
        self.seconds = float(seconds)
        self.pause = bool(pause)


class Fail(RowlockError):
    """Raise it in a task to end its job as `failed` at once, whatever is left of its budget."""


# -- what the context raises inside a task; these end the run and are not for catching -----------
# (No `Exception`s: a task's own `except Exception` lets them by.)


class CancelRequested(BaseException):
    """Somebody cancelled this job while it ran."""


class RunTimedOut(BaseException):
    """The run is over its task's `timeout`."""


class ClaimLost(BaseException):
    """Another worker may hold this job by now: nothing this run writes will be kept."""


# -- what the store could not do -----------------------------------------------------------------


class StoreError(RowlockError):
    """The database refused or failed; the message says why and what helps."""


class StoreBusy(StoreError):
    """Another connection held the write lock for longer than the busy timeout."""

    own_transaction: object = None  # one that this process has open on the file, and may be waiting for


class StoreMissing(StoreError):
    """There is no queue at that address, and this call does not create one."""


class StoreUnusable(StoreError):
    """Read-only, full, corrupt, or not a database: somebody has to do something about it."""


class StoreClosed(StoreUnusable):
    """The connection or engine that the app was given is closed for good: it has to be made anew."""


class DiskTrouble(StoreUnusable):
    """The disk is full, read-only or failing: the same call works again once that has been put right."""


class StoreMoved(StoreError):
    """`rowlock copy` has moved this queue to another database; the message says to which."""


class StoreUnreachable(StoreError):
    """The server is down, or the way to it is broken; it may come back by itself."""


class OutcomeUnknown(StoreUnreachable):
    """The connection was lost before the database said whether it had committed."""


class DataRefused(StoreError):
    """The database refused what was to be written (a length, a constraint, a trigger): nothing of it was."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said  # by the database, in its own words


# What passes, or is put right, while a program runs on: a worker waits for it, also before its first claim.
TRANSIENT = (StoreBusy, StoreUnreachable, DiskTrouble)


class SchemaMismatch(StoreError):
    """The queue's tables are of a version that this code cannot use."""


class WorkerGone(StoreError):
    """This worker was declared dead: its claims belong to others now; it has to register anew."""
