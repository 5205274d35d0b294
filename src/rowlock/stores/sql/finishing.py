"""How jobs are finished: outcomes, reports, deadlines; each inside the caller's transaction.

Every write says which claim it holds, and tells when that claim was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from rowlock import claim_outcomes, endings
from rowlock.endings import Event, Facts
from rowlock.job import EVERY_TASK, KEPT_LOG_LINES, Claim, Ending, LogLine, Outcome, Progress, Report, State
from rowlock.retry import DEFAULT, Retry
from rowlock.stores.source import HeldClaim
from rowlock.stores.sql.session import Session

_AFTER = {
    Ending.COMPLETED: (State.COMPLETED,),
    Ending.FAILED: (State.FAILED,),
    Ending.CANCELLED: (State.CANCELLED,),
    Ending.RETRY: (State.SCHEDULED, State.QUEUED, State.CANCELLED),
    Ending.RELEASED: (State.QUEUED, State.SCHEDULED, State.CANCELLED),
}
_UNTOLD = dict.fromkeys(("worker", "started_at", "error", "error_kind"))


class Step(NamedTuple):
    """A guarded statement, and what the timeline says if it changed its job."""

    statement: str
    values: dict[str, Any]
    history: dict[str, Any] | None


def take_steps(tx: Session, steps: Sequence[Step]) -> list[bool]:
    """Run them: a round trip per kind of statement, and one for the timeline; says which changed a job."""
    if len(steps) == 1:  # most often, and then SQLite feels what follows: 8 of 70 us
        (step,) = steps
        was_changed = tx.run(step.statement, **step.values) > 0
        if was_changed and step.history is not None:
            tx.run("add_history", **step.history)
        return [was_changed]
    kinds: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        kinds.setdefault(step.statement, []).append(place)
    changed = [False] * len(steps)
    for statement, places in kinds.items():
        counts = tx.each(statement, [steps[place].values for place in places])
        for place, count in zip(places, counts, strict=True):
            changed[place] = count > 0
    if told := [one.history for one, done in zip(steps, changed, strict=True) if done and one.history]:
        tx.each("add_history", told)
    return changed


def finish(tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Write the outcomes; returns those whose claims were lost, of which nothing was written."""
    if not outcomes:
        return []
    known = _known_to_others(tx, worker, [one for one in outcomes if one.unless_known])
    changed = take_steps(tx, [ending(worker, outcome, known) for outcome in outcomes])
    pause(tx, [one for one, written in zip(outcomes, changed, strict=True) if written])
    return [outcome for outcome, written in zip(outcomes, changed, strict=True) if not written]


def pause(tx: Session, outcomes: Sequence[Outcome], queue: str | None = None) -> None:
    """Pause the queues of the outcomes that ask for it; `queue` is that of all of them, if given."""
    for one in outcomes:
        if one.pause:
            tx.run("pause_for", name=queue or one.queue, delay=one.delay or 0.0)


def _known_to_others(tx: Session, worker: str, outcomes: Sequence[Outcome]) -> set[tuple[str, str]]:
    """Of the tasks and queues of these outcomes, those that another living worker takes."""
    if not outcomes:
        return set()
    others = [
        (msgspec.json.decode(queues), msgspec.json.decode(tasks))
        for id, queues, tasks, _ in tx.rows("living_workers")
        if id != worker
    ]
    return {
        (task, queue)
        for task, queue in {(one.task, one.queue) for one in outcomes}
        if any(
            (task in tasks or EVERY_TASK in tasks) and (not queues or queue in queues)
            for queues, tasks in others
        )
    }


def ending(worker: str, outcome: Outcome, known: Collection[tuple[str, str]] = ()) -> Step:
    """What writes this outcome."""
    values = {
        "id": outcome.id,
        "claim": outcome.claim,
        "result": outcome.result,
        "error": outcome.error,
        "error_kind": outcome.error_kind,
        "delay": outcome.delay,
        "charge": outcome.charge,
        "state": outcome.ending.value,  # if it is over by that
    }
    if outcome.is_usual:
        return Step("finish", values, None)
    if outcome.unless_known and (outcome.task, outcome.queue) in known:
        at_once = endings.decide(Event.KNOWN_ELSEWHERE, Facts(), DEFAULT)
        values |= {"delay": at_once.delay, "error": None, "error_kind": at_once.kind}
    error, kind = outcome.error, outcome.error_kind
    if outcome.rescued:
        error, kind = error if outcome.ending is Ending.FAILED else None, "worker_died"
    history = history_of(
        outcome.id,
        outcome.claim,
        "rescued" if outcome.rescued else outcome.ending,
        worker=worker,
        started_at=outcome.started,
        error=error,
        error_kind=kind,
    )
    if outcome.not_begun:
        return Step("finish_not_begun", {**values, "worker": worker}, history)
    if outcome.isolate:
        return Step("rescue_requeue", {**values, "isolate": outcome.isolate}, history)
    comes_back = {Ending.RETRY: "finish_retry", Ending.RELEASED: "finish_released"}
    return Step(comes_back.get(outcome.ending, "finish"), values, history)


