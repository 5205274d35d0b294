"""What a worker can be told when it is made: types, and defaults that the command line shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

STOP_GRACE = 25.0  # seconds that runs may take to end after SIGTERM; most supervisors kill after 30
TIMEOUT_GRACE = 2.0  # seconds after its timeout that a run may take to notice; a child process is killed then


class ConsumingOptions(TypedDict, total=False):
    """Options of a worker for a consumer; None stands for the default."""

    strategy: str  # the order of claiming; of rows FIFO (as `order_by` says) or LIFO (backwards)
    concurrency: int | None  # runs at once: 4 threads or processes, or 1,000 coroutines
    pool: str  # thread, process or async
    poll_interval: float | None  # seconds
    worker_id: str | None
    grace: float | None  # seconds that runs may take to end after a stop
    prefetch: int | None  # how many jobs may be claimed ahead
    max_jobs_per_child: int | None  # after so many a process of the pool is replaced


class WorkerOptions(ConsumingOptions, total=False):
    """Options of a worker for jobs."""

    queues: Sequence[str]  # none named: all
