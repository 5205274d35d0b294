"""The probe: is a worker alive, and does no job wait for too long? For health checks, every few seconds.

Counts nothing and reads no finished job, so that it costs the same in a full database as in an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rowlock.insights.finding import Finding
from rowlock.stores.sql.store import Store


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
    findings = []
    if waiting and not pulse.workers:
        message = f"no worker is alive and jobs wait in {_ages(waiting)}"
        findings.append(Finding("workers", "error", message, "start one: rowlock worker module:app"))
    else:
        advice = "start a worker for it, or one for all queues"
        findings += [
            Finding("workers", "error", f"no living worker serves {name}, where jobs wait", advice)
            for name in waiting
            if name not in served
        ]
    if old := {name: age for name, age in waiting.items() if age > max_age}:
        message = f"jobs have waited for more than {max_age:g} s in {_ages(old)}"
        advice = "add workers or concurrency, or find out what holds them up"
        findings.append(Finding("age", "error", message, advice))
    return Probe(not findings, len(pulse.workers), waiting, findings)


def _ages(waiting: dict[str, float]) -> str:
    return ", ".join(f"{name} ({age:.0f} s)" for name, age in waiting.items())