def was_written(db: Session, outcome: Outcome) -> bool:
    """True if the job already is what this outcome makes of it, under this very claim."""
    row = db.row("retry_facts", id=outcome.id)
    return row is not None and row[0] == outcome.claim and row[1] in _AFTER[outcome.ending]


def took_effect(db: Session, outcome: Outcome) -> bool:
    """The same, also if the job came back by it and somebody else has taken it since."""
    comes_back = outcome.ending in (Ending.RETRY, Ending.RELEASED)
    row = db.row("retry_facts", id=outcome.id) if comes_back else None
    return (row is not None and row[0] > outcome.claim) or was_written(db, outcome)


def write_reports(tx: Session, reports: Sequence[Report]) -> None:
    """Write the progress and the log lines of claims that still hold."""
    if not reports:
        return
    for name, values in (
        ("report_progress", [_said(one, one.progress) for one in reports if one.progress]),
        ("report_line", [_said(one, line) for one in reports for line in one.lines]),
        ("trim_lines", [{"id": one.id, "keep": KEPT_LOG_LINES} for one in reports if one.lines]),
    ):
        if values:
            tx.each(name, values)


def _said(report: Report, what: Progress | LogLine) -> dict[str, Any]:
    return {"id": report.id, "claim": report.claim, **msgspec.structs.asdict(what)}


def without_expired(tx: Session, worker: str, claims: list[Claim]) -> list[Claim]:
    """Fail those that were claimed after their deadline to start, and keep the others."""
    kept = [claim for claim in claims if claim.deadline is None or claim.deadline > claim.taken]
    if len(kept) < len(claims):
        keys = {(claim.id, claim.claim) for claim in kept}
        expire(tx, [(one.id, one.claim) for one in claims if (one.id, one.claim) not in keys], worker)
    return kept


def expire(tx: Session, jobs: Sequence[tuple[int, int]], worker: str | None = None) -> None:
    """Fail jobs (with their claim numbers) whose deadline has passed, unless they came to something else."""
    kind = endings.decide(Event.EXPIRED, Facts(), DEFAULT).kind
    said: dict[str, Any] = {"error": claim_outcomes.EXPIRED, "error_kind": kind}
    take_steps(
        tx,
        [
            Step(
                "expire",
                {"id": job, "claim": claim, **said},
                history_of(job, claim, "expired", worker=worker, **said),
            )
            for job, claim in jobs
        ],
    )


def left_by(db: Session, worker: str) -> list[HeldClaim]:
    """The jobs that this worker still has, each with what is known of it."""
    held = db.rows("held_by", worker=worker)
    if not held:
        return []
    known = db.row("tasks_of", worker=worker)
    tasks = msgspec.json.decode(known[0]) if known else {}
    return [
        HeldClaim(
            Outcome(
                id=job,
                claim=claim,
                ending=Ending.RELEASED,
                task=task,
                queue=queue,
                started=started_at,
                not_begun=started_at is None,
            ),
            Facts(
                failures=failures,
                max_attempts=max_attempts,
                deaths=deaths,
                claims=claim,
                began=started_at is not None,
                cancel_requested=cancel_asked is not None,
            ),
            policy_of(tasks, task),
            refused,
        )
        for job, claim, failures, max_attempts, started_at, cancel_asked, task, deaths, queue, refused in held
    ]


def policy_of(tasks: dict[str, Any], task: str) -> Retry:
    """What a worker's row says of the policy of a task."""
    attempts = tasks.get(task, {}).get("max_attempts")
    return Retry(max_attempts=attempts) if attempts else DEFAULT


def history_of(job: int, claim: int, event: str, **told: str | float | None) -> dict[str, Any]:
    """The values of a row in a job's timeline."""
    return {"id": job, "claim": claim, "event": str(event), **_UNTOLD, **told}


def add_history(tx: Session, job: int, claim: int, event: str, *, error_kind: str) -> None:
    """Add a row to the job's timeline."""
    tx.run("add_history", **history_of(job, claim, event, error_kind=error_kind))
