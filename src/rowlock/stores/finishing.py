"""The finishing steps: outcomes, reports, the claims of the dead; each inside the caller's transaction.

Every write says which claim it holds, and tells when that claim was lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from rowlock.job import Claim, Ending, Outcome, Report, State
from rowlock.stores.claiming import LONGEST_ALONE
from rowlock.stores.session import Session

KEPT_LINES = 500
DEADLINE_PASSED = "its deadline to start (expires) has passed"
_DEFAULT_ATTEMPTS = 3
_AFTER = {
    Ending.COMPLETED: (State.COMPLETED,),
    Ending.FAILED: (State.FAILED,),
    Ending.CANCELLED: (State.CANCELLED,),
    Ending.RETRY: (State.SCHEDULED, State.QUEUED, State.CANCELLED),
    Ending.RELEASED: (State.QUEUED, State.SCHEDULED, State.CANCELLED),
}


def finish(tx: Session, worker: str, outcome: Outcome) -> bool:
    """Write one outcome; False means that the claim was lost, and nothing was written."""
    changed = tx.run(
        f"finish_{outcome.ending}",
        id=outcome.id,
        claim=outcome.claim,
        result=outcome.result,
        error=outcome.error,
        error_kind=outcome.error_kind,
        delay=outcome.delay,
        charge=int(outcome.charge),
    )
    if changed and not outcome.is_usual:
        add_history(
            tx,
            outcome.id,
            outcome.claim,
            _event(tx, outcome),
            worker=worker,
            started_at=outcome.started,
            error=outcome.error,
            error_kind=outcome.error_kind,
        )
    return changed > 0


def was_written(tx: Session, outcome: Outcome) -> bool:
    """True if the job already is what this outcome makes of it, under this very claim."""
    row = tx.row("retry_facts", id=outcome.id)
    return row is not None and row[0] == outcome.claim and row[1] in _AFTER[outcome.ending]


def _event(tx: Session, outcome: Outcome) -> str:
    """The timeline's word: a retry or release of a job that was to be cancelled is its cancellation."""
    comes_back = outcome.ending in (Ending.RETRY, Ending.RELEASED)
    if comes_back and tx.row("retry_facts", id=outcome.id)[1] == State.CANCELLED:
        return str(Ending.CANCELLED)
    return str(outcome.ending)


def write_reports(tx: Session, reports: Sequence[Report]) -> None:
    """Write the progress and the log lines of claims that still hold."""
    for report in reports:
        fence = {"id": report.id, "claim": report.claim}
        if report.progress:
            tx.run("report_progress", **fence, **msgspec.structs.asdict(report.progress))
        for line in report.lines:
            tx.run("report_line", **fence, at=line.at, message=line.message, fields=line.fields)
        if report.lines:
            tx.run("trim_lines", id=report.id, keep=KEPT_LINES)


def without_expired(tx: Session, worker: str, claims: list[Claim]) -> list[Claim]:
    """Fail those that were claimed after their deadline to start, and keep the others."""
    kept = []
    for claim in claims:
        if claim.deadline is None or claim.deadline > claim.taken:
            kept.append(claim)
        else:
            expire(tx, claim.id, claim.claim, worker)
    return kept


def expire(tx: Session, job: int, claim: int, worker: str | None = None) -> None:
    """Fail a job whose deadline to start has passed, unless it came to something else in the meantime."""
    if tx.run("expire", id=job, claim=claim, error=DEADLINE_PASSED):
        add_history(tx, job, claim, "expired", worker=worker, error=DEADLINE_PASSED, error_kind="expired")


def bury(tx: Session, worker: str, tasks: dict[str, Any], died_by: float) -> list[State]:
    """Declare a worker dead and decide on each of its claims; started ones are charged.

    A charged one may have killed it. Next time it runs without company for as long as it may have lived
    this time (up to a minute): if it kills again, it takes nobody along.
    """
    tx.run("bury_worker", worker=worker)
    fates: list[State] = []
    for job, claim, failures, budget, started_at, cancel_requested_at, task in tx.rows(
        "held_by", worker=worker
    ):
        charge = int(started_at is not None)
        attempts = budget or tasks.get(task, {}).get("max_attempts") or _DEFAULT_ATTEMPTS
        error = None
        if cancel_requested_at is not None:
            fate = State.CANCELLED
            changed = tx.run("finish_cancelled", id=job, claim=claim, error=None, error_kind="worker_died")
        elif charge and failures + 1 >= attempts:
            fate = State.FAILED
            deaths = tx.row("count_rescues", id=job)[0] + 1
            times = "once" if deaths == 1 else f"{deaths} times"
            error = f"its worker died {times} under it; its budget of {attempts} attempts is used up"
            changed = tx.run(
                "finish_failed", id=job, claim=claim, charge=1, error=error, error_kind="worker_died"
            )
        else:
            survived = math.ceil(died_by - started_at) if charge else 0
            alone = max(1, min(survived, LONGEST_ALONE))
            states = tx.rows("rescue_requeue", id=job, claim=claim, charge=charge, alone=alone)
            changed = len(states)
            fate = State(states[0][0]) if states else State.QUEUED
        if not changed:  # its worker came back in time for this one
            continue
        add_history(
            tx,
            job,
            claim,
            "rescued",
            worker=worker,
            started_at=started_at,
            error=error,
            error_kind="worker_died",
        )
        fates.append(fate)
    return fates


def add_history(
    tx: Session,
    job: int,
    claim: int,
    event: str,
    *,
    worker: str | None = None,
    started_at: float | None = None,
    error: str | None = None,
    error_kind: str | None = None,
) -> None:
    """Add a row to the job's timeline."""
    tx.run(
        "add_history",
        id=job,
        claim=claim,
        event=str(event),
        worker=worker,
        started_at=started_at,
        error=error,
        error_kind=error_kind,
    )
