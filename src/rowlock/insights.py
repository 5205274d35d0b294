"""Read-only numbers and reasons, for every front end: statistics, and the doctor's checks.

Speaks to the store's reading verbs only; front ends add nothing but layout.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any, Literal, TypedDict

import msgspec

from rowlock.job import QueueRecord, State, WorkerRecord
from rowlock.stores.base import Store

_OVERDUE = 60.0
_CLOCK_SLACK = 5.0
_LARGE_WAL = 64 * 1024 * 1024


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
    totals = {state: sum(queue.counts[state] for queue in queues) for state in State}
    return Stats(
        scheduled=totals[State.SCHEDULED],
        queued=totals[State.QUEUED],
        running=totals[State.RUNNING],
        completed=totals[State.COMPLETED],
        failed=totals[State.FAILED],
        cancelled=totals[State.CANCELLED],
        queues={
            queue.name: {**queue.counts, "paused": queue.paused, "strategy": queue.strategy}
            for queue in queues
        },
        workers=sum(worker.alive for worker in store.workers()),
    )


class Finding(msgspec.Struct, frozen=True):
    """One thing the doctor looked at: how it is, and what to do about it."""

    check: str
    level: Literal["ok", "note", "warning", "error"]
    message: str
    advice: str = ""


def doctor(store: Store) -> list[Finding]:
    """Look at the database, the jobs and the workers; the worst level says how bad it is."""
    facts = store.facts()
    queues = store.queues()
    workers = [worker for worker in store.workers() if worker.dead_at is None]
    sqlite = facts["store"] == "sqlite"
    looks = (_integrity, _schema, _version, _journal, _durability, _wal) if sqlite else (_schema,)
    return [
        Finding("opens", "ok", f"{facts['address']} opens ({facts['bytes']:,} bytes)"),
        *(look(facts) for look in looks),
        _clock(facts),
        _workers(workers, queues),
        _stuck(workers),
        _overdue(queues, workers),
        *_paused(queues),
        _unknown(facts),
        _failed(queues),
    ]


def _integrity(facts: dict[str, Any]) -> Finding:
    if facts["quick_check"] == ["ok"]:
        return Finding("integrity", "ok", "the database's own quick check found nothing wrong")
    return Finding(
        "integrity",
        "error",
        "the database is damaged: " + "; ".join(facts["quick_check"]),
        "stop the workers, keep a copy of the file and its -wal, and restore a backup",
    )


def _schema(facts: dict[str, Any]) -> Finding:
    there, code = facts["schema_version"], facts["code_version"]
    if there > code:
        return Finding(
            "schema", "note", f"schema {there} is newer than this code's {code}", "upgrade rowlock soon"
        )
    return Finding("schema", "ok", f"schema version {there}")


def _version(facts: dict[str, Any]) -> Finding:
    if facts["wal_reset_bug"]:
        return Finding(
            "version",
            "note",
            f"SQLite {facts['server_version']} has the WAL-reset bug (fixed in 3.51.3); rowlock works "
            "around it by making its own checkpoints",
            "let other programs that write to this file set PRAGMA wal_autocheckpoint = 0, or update SQLite",
        )
    return Finding("version", "ok", f"SQLite {facts['server_version']}")


def _journal(facts: dict[str, Any]) -> Finding:
    if facts["journal_mode"] == "wal":
        return Finding("journal mode", "ok", "WAL: readers and the writer do not block each other")
    return Finding(
        "journal mode",
        "error",
        f"the journal mode is {facts['journal_mode']}, not WAL",
        "is the file on a network drive or a read-only disk? Move it to a local disk",
    )


def _durability(facts: dict[str, Any]) -> Finding:
    if facts["synchronous"] in ("FULL", "EXTRA"):
        return Finding(
            "durability", "ok", f"synchronous={facts['synchronous']}: a commit survives a power cut"
        )
    return Finding(
        "durability", "error", f"synchronous={facts['synchronous']}", "commits can be lost; report this"
    )


def _wal(facts: dict[str, Any]) -> Finding:
    if facts["wal_bytes"] < _LARGE_WAL:
        return Finding("write-ahead log", "ok", f"{facts['wal_bytes']:,} bytes")
    return Finding(
        "write-ahead log",
        "warning",
        f"the -wal file has grown to {facts['wal_bytes']:,} bytes",
        "some program keeps a read open on this database: find and close it",
    )


def _clock(facts: dict[str, Any]) -> Finding:
    ahead = (facts["newest_created_at"] or 0) - time.time()
    if ahead > _CLOCK_SLACK:
        return Finding(
            "clock",
            "warning",
            f"the newest job was created {ahead:.0f} s in the future: the clock has been set back",
            "scheduled jobs wait for the clock to catch up; check time synchronisation",
        )
    return Finding("clock", "ok", f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC")


def _workers(workers: list[WorkerRecord], queues: list[QueueRecord]) -> Finding:
    alive = [worker for worker in workers if worker.alive]
    if alive:
        return Finding("workers", "ok", f"{len(alive)} alive")
    waiting = sum(queue.counts[State.QUEUED] for queue in queues)
    level: Literal["warning", "note"] = "warning" if waiting else "note"
    return Finding(
        "workers",
        level,
        f"no worker is alive; {_jobs(waiting)} waiting",
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
        f"{_jobs(jobs)} running under silent workers: {', '.join(worker.id for worker in silent)}",
        "any living worker takes them back within a second; start one: rowlock worker module:app",
    )


def _overdue(queues: list[QueueRecord], workers: list[WorkerRecord]) -> Finding:
    now = datetime.now(timezone.utc)
    late = {
        queue.name: (now - queue.oldest_due).total_seconds()
        for queue in queues
        if queue.oldest_due is not None and not queue.paused
    }
    late = {name: age for name, age in late.items() if age > _OVERDUE}
    if not late:
        return Finding("overdue jobs", "ok", f"no job has waited for more than {_OVERDUE:.0f} s")
    served = {name for worker in workers if worker.alive for name in (worker.queues or late)}
    orphans = sorted(late.keys() - served)
    named = ", ".join(f"{name} ({age:.0f} s)" for name, age in sorted(late.items()))
    advice = f"no living worker serves {', '.join(orphans)}" if orphans else "add workers or concurrency"
    return Finding("overdue jobs", "warning", f"jobs wait for long in: {named}", advice)


def _paused(queues: list[QueueRecord]) -> list[Finding]:
    return [
        Finding(
            "paused queues",
            "note",
            f"queue {queue.name} is paused; {_jobs(queue.counts[State.QUEUED])} waiting",
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


def _failed(queues: list[QueueRecord]) -> Finding:
    failed = sum(queue.counts[State.FAILED] for queue in queues)
    if not failed:
        return Finding("failed jobs", "ok", "none")
    return Finding(
        "failed jobs",
        "note",
        f"{_jobs(failed)} failed",
        "look: rowlock jobs --state failed; again: rowlock retry ID",
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
