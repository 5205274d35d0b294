"""The finishing steps: outcomes, reports, the claims of the dead; each inside the caller's transaction.

Every write says which claim it holds, and tells when that claim was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from rowlock import endings
from rowlock.endings import Event, Facts
from rowlock.job import EVERY_TASK, Claim, Ending, Outcome, Report, State
from rowlock.retry import DEFAULT, Retry
from rowlock.stores.sql.session import Session

KEPT_LINES = 500
_AFTER = {
    Ending.COMPLETED: (State.COMPLETED,),
    Ending.FAILED: (State.FAILED,),
    Ending.CANCELLED: (State.CANCELLED,),
    Ending.RETRY: (State.SCHEDULED, State.QUEUED, State.CANCELLED),
    Ending.RELEASED: (State.QUEUED, State.SCHEDULED, State.CANCELLED),
}
_FATES = {
    Ending.RETRY: State.QUEUED,  # in a moment
    Ending.RELEASED: State.QUEUED,
    Ending.FAILED: State.FAILED,
    Ending.CANCELLED: State.CANCELLED,
}


class Step(NamedTuple):
    """A guarded statement, and what the timeline says if it changed its job."""

    statement: str
    values: dict[str, Any]
    history: dict[str, Any] | None


def take_steps(tx: Session, steps: Sequence[Step]) -> list[bool]:
    """Run them: a round trip per kind of statement, and one for the timeline; says which changed a job."""
    if len(steps) == 1:  # most often, and then SQLite feels what follows: 8 of 100 us
        (step,) = steps
        was_changed = tx.run(step.statement, **step.values) > 0
        if was_changed and step.history is not None:
            tx.run("add_history", **step.history)
        return [was_changed]
    kinds: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        kinds.setdefault(step.statement, []).append(place)
    changed = [False] * len(steps)
    told: list[dict[str, Any]] = []
    for statement, places in kinds.items():
        counts = tx.count_each(statement, [steps[place].values for place in places])
        for place, count in zip(places, counts, strict=True):
            history = steps[place].history
            if count:
                changed[place] = True
                if history is not None:
                    told.append(history)
    if told:
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
        for id, queues, tasks in tx.rows("living_workers")
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
    }
    if outcome.is_usual:
        return Step("finish_completed", values, None)
    if outcome.unless_known and (outcome.task, outcome.queue) in known:
        at_once = endings.decide(Event.KNOWN_ELSEWHERE, Facts(), DEFAULT)
        values |= {"delay": at_once.delay, "error": None, "error_kind": at_once.kind}
    history = history_of(
        outcome.id,
        outcome.claim,
        outcome.ending,
        worker=worker,
        started_at=outcome.started,
        error=outcome.error,
        error_kind=outcome.error_kind,
    )
    if outcome.isolate:
        return Step("rescue_requeue", {**values, "isolate": outcome.isolate}, history)
    return Step(f"finish_{outcome.ending}", values, history)


def was_written(tx: Session, outcome: Outcome) -> bool:
    """True if the job already is what this outcome makes of it, under this very claim."""
    row = tx.row("retry_facts", id=outcome.id)
    return row is not None and row[0] == outcome.claim and row[1] in _AFTER[outcome.ending]


def took_effect(tx: Session, outcome: Outcome) -> bool:
    """The same, also if the job came back by it and somebody else has taken it since."""
    comes_back = outcome.ending in (Ending.RETRY, Ending.RELEASED)
    row = tx.row("retry_facts", id=outcome.id) if comes_back else None
    return (row is not None and row[0] > outcome.claim) or was_written(tx, outcome)


def write_reports(tx: Session, reports: Sequence[Report]) -> None:
    """Write the progress and the log lines of claims that still hold."""
    if not reports:
        return
    for name, values in (
        ("report_progress", [values for report in reports for values in _progress(report)]),
        ("report_line", [values for report in reports for values in _lines(report)]),
        ("trim_lines", [{"id": report.id, "keep": KEPT_LINES} for report in reports if report.lines]),
    ):
        if values:
            tx.each(name, values)


def _progress(report: Report) -> list[dict[str, Any]]:
    if not report.progress:
        return []
    return [{"id": report.id, "claim": report.claim, **msgspec.structs.asdict(report.progress)}]


def _lines(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "id": report.id,
            "claim": report.claim,
            "at": line.at,
            "message": line.message,
            "fields": line.fields,
        }
        for line in report.lines
    ]


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
    said: dict[str, Any] = {"error": endings.EXPIRED, "error_kind": kind}
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


class Fate(NamedTuple):
    """What is to become of a claim whose worker died."""

    step: Step
    state: State
    task: str


def rescue_claims(tx: Session, worker: str, tasks: dict[str, Any], died_by: float) -> list[State]:
    """Declare a worker dead and decide on each of its claims; started ones are charged."""
    tx.run("declare_worker_dead", worker=worker)
    return take_fates(tx, fates_of(tx, worker, tasks, died_by))


def fates_of(tx: Session, worker: str, tasks: dict[str, Any], died_by: float) -> list[Fate]:
    """What is to become of each claim of a dead worker.

    Each may have killed it. Next time it runs without company for as long as it may have lived this time (up
    to a minute): if it kills again, it takes nobody along.
    """
    fates: list[Fate] = []
    held = tx.rows("held_by", worker=worker)
    refused = dict(tx.rows("refused_of", worker=worker)) if held else {}
    for row in held:
        job, started_at, task = row[0], row[4], row[6]
        if job in refused:
            outcome = _unwritable(row, refused[job], policy_of(tasks, task))
            fates.append(Fate(ending(worker, outcome), _FATES[outcome.ending], task))
            continue
        lived = 0.0 if started_at is None else died_by - started_at
        facts = msgspec.structs.replace(_facts(row), lived=lived)
        outcome = endings.settled(_plain(row), Event.WORKER_DIED, facts, policy_of(tasks, task))
        step = ending(worker, outcome)
        assert step.history is not None
        error = outcome.error if outcome.ending is Ending.FAILED else None
        history = {**step.history, "event": "rescued", "error": error, "error_kind": "worker_died"}
        fates.append(Fate(step._replace(history=history), _FATES[outcome.ending], task))
    return fates


def take_fates(tx: Session, fates: Sequence[Fate]) -> list[State]:
    """Let it come true; returns what the jobs are now, but for those that had been settled already."""
    # What did not change was settled by its worker, which came back in time for that one; and a cancel may
    # have been asked for since the look at what it held.
    changed = take_steps(tx, [fate.step for fate in fates])
    ids = [fate.step.values["id"] for fate in fates if fate.state is State.QUEUED]
    cancelled = {row[0] for row in tx.rows("cancelled_among", ids=_json(ids))} if ids else set()
    return [
        State.CANCELLED if fate.step.values["id"] in cancelled else fate.state
        for fate, was_changed in zip(fates, changed, strict=True)
        if was_changed
    ]


def given_back(tx: Session, worker: str) -> list[Outcome]:
    """What becomes of the claims that a worker still holds when it ends in good order."""
    held = tx.rows("held_by", worker=worker)
    if not held:
        return []
    refused = dict(tx.rows("refused_of", worker=worker))
    known = tx.row("tasks_of", worker=worker)
    tasks = msgspec.json.decode(known[0]) if known else {}
    return [_given_back(row, refused.get(row[0]), policy_of(tasks, row[6])) for row in held]


def _given_back(row: Any, refused: str | None, retry: Retry) -> Outcome:
    if refused is not None:
        return _unwritable(row, refused, retry)
    return endings.settled(_plain(row), Event.STOPPED, _facts(row), retry)


def _unwritable(row: Any, said: str, retry: Retry) -> Outcome:
    """It has run, and the database refused what it came to: that was an attempt, however its worker ended."""
    return endings.settled(_plain(row), Event.UNWRITABLE, _facts(row), retry, said)


def policy_of(tasks: dict[str, Any], task: str) -> Retry:
    """What a worker's row says of the policy of a task."""
    attempts = tasks.get(task, {}).get("max_attempts")
    return Retry(max_attempts=attempts) if attempts else DEFAULT


