"""What is told about workers and queues: for front ends, for probes, and what was done per minute.

Plain data, as the store reads and writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from rowlock.record import Record


class WorkerRecord(Record, frozen=True, kw_only=True):
    """One incarnation of a worker, as its row tells it."""

    id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    tasks: dict[str, Any]
    strategy: str
    concurrency: int
    started_at: datetime
    beat_at: datetime
    beat_age: float
    lease: float
    dead_at: datetime | None = None
    ended: str | None = None
    running: int = 0
    info: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """True while its claims are honoured."""
        return self.dead_at is None and 0 <= self.beat_age <= self.lease

    @property
    def is_relay(self) -> bool:
        """True if it runs nothing itself, but hands its claims to other workers."""
        return "relay" in self.info


class QueueRecord(Record, frozen=True, kw_only=True):
    """One queue: its settings, and how many of its jobs are in which state."""

    name: str
    paused: bool = False
    paused_until: datetime | None = None  # None: until somebody resumes it
    strategy: str | None = None
    counts: Mapping[str, int] = {}
    oldest_due: datetime | None = None


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe wants to know of a queue, without counting anything."""

    workers: list[tuple[str, ...]]  # for each that lives, but relays, the queues it serves; none named: all
    waiting: dict[str, float]  # by queue: for how many seconds its oldest due job has waited
    paused: frozenset[str]
    handed_over: dict[str, float] = {}  # the same of its oldest due job that no worker has begun


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker did for one queue and task in one minute."""

    minute: int
    worker: str
    queue: str
    task: str
    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    released: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
