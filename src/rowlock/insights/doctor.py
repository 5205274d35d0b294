"""The doctor: looks at the database, the jobs, the workers and the settings, and says what to do.

What only one kind of database has is looked at in the module of its name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rowlock.errors import StoreBusy
from rowlock.insights import duckdb, postgresql, sqlite
from rowlock.insights.finding import Facts, Finding, Verdict, counted, judged, note, ok, warning
from rowlock.job import State, utc
from rowlock.monitoring import QueueRecord, WorkerRecord
from rowlock.stores.sql.store import Store

if TYPE_CHECKING:
    from rowlock.settings import Settings

_OVERDUE = 60.0
_CLOCK_SLACK = 5.0
_NAMED = 10  # of what may be many
_CHECKS = {"duckdb": duckdb.CHECKS, "sqlite": sqlite.CHECKS, "postgresql": postgresql.CHECKS}


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
    found = [
        Finding("opens", "ok", f"{facts['address']} opens ({facts['bytes']:,} bytes)"),
        *judged(facts, _CHECKS[facts["store"]]),
        Finding("schema", *_schema(facts)),
    ]
    if facts["moved"]:  # its jobs are nobody's business any more
        return [*found, Finding("moved", *_moved(facts))]
    queues = store.queues()
    workers = [worker for worker in store.workers() if worker.dead_at is None]
    return [
        *found,
        Finding("clock", *_clock(facts)),
        Finding("workers", *_workers(workers, queues)),
        Finding("stuck jobs", *_stuck(workers)),
        Finding("overdue jobs", *_overdue(queues, workers, utc(facts["now"]))),
        *(Finding("paused queues", *_paused(queue)) for queue in queues if queue.paused),
        Finding("unknown tasks", *_unknown(facts["unknown_tasks"])),
        Finding("refused writes", *_refused(facts["refused"])),
        Finding("failed jobs", *_failed(queues)),
    ]


def configured(settings: Settings, given: Mapping[str, Any]) -> Finding:
    """The settings that decide how work is found, kept and given up, each with where it comes from.

    `given` are those that were arguments. Whether they are wise is for others to say.
    """
    from rowlock.settings import sources, without_password

    by = sources(settings, given)
    failed, relayed = settings.failed_after, settings.failed_after_in_relay
    shown = {
        "database_url": without_password(settings.database_url),
        "redis_url": without_password(settings.redis_url),
        "poll_interval": f"{settings.poll_interval:g} s",
        "lease": f"{settings.lease:g} s",
        "failed_after": (f"{failed:g} s" if failed else "never")
        + (f", in a relay {relayed:g} s" if relayed != failed else ""),
        "concurrency": str(settings.concurrency),
    }
    return Finding(
        "settings", "ok", "; ".join(f"{name} {value} ({by[name]})" for name, value in shown.items())
    )


def _schema(facts: Facts) -> Verdict:
    there, code = facts["schema_version"], facts["code_version"]
    if there > code:
        return note(f"schema {there} is newer than this code's {code}", "upgrade rowlock soon")
    return ok(f"schema version {there}")


def _moved(facts: Facts) -> Verdict:
    if facts["moving"]:
        return warning(facts["moved"], "`rowlock copy FROM TO --undo` lets it be used again instead")
    return note(facts["moved"], "start workers and programs with that URL")


def _clock(facts: Facts) -> Verdict:
    """The store's clock decides; on PostgreSQL that is the server's, and this machine's may differ."""
    now = facts["now"]
    ahead = (facts["newest_created_at"] or 0) - now
    if ahead > _CLOCK_SLACK:
        return warning(
            f"the newest job was created {ahead:.0f} s in the future: the clock has been set back",
            "scheduled jobs wait for the clock to catch up; check time synchronisation",
        )
    apart = time.time() - now
    if abs(apart) > _CLOCK_SLACK:
        side = "ahead of" if apart > 0 else "behind"
        return note(
            f"this machine's clock is {abs(apart):.0f} s {side} the database's, which decides what is due",
            "check time synchronisation on both machines",
        )
    return ok(f"{utc(now):%Y-%m-%d %H:%M:%S} UTC")


def _workers(workers: list[WorkerRecord], queues: list[QueueRecord]) -> Verdict:
    alive = [worker for worker in workers if worker.alive and not worker.is_relay]
    relays = [worker for worker in workers if worker.alive and worker.is_relay]
    if alive:
        beside = f", beside {len(relays)} relay{'s' * (len(relays) > 1)}" if relays else ""
        return ok(f"{len(alive)} alive{beside}")
    waiting = sum(queue.counts[State.QUEUED] for queue in queues) + sum(relay.running for relay in relays)
    verdict = warning if waiting else note
    return verdict(f"no worker is alive; {counted(waiting)} waiting", "start one: rowlock worker module:app")


def _stuck(workers: list[WorkerRecord]) -> Verdict:
    silent = [worker for worker in workers if not worker.alive and worker.running]
    if not silent:
        return ok("every running job has a worker that lives")
    jobs = sum(worker.running for worker in silent)
    return warning(
        f"{counted(jobs)} running under silent workers: {', '.join(worker.id for worker in silent)}",
        "any living worker takes them back within a second; start one: rowlock worker module:app",
    )


def _overdue(queues: list[QueueRecord], workers: list[WorkerRecord], now: datetime) -> Verdict:
    ages = {
        queue.name: (now - queue.oldest_due).total_seconds()
        for queue in queues
        if queue.oldest_due is not None and not queue.paused
    }
    late = {name: age for name, age in sorted(ages.items()) if age > _OVERDUE}
    if not late:
        return ok(f"no job has waited for more than {_OVERDUE:.0f} s")
    served = {
        name for worker in workers if worker.alive and not worker.is_relay for name in (worker.queues or late)
    }
    orphans = sorted(late.keys() - served)
    named = ", ".join(f"{name} ({age:.0f} s)" for name, age in late.items())
    advice = f"no living worker serves {', '.join(orphans)}" if orphans else "add workers or concurrency"
    return warning(f"jobs wait for long in: {named}", advice)


def _paused(queue: QueueRecord) -> Verdict:
    waiting = counted(queue.counts[State.QUEUED])
    return note(f"queue {queue.name} is paused; {waiting} waiting", f"rowlock resume {queue.name}")


def _unknown(tasks: dict[str, int]) -> Verdict:
    if not tasks:
        return ok("no job waits for a worker that knows its task")
    named = ", ".join(f"{task} ({count})" for task, count in sorted(tasks.items()))
    return warning(
        f"jobs whose task no worker knew: {named}",
        "start a worker with the code that has them, add an alias for a renamed task, or cancel the jobs",
    )


def _refused(claims: list[tuple[str, str, str]]) -> Verdict:
    if not claims:
        return ok("the database has taken every outcome")
    named = [f"{title}, held by {holder}: {said}" for title, holder, said in claims[:_NAMED]]
    more = [f"and {len(claims) - _NAMED} more"] if len(claims) > _NAMED else []
    return warning(
        f"the database refuses whatever is written about {len(claims)}: {'; '.join(named + more)}",
        "change what refuses it (a constraint, a trigger), then restart the worker that holds it",
    )


def _failed(queues: list[QueueRecord]) -> Verdict:
    failed = sum(queue.counts[State.FAILED] for queue in queues)
    if not failed:
        return ok("none")
    return note(f"{counted(failed)} failed", "look: rowlock jobs --state failed; again: rowlock retry ID")
