"""What the other rooms give to a store and get from it, beside jobs and claims; and how a poller is woken.

The store itself is in `sql/store.py`.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import msgspec

from rowlock.errors import StoreError
from rowlock.stores.source import Retention as Retention

# The thread for whose code another one opens a connection: if that thread forks, it cannot wait for its end.
on_behalf_of: ContextVar[int | None] = ContextVar("rowlock_on_behalf_of", default=None)
in_pool_child = False  # this process is a child of a process pool: its parent alone may open a DuckDB file


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells about itself when it registers."""

    id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    tasks: dict[str, Any]
    strategy: str
    concurrency: int
    lease: float


class Rescue(msgspec.Struct, frozen=True):
    """What a rescue did: which workers were silent, and what became of their claims."""

    workers: list[str] = []
    requeued: int = 0
    failed: int = 0
    cancelled: int = 0
    waited: bool = False


Bell = queue.SimpleQueue[None]  # what ends a wait at once; its `put` is safe in a signal handler


def rung(bell: Bell, seconds: float) -> bool:
    """Wait until the bell rings; False if time is up before that."""
    try:
        bell.get(timeout=seconds)
    except queue.Empty:
        return False
    return True


class Wake:
    """How one poller learns between polls that there may be work; only a hint. By itself, by the bell."""

    @property
    def alive(self) -> bool:
        """True while a hint would arrive, so that polls may become rare."""
        return True

    def before_claim(self, idle: bool) -> None:
        """Called before every claim; `idle` if the last one found nothing."""

    def claimed(self, leaves_some: bool) -> None:
        """Called after a claim that found jobs; `leaves_some` if there may be more, for others."""

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait until the bell rings (True), there may be work, or time is up; `lively` for the first few."""
        return rung(bell, seconds)

    def close(self) -> None:
        """Let go of what was needed to hear hints."""


# Seconds between looks. One at SQLite costs 200 us when the core is cold: 50 a second are 1.2 % of it, 20 are
# 0.6 %. So they become rarer after the first few empty polls.
_LOOK_EVERY, _LOOK_EVERY_IDLE = 0.02, 0.05


class LookingWake(Wake):
    """Looks at a value of a file that changes with every commit."""

    def __init__(self, change: Callable[[], Hashable]) -> None:
        self._change = change
        self._seen: Hashable = None

    def before_claim(self, idle: bool) -> None:
        """Note where we are: what is committed after this ends the wait.

        While claims succeed nobody waits, and an older value costs no more than one poll too many.
        """
        if self._seen is None or idle:
            self._seen = self._change()

    def wait(self, bell: Bell, seconds: float, lively: bool) -> bool:
        """Wait until the bell rings (True), somebody commits, or time is up."""
        deadline = time.monotonic() + seconds
        look = _LOOK_EVERY if lively else _LOOK_EVERY_IDLE
        while (left := deadline - time.monotonic()) > 0:
            if rung(bell, min(left, look)):
                return True
            with suppress(StoreError):
                if self._change() != self._seen:
                    return False
        return False
