"""The probe: is a worker alive, and does no job wait for too long? For health checks, every few seconds.

Counts nothing and reads no finished job, so that it costs the same in a full database as in an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rowlock.insights.finding import Finding
from rowlock.stores.sql.store import Store

_START = "start one: rowlock worker module:app"


class Probe(msgspec.Struct, frozen=True):
    """How many workers are alive, how long each queue's oldest due job has waited, what is wrong."""

    healthy: bool
    workers: int
    waiting: dict[str, float]
    findings: list[Finding]


def probe(store: Store, max_age: float, queues: Sequence[str] = ()) -> Probe:
    """Look at these queues (none named: all); paused ones may wait."""
    pulse = store.pulse()
    oldest = {**pulse.handed_over, **pulse.waiting}
    oldest.update({name: max(age, oldest[name]) for name, age in pulse.handed_over.items()})
    waiting = {
        name: age
        for name, age in sorted(oldest.items())
        if name not in pulse.paused and (not queues or name in queues)
    }
    served = {name for worker in pulse.workers for name in (worker or waiting)}
    findings = [*_nobody(waiting.keys() - served, waiting, len(pulse.workers)), *_old(waiting, max_age)]
    return Probe(not findings, len(pulse.workers), waiting, findings)


def _nobody(orphans: set[str], waiting: dict[str, float], alive: int) -> list[Finding]:
    if not orphans:
        return []
    if not alive:
        return [Finding("workers", "error", f"no worker is alive and jobs wait in {_ages(waiting)}", _START)]
    unserved = {name: age for name, age in waiting.items() if name in orphans}
    advice = "start a worker for it, or one for all queues"
    return [
        Finding("workers", "error", f"no living worker serves {name}, where jobs wait", advice)
        for name in unserved
    ]


def _old(waiting: dict[str, float], max_age: float) -> list[Finding]:
    old = {name: age for name, age in waiting.items() if age > max_age}
    if not old:
        return []
    message = f"jobs have waited for more than {max_age:g} s in {_ages(old)}"
    return [Finding("age", "error", message, "add workers or concurrency, or find out what holds them up")]


def _ages(waiting: dict[str, float]) -> str:
    return ", ".join(f"{name} ({age:.0f} s)" for name, age in waiting.items())
