"""How long to wait: between looks at a job that has not ended, and between tries that fail.

Reads nothing by itself: whoever waits brings the job.
"""

from __future__ import annotations

import random
import time
from typing import Any

from rowlock.errors import JobCancelled, JobFailed
from rowlock.job import Job, State

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # seconds


class Waiting:
    """One wait; its pauses grow."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pause = _FIRST_PAUSE

    def pause(self, job: Job) -> float:
        """Seconds until the next look at a job that has not ended; raises TimeoutError at the deadline."""
        pause, self._pause = self._pause, min(self._pause * 1.5, _LONGEST_PAUSE)
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"job {job.id} ({job.task}) is still {job.state} after {self._timeout:g} s")
        return min(pause, left)


def result_of(job: Job) -> Any:
    """The result of a job that has ended; raises JobFailed or JobCancelled."""
    if job.state is State.FAILED:
        raise JobFailed(job)
    if job.state is State.CANCELLED:
        raise JobCancelled(job)
    return job.result


def backoff(tries: int, first: float, most: float) -> float:
    """Seconds until the next try, after so many that failed: it doubles, and spreads those who try."""
    return min(most, first * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - hides nothing
