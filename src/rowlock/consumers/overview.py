"""What people and front ends ask of consumers: how they stand, which indexes they need, what is wrong.

Short reads (and the operator's retry); nothing here is on the way of a row.
"""

from __future__ import annotations

import time
from typing import Any, Protocol, cast

from rowlock.consumers.consumer import wake_name
from rowlock.consumers.host import ConsumerHost
from rowlock.consumers.store import ConsumerStore
from rowlock.consumers.table import Table
from rowlock.errors import RowlockError
from rowlock.insights.consuming import ConsumerRecord
from rowlock.insights.finding import Finding
from rowlock.job import utc
from rowlock.stores.sql.store import SqlStore

_RATE_MINUTES = 5
_FIRST_TIME = 1e9  # smaller numbers are no Unix seconds, but something else that rows are ordered by


class App(Protocol):
    """What the overview needs of an app."""

    @property
    def consumers(self) -> Any:
        """The registered consumers by name."""
        ...

    def consumer_host(self, name: str) -> ConsumerHost:
        """A consumer with its store."""
        ...


def _store(host: ConsumerHost) -> ConsumerStore:
    return cast("ConsumerStore", host.store)


def table_of(host: ConsumerHost) -> Table:
    """The consumer's table, looked at and checked."""
    return _store(host).table


def check(host: ConsumerHost) -> None:
    """Raise now, rather than at the first claim, if the table is not what the consumer needs."""
    table_of(host)


def index_statements(host: ConsumerHost) -> list[str]:
    """What creates the consumer's indexes."""
    return [one for statements in table_of(host).create_statements().values() for one in statements]


def index_names(host: ConsumerHost) -> list[str]:
    """The names of the consumer's indexes."""
    return list(table_of(host).indexes)


def left_out(host: ConsumerHost) -> list[str]:
    """What the index does not have of the consumer's condition, and why, each as a sentence."""
    where = f"is not in {host.consumer.index}, so that claims look at it row by row"
    return [f"{' '.join(one.part.split())!r} {where}: {one.reason}" for one in table_of(host).left_out]


def create_indexes(host: ConsumerHost) -> None:
    """Create those that are missing."""
    table_of(host).create_indexes()


def record(host: ConsumerHost, exact: bool = False) -> ConsumerRecord:
    """How one consumer stands. With its indexes it costs what is due and failed, not what is done."""
    consumer, table = host.consumer, table_of(host)
    ground = cast("SqlStore", _store(host).underlying)
    with ground.reading() as session:
        tx = session.using(table.statements)
        ready, ahead = tx.row("count_ready")
        in_flight, waiting = tx.row("count_claims", consumer=consumer.name)
        failed = tx.row("count_failed_rows")[0]
        broken = tx.row("count_broken")[0] if consumer.form.has_broken else 0
        oldest = tx.row("oldest", consumer=consumer.name)
        total = tx.row("count_done" if exact else "count_all", table=table.name_for_looks)[0]
        paused = any(name == consumer.queue and since for name, since, _ in tx.rows("queue_settings"))
        until = dict(tx.rows("paused_until")).get(consumer.queue) if paused else None
        now = tx.now
    held = in_flight or 0
    due = ready if consumer.form.holds else max(0, ready - held)
    at, seconds = oldest if oldest is not None else (None, None)
    lag = max(0.0, now - seconds) if seconds is not None and seconds > _FIRST_TIME else None
    return ConsumerRecord(
        name=consumer.name,
        table=".".join(consumer.table),
        due=due,
        in_flight=held,
        waiting=waiting or 0,
        done=int(total) if exact else max(0, int(total) - due - ahead - held - failed - broken),
        done_is_exact=exact,
        failed=failed,
        broken=broken,
        oldest_due=at,
        lag=lag,
        per_minute=_rate(host),
        has_index=table.has_index,
        paused=paused,
        paused_until=None if until is None else utc(until),
    )


def _rate(host: ConsumerHost) -> float:
    """Rows ended per minute, over the last few that are complete."""
    minute = int(time.time() // 60)
    found = [
        one
        for one in _store(host).underlying.minutes(minute - _RATE_MINUTES)
        if one.queue == host.consumer.queue and one.minute < minute
    ]
    return sum(one.completed + one.failed for one in found) / _RATE_MINUTES


def retry_failed(host: ConsumerHost) -> int:
    """Make the rows due again that ran out of attempts; returns how many."""
    ground, form = cast("SqlStore", _store(host).underlying), host.consumer.form
    table, name = table_of(host), host.consumer.name
    with ground.writing() as session:
        tx = session.using(table.statements)
        if form.keeps_failures:
            tx.run("forget_past_failures", consumer=name)
            if form.shows_failures:
                tx.run("clear_marks", **form.always())
            cleared = tx.run("forget_failures", consumer=name)
        else:
            cleared = tx.run("clear_failed", error=None, **form.always())
    ground.wake_readers(wake_name(".".join(host.consumer.table)))
    return cleared


def findings(app: App) -> list[Finding]:
    """What a doctor says about the app's consumers."""
    return [one for name in sorted(app.consumers) for one in _findings(name, app.consumer_host(name))]


def _findings(name: str, host: ConsumerHost) -> list[Finding]:
    what = f"consumer {name}"
    try:
        table = table_of(host)
        plan = table.plan()
        known = record(host)
    except RowlockError as error:
        return [Finding(what, "error", str(error), "mend the table or the consumer's options")]
    found = []
    if table.index_reads_clock:
        message = f"its index {host.consumer.index} reads the clock, so that no row can be inserted"
        found.append(Finding(what, "error", message, "make it anew: rowlock consumers init"))
    elif known.has_index:
        found.append(Finding(what, "ok", f"claims use the index {host.consumer.index}"))
    else:
        message = (
            f"its index {host.consumer.index} is missing or does not fit it; each claim does this: {plan}"
        )
        found.append(Finding(what, "warning", message, "create it: rowlock consumers init"))
    if known.broken:
        message = f"{known.broken} rows hold something else than a JSON object in its state, and are skipped"
        found.append(Finding(what, "warning", message, "mend these cells: set them to NULL or to an object"))
    if known.failed:
        advice = f"again: rowlock consumers retry {name} --failed"
        found.append(Finding(what, "note", f"{known.failed} rows are out of attempts", advice))
    return found
