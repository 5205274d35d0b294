"""What becomes of a job on its way: new numbers, an end of its claim, and a unique key that is held already.

Works on rows with the columns of `JOB_COLUMNS`; reads and writes nothing.
"""

from __future__ import annotations

from typing import Any

from rowlock import claim_outcomes
from rowlock.endings import Event, Facts
from rowlock.job import Ending, Outcome, State
from rowlock.retry import DEFAULT, Retry
from rowlock.stores.sql.copying import JOB_COLUMNS

AT = {name: at for at, name in enumerate(JOB_COLUMNS)}
_FREE = ("claimed_at", "claimed_by", "started_at")


def given_back(row: list[Any], attempts: int | None, now: float, where: str) -> list[Any]:
    """End the claim of a running job as if its worker had stopped; returns a line for its history.

    Its claim number stays, so that the next claim is a higher one and nothing that the old run writes counts.
    """
    facts = Facts(
        failures=row[AT["failures"]],
        max_attempts=row[AT["max_attempts"]],
        deaths=row[AT["deaths"]],
        claims=row[AT["claim"]],
        began=row[AT["started_at"]] is not None,
        cancel_requested=row[AT["cancel_requested_at"]] is not None,
    )
    id, claim = row[AT["id"]], row[AT["claim"]]
    plain = Outcome(id=id, claim=claim, ending=Ending.RELEASED, task=row[AT["task"]], queue=row[AT["queue"]])
    ended = claim_outcomes.decided(
        plain, Event.STOPPED, facts, Retry(max_attempts=attempts) if attempts else DEFAULT
    )
    worker, started = row[AT["claimed_by"]], row[AT["started_at"]]
    if ended.ending is Ending.RELEASED:
        row[AT["state"]] = State.QUEUED.value
        for name in _FREE:
            row[AT[name]] = None
    else:
        state = State.FAILED if ended.ending is Ending.FAILED else State.CANCELLED
        row[AT["state"]] = state.value
        row[AT["finished_at"]] = now
        row[AT["error"]], row[AT["error_kind"]] = ended.error, ended.error_kind
    said = ended.error or f"its queue was copied from {where} while it ran"
    event = "released" if ended.ending is Ending.RELEASED else row[AT["state"]]
    return [id, claim, event, now, worker, started, said, ended.error_kind or "copied"]


def cancel_for_key(row: list[Any], holder: int, now: float) -> list[Any]:
    """Cancel a job whose unique key another job holds; returns a line for its history."""
    key = row[AT["unique_key"]]
    said = f"copied, but job {holder} holds its unique key {key!r} here"
    row[AT["state"]], row[AT["finished_at"]] = State.CANCELLED.value, now
    row[AT["error"]], row[AT["error_kind"]] = said, "unique_key"
    return [row[AT["id"]], row[AT["claim"]], "cancelled", now, None, None, said, "unique_key"]


def wants_key(row: list[Any]) -> bool:
    """True if it will hold its unique key."""
    unfinished = row[AT["state"]] in (State.SCHEDULED, State.QUEUED, State.RUNNING)
    return row[AT["unique_until"]] is not None and row[AT["unique_key"]] is not None and unfinished
