"""How many jobs are in which state, for people and their scripts.

A scan of the finished ones: not for hot paths.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from rowlock.job import State
from rowlock.stores.sql.store import Store

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic, and so FastAPI, refuses the older `typing.TypedDict`; it comes with this one itself
    from typing_extensions import TypedDict


class Stats(TypedDict):
    """What `app.stats()` returns: jobs by state, in all and by queue, and how many workers live."""

    scheduled: int
    queued: int
    running: int
    completed: int
    failed: int
    cancelled: int
    queues: dict[str, dict[str, Any]]
    workers: int


def stats(store: Store) -> Stats:
    """Count the jobs by state and queue (a scan of the finished ones: for people, not for hot paths)."""
    queues = store.queues()
    counted = {
        **{state.value: sum(queue.counts[state] for queue in queues) for state in State},
        "queues": {
            queue.name: {**queue.counts, "paused": queue.paused, "strategy": queue.strategy}
            for queue in queues
        },
        "workers": sum(worker.alive for worker in store.workers()),
    }
    return cast("Stats", counted)
