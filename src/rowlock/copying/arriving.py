"""What becomes of a job on its way: an end of its claim, and a unique key that is held already.

Works on a row as a dictionary of the columns in `JOB_COLUMNS`; reads and writes nothing.
"""

from __future__ import annotations

from typing import Any

from rowlock import claim_outcomes
from rowlock.endings import Event, Facts
from rowlock.job import Ending, Outcome, State
from rowlock.retry import Retry

JobRow = dict[str, Any]


def given_back(job: JobRow, policy: Retry, now: float, where: str) -> list[Any]:
    """End the claim of a running job as if its worker had stopped; returns a line for its history.

    Its claim number stays, so that the next claim is a higher one and nothing that the old run writes counts.
    """
    id, claim, worker, started = job["id"], job["claim"], job["claimed_by"], job["started_at"]
    facts = Facts(
        failures=job["failures"],
        max_attempts=job["max_attempts"],
        deaths=job["deaths"],
        claims=claim,
        began=started is not None,
        cancel_requested=job["cancel_requested_at"] is not None,
    )
    plain = Outcome(id=id, claim=claim, ending=Ending.RELEASED, task=job["task"], queue=job["queue"])
    ended = claim_outcomes.decided(plain, Event.STOPPED, facts, policy)
    if ended.ending is Ending.RELEASED:
        event = "released"
        job.update(state=State.QUEUED.value, claimed_at=None, claimed_by=None, started_at=None)
    else:
        event = (State.FAILED if ended.ending is Ending.FAILED else State.CANCELLED).value
        job.update(state=event, finished_at=now, error=ended.error, error_kind=ended.error_kind)
    said = ended.error or f"its queue was copied from {where} while it ran"
    return [id, claim, event, now, worker, started, said, ended.error_kind or "copied"]


def cancel_for_key(job: JobRow, holder: int, now: float) -> list[Any]:
    """Cancel a job whose unique key another job holds; returns a line for its history."""
    said = f"copied, but job {holder} holds its unique key {job['unique_key']!r} here"
    job.update(state=State.CANCELLED.value, finished_at=now, error=said, error_kind="unique_key")
    return [job["id"], job["claim"], "cancelled", now, None, None, said, "unique_key"]


def wants_key(job: JobRow) -> bool:
    """True if it will hold its unique key."""
    unfinished = job["state"] in (State.SCHEDULED, State.QUEUED, State.RUNNING)
    return job["unique_until"] is not None and job["unique_key"] is not None and unfinished