def _plain(row: Any) -> Outcome:
    """A claim that is read by `held_by`, of which nothing is decided yet."""
    job, claim, _, _, started_at, _, task, _, queue = row
    return Outcome(id=job, claim=claim, ending=Ending.RELEASED, task=task, queue=queue, started=started_at)


def _facts(row: Any) -> Facts:
    _, claim, failures, max_attempts, started_at, cancel_requested_at, _, deaths, _ = row
    return Facts(
        failures=failures,
        max_attempts=max_attempts,
        deaths=deaths,
        claims=claim,
        began=started_at is not None,
        cancel_requested=cancel_requested_at is not None,
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def history_of(
    job: int,
    claim: int,
    event: str,
    *,
    worker: str | None = None,
    started_at: float | None = None,
    error: str | None = None,
    error_kind: str | None = None,
) -> dict[str, Any]:
    """The values of a row in a job's timeline."""
    return {
        "id": job,
        "claim": claim,
        "event": str(event),
        "worker": worker,
        "started_at": started_at,
        "error": error,
        "error_kind": error_kind,
    }


def add_history(tx: Session, job: int, claim: int, event: str, *, error_kind: str) -> None:
    """Add a row to the job's timeline."""
    tx.run("add_history", **history_of(job, claim, event, error_kind=error_kind))
