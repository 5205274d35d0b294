"""What operators and front ends ask of consumers: counts, missing indexes, and what is wrong.

Short reads, and the operator's retry; not part of claiming or settling.
"""

from __future__ import annotations

import time
from typing import Any

from rowlock.consumers.consumer import wake_name
from rowlock.consumers.source import ConsumerSource
from rowlock.errors import RowlockError
from rowlock.insights.consuming import ConsumerRecord
from rowlock.insights.finding import Finding
from rowlock.job import utc

_RATE_MINUTES = 5  # the last complete minutes, over which the rate is counted
_FIRST_TIME = 1e9  # a smaller number in the column that rows are ordered by is not a time


def left_out(source: ConsumerSource) -> list[str]:
    """The parts of the consumer's condition that the index leaves out, and why, each as a sentence."""
    where = f"is not in {source.consumer.index}, so that claims look at it row by row"
    parts = source.table.indexes.left_out
    return [f"{' '.join(part.split())!r} {where}: {reason}" for part, reason in parts.items()]


def record(source: ConsumerSource, exact: bool = False) -> ConsumerRecord:
    """The counts of one consumer. With its indexes this reads the due and failed rows, not the done ones."""
    consumer, table, minute = source.consumer, source.table, int(time.time() // 60)
    with source.read() as tx:
        ready, ahead = tx.row("count_ready")
        held, waiting = tx.row("count_claims")
        ended = tx.row("count_ended", since=minute - _RATE_MINUTES, minute=minute)[0]
        failed = tx.row("count_failed_rows")[0]
        broken = tx.row("count_broken")[0] if consumer.form.has_broken else 0
        ((at, seconds),) = tx.rows("oldest") or [(None, None)]  # `row` does not read a text that is no UTF-8
        total = tx.row("count_done" if exact else "count_all", table=table.catalogue_name)[0]
        pauses = {name: (since, until) for name, since, _, until in tx.rows("queue_settings")}
        paused_at, until = pauses.get(consumer.queue, (None, None))
        now = tx.now
    due = ready if consumer.form.holds else max(0, ready - held)
    lag = max(0.0, now - seconds) if seconds is not None and seconds > _FIRST_TIME else None
    return ConsumerRecord(
        name=consumer.name,
        table=".".join(consumer.table),
        due=due,
        in_flight=held,
        waiting=waiting,
        done=int(total) if exact else max(0, int(total) - due - ahead - held - failed - broken),
        done_is_exact=exact,
        failed=failed,
        broken=broken,
        oldest_due=at,
        lag=lag,
        per_minute=float(ended) / _RATE_MINUTES,
        has_index=table.has_index,
        paused=paused_at is not None,
        paused_until=None if paused_at is None or until is None else utc(until),
    )


def retry_failed(source: ConsumerSource) -> int:
    """Make the rows due again that have run out of attempts; returns their number."""
    form = source.consumer.form
    with source.write() as tx:
        if form.keeps_failures:
            tx.run("forget_past_failures")
        cleared = tx.run("clear_failed", error=None) if form.shows_failures else 0
        if form.keeps_failures:
            cleared = tx.run("forget_failures")
        source.database.wake_readers(tx, wake_name(".".join(source.consumer.table)))
    return cleared


def findings(app: Any) -> list[Finding]:
    """What `rowlock doctor` says about the app's consumers."""
    return [one for name in sorted(app.consumers) for one in _findings(name, app.consumer_source(name))]


def _findings(name: str, source: ConsumerSource) -> list[Finding]:
    what = f"consumer {name}"
    try:
        table, known, plan = source.table, record(source), source.table.plan()
    except RowlockError as error:
        return [Finding(what, "error", str(error), "mend the table or the consumer's options")]
    found = []
    if table.index_reads_clock:
        message = f"its index {source.consumer.index} reads the clock, so that no row can be inserted"
        found.append(Finding(what, "error", message, "make it anew: rowlock consumers init"))
    elif known.has_index:
        found.append(Finding(what, "ok", f"claims use the index {source.consumer.index}"))
    else:
        message = f"its index {source.consumer.index} {table.index_trouble}; each claim does this: {plan}"
        found.append(Finding(what, "warning", message, "create it: rowlock consumers init"))
    if known.broken:
        message = f"{known.broken} rows hold something else than a JSON object in its state, and are skipped"
        found.append(Finding(what, "warning", message, "mend these cells: set them to NULL or to an object"))
    if known.failed:
        advice = f"again: rowlock consumers retry {name} --failed"
        found.append(Finding(what, "note", f"{known.failed} rows are out of attempts", advice))
    return found
