"""The doctor: looks at the database, the jobs and the workers, and says what to do.

What only one kind of database has is looked at in the module of its name.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from rowlock.errors import StoreBusy
from rowlock.insights import duckdb, postgresql, sqlite
from rowlock.insights.finding import Finding, Level, counted
from rowlock.job import State, utc
from rowlock.monitoring import QueueRecord, WorkerRecord
from rowlock.stores.sql.store import Store

_OVERDUE = 60.0
_CLOCK_SLACK = 5.0
_NAMED = 10  # of what may be many
_LOOKS = {"duckdb": duckdb.looks, "sqlite": sqlite.looks, "postgresql": postgresql.looks}


def doctor(store: Store, create: bool = True) -> list[Finding]:
    """Look at the database, the jobs and the workers; the worst level says how bad it is.

    A database that somebody else keeps busy is one finding, and the only one. Without `create`
    a database that holds no queue is left as it is: `StoreMissing`.
    """
    try:
        store.open(create)
        facts = store.facts()
    except StoreBusy as busy:  # it may know who has the file, and then has the cure apart
        return [Finding("opens", "error", getattr(busy, "said", str(busy)), getattr(busy, "cure", ""))]
    opens = Finding("opens", "ok", f"{facts['address']} opens ({facts['bytes']:,} bytes)")
    if facts["moved"]:  # its jobs are nobody's business any more
        return [opens, *_LOOKS[facts["store"]](facts), _schema(facts), _moved(facts)]
    queues = store.queues()
    workers = [worker for worker in store.workers() if worker.dead_at is None]
    return [
        opens,
        *_LOOKS[facts["store"]](facts),
        _schema(facts),
        _clock(facts),
        _workers(workers, queues),
        _stuck(workers),
        _overdue(queues, workers, utc(facts["now"])),
        *_paused(queues),
        _unknown(facts),
        _refused(facts),
        _failed(queues),
    ]


def _schema(facts: dict[str, Any]) -> Finding:
    there, code = facts["schema_version"], facts["code_version"]
    if there > code:
        return Finding(
            "schema", "note", f"schema {there} is newer than this code's {code}", "upgrade rowlock soon"
        )
    return Finding("schema", "ok", f"schema version {there}")


def _moved(facts: dict[str, Any]) -> Finding:
    if facts["moving"]:
        return Finding(
            "moved", "warning", facts["moved"], "`rowlock copy FROM TO --undo` lets it be used again instead"
        )
    return Finding("moved", "note", facts["moved"], "start workers and programs with that URL")


def _clock(facts: dict[str, Any]) -> Finding:
    """The store's clock decides; on PostgreSQL that is the server's, and this machine's may differ."""
    now = facts["now"]
    ahead = (facts["newest_created_at"] or 0) - now
    if ahead > _CLOCK_SLACK:
        return Finding(
            "clock",
            "warning",
            f"the newest job was created {ahead:.0f} s in the future: the clock has been set back",
            "scheduled jobs wait for the clock to catch up; check time synchronisation",
        )
    apart = time.time() - now
    if abs(apart) > _CLOCK_SLACK:
        side = "ahead of" if apart > 0 else "behind"
        return Finding(
            "clock",
            "note",
            f"this machine's clock is {abs(apart):.0f} s {side} the database's, which decides what is due",
            "check time synchronisation on both machines",
        )
    return Finding("clock", "ok", f"{utc(now):%Y-%m-%d %H:%M:%S} UTC")


def _workers(workers: list[WorkerRecord], queues: list[QueueRecord]) -> Finding:
    alive = [worker for worker in workers if worker.alive and not worker.is_relay]
    relays = [worker for worker in workers if worker.alive and worker.is_relay]
    if alive:
        beside = f", beside {len(relays)} relay{'s' * (len(relays) > 1)}" if relays else ""
        return Finding("workers", "ok", f"{len(alive)} alive{beside}")
    waiting = sum(queue.counts[State.QUEUED] for queue in queues) + sum(relay.running for relay in relays)
    level: Level = "warning" if waiting else "note"
    return Finding(
        "workers",
        level,
        f"no worker is alive; {counted(waiting)} waiting",
        "start one: rowlock worker module:app",
    )


def _stuck(workers: list[WorkerRecord]) -> Finding:
    silent = [worker for worker in workers if not worker.alive and worker.running]
    if not silent:
        return Finding("stuck jobs", "ok", "every running job has a worker that lives")
    jobs = sum(worker.running for worker in silent)
    return Finding(
        "stuck jobs",
        "warning",
        f"{counted(jobs)} running under silent workers: {', '.join(worker.id for worker in silent)}",
        "any living worker takes them back within a second; start one: rowlock worker module:app",
    )


def _overdue(queues: list[QueueRecord], workers: list[WorkerRecord], now: datetime) -> Finding:
    late = {
        queue.name: (now - queue.oldest_due).total_seconds()
        for queue in queues
        if queue.oldest_due is not None and not queue.paused
    }
    late = {name: age for name, age in late.items() if age > _OVERDUE}
    if not late:
        return Finding("overdue jobs", "ok", f"no job has waited for more than {_OVERDUE:.0f} s")
    served = {
        name for worker in workers if worker.alive and not worker.is_relay for name in (worker.queues or late)
    }
    orphans = sorted(late.keys() - served)
    named = ", ".join(f"{name} ({age:.0f} s)" for name, age in sorted(late.items()))
    advice = f"no living worker serves {', '.join(orphans)}" if orphans else "add workers or concurrency"
    return Finding("overdue jobs", "warning", f"jobs wait for long in: {named}", advice)


def _paused(queues: list[QueueRecord]) -> list[Finding]:
    return [
        Finding(
            "paused queues",
            "note",
            f"queue {queue.name} is paused; {counted(queue.counts[State.QUEUED])} waiting",
            f"rowlock resume {queue.name}",
        )
        for queue in queues
        if queue.paused
    ]


def _unknown(facts: dict[str, Any]) -> Finding:
    unknown: dict[str, int] = facts["unknown_tasks"]
    if not unknown:
        return Finding("unknown tasks", "ok", "no job waits for a worker that knows its task")
    named = ", ".join(f"{task} ({count})" for task, count in sorted(unknown.items()))
    return Finding(
        "unknown tasks",
        "warning",
        f"jobs whose task no worker knew: {named}",
        "start a worker with the code that has them, add an alias for a renamed task, or cancel the jobs",
    )


def _refused(facts: dict[str, Any]) -> Finding:
    claims: list[tuple[str, str, str]] = facts["refused"]
    if not claims:
        return Finding("refused writes", "ok", "the database has taken every outcome")
    named = [f"{title}, held by {holder}: {said}" for title, holder, said in claims[:_NAMED]]
    more = [f"and {len(claims) - _NAMED} more"] if len(claims) > _NAMED else []
    return Finding(
        "refused writes",
        "warning",
        f"the database refuses whatever is written about {len(claims)}: {'; '.join(named + more)}",
        "change what refuses it (a constraint, a trigger), then restart the worker that holds it",
    )


def _failed(queues: list[QueueRecord]) -> Finding:
    failed = sum(queue.counts[State.FAILED] for queue in queues)
    if not failed:
        return Finding("failed jobs", "ok", "none")
    return Finding(
        "failed jobs",
        "note",
        f"{counted(failed)} failed",
        "look: rowlock jobs --state failed; again: rowlock retry ID",
    )
