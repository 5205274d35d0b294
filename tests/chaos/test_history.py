"""The checker itself: a good history passes, and each kind of bad one is caught."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rowlock import JobContext, Retry, Rowlock
from tests.chaos.database import make_effects
from tests.chaos.history import Ending, Event, EventLog, History, Row, Sampler, Sighting, check, gather

LONG_AGO = datetime(2026, 1, 1, tzinfo=timezone.utc)


def run(job: int, claim: int, start: float, end: float | None) -> list[Event]:
    started = [Event(job, claim, "start", start)]
    return started if end is None else [*started, Event(job, claim, "end", end)]


# Job 1: first try. Job 2: its worker froze, claim 1 was taken back, ran on, and was refused. Job 3: raised,
# then its worker died, then it failed for good. Job 4: cancelled before anybody took it.
GOOD = History(
    acknowledged=[1, 2, 3, 4],
    jobs={
        1: Row("completed", 1, result=1, finished_at=LONG_AGO),
        2: Row("completed", 2, failures=1, result=2),
        3: Row("failed", 3, failures=3, error_kind="exception"),
        4: Row("cancelled", 0),
    },
    events=[
        *run(1, 1, 1.0, 1.1),
        *run(2, 1, 1.0, 5.0),
        *run(2, 2, 4.0, 4.5),
        *run(3, 1, 1.0, 1.5),
        *run(3, 2, 2.0, None),
        *run(3, 3, 6.0, 6.1),
    ],
    endings=[
        Ending(2, 1, "rescued", "worker_died"),
        Ending(2, 2, "completed"),
        Ending(3, 1, "retry", "exception"),
        Ending(3, 2, "rescued", "worker_died"),
        Ending(3, 3, "failed", "exception"),
        Ending(4, 0, "cancelled", "operator"),
    ],
    effects=[(1, 1), (2, 2)],
    sightings=[Sighting(2, "running", 1), Sighting(2, "completed", 2), Sighting(1, "completed", 1, LONG_AGO)],
)

BAD: dict[str, tuple[str, History]] = {
    "an acknowledged job is gone": (
        "lost",
        replace(GOOD, acknowledged=[1, 2, 3, 4, 5]),
    ),
    "a job that was seen is gone": (
        "lost",
        replace(GOOD, sightings=[Sighting(9, "queued", 0)]),
    ),
    "two enqueues share an id": ("id twice", replace(GOOD, acknowledged=[1, 1, 2, 3, 4])),
    "a job is left running": (
        "unfinished",
        replace(GOOD, jobs={**GOOD.jobs, 5: Row("running", 1)}),
    ),
    "a job is left queued that nobody acknowledged": (
        "unfinished",
        replace(GOOD, jobs={**GOOD.jobs, 5: Row("queued", 0)}),
    ),
    "an effect was applied by two claims": (
        "effect twice",
        replace(GOOD, effects=[*GOOD.effects, (2, 1)]),
    ),
    "an effect was applied twice by one claim": (
        "effect twice",
        replace(GOOD, effects=[*GOOD.effects, (1, 1)]),
    ),
    "a completed job has no effect": ("effect missing", replace(GOOD, effects=[(1, 1)])),
    "a failed job has an effect": ("stray effect", replace(GOOD, effects=[*GOOD.effects, (3, 3)])),
    "an effect of no job": ("stray effect", replace(GOOD, effects=[*GOOD.effects, (7, 1)])),
    "a lost claim's effect was accepted": ("stale write", replace(GOOD, effects=[(1, 1), (2, 1)])),
    "a lost claim's result was accepted": (
        "stale write",
        replace(GOOD, jobs={**GOOD.jobs, 2: Row("completed", 2, failures=1, result=1)}),
    ),
    "a completed job was completed once more": (
        "not final",
        replace(GOOD, sightings=[Sighting(1, "completed", 1, LONG_AGO - timedelta(seconds=1))]),
    ),
    "a claim was rescued and completed": (
        "ended twice",
        replace(GOOD, endings=[*GOOD.endings, Ending(2, 1, "completed")]),
    ),
    "a claim vanished from the timeline": ("never ended", replace(GOOD, endings=GOOD.endings[1:])),
    "a job failed and was claimed again": (
        "not final",
        replace(
            GOOD,
            endings=[
                Ending(3, 1, "failed", "exception") if end == Ending(3, 1, "retry", "exception") else end
                for end in GOOD.endings
            ],
        ),
    ),
    "a claim started twice": ("started twice", replace(GOOD, events=[*GOOD.events, *run(1, 1, 9.0, 9.1)])),
    "a claim started that the store never gave": (
        "unknown claim",
        replace(GOOD, events=[*GOOD.events, *run(1, 2, 9.0, 9.1)]),
    ),
    "a claim ended that the store never gave": (
        "unknown claim",
        replace(GOOD, endings=[*GOOD.endings, Ending(1, 2, "completed")]),
    ),
    "a completed claim was never run": ("never started", replace(GOOD, events=GOOD.events[2:])),
    "an accepted claim started after the next one": (
        "claim went back",
        replace(GOOD, events=[*GOOD.events[:6], *run(3, 1, 2.5, 2.6), *GOOD.events[8:]]),
    ),
    "an accepted run went on while the next one ran": (
        "overlap",
        replace(GOOD, events=[*GOOD.events[:6], *run(3, 1, 1.0, 2.5), *GOOD.events[8:]]),
    ),
    "a completed job was seen failed before": (
        "not final",
        replace(GOOD, sightings=[Sighting(1, "failed", 1)]),
    ),
    "a completed job was completed again by a later claim": (
        "not final",
        replace(GOOD, sightings=[Sighting(2, "completed", 1)]),
    ),
    "a final job was seen running again": (
        "not final",
        replace(GOOD, sightings=[Sighting(2, "completed", 2), Sighting(2, "running", 2)]),
    ),
    "a job's claim number went back": (
        "claim went back",
        replace(GOOD, sightings=[Sighting(3, "running", 3), Sighting(3, "running", 2)]),
    ),
}


def test_a_good_history_passes() -> None:
    verdict = check(GOOD)
    verdict.must_be_clean()
    assert (verdict.lost, verdict.doubled, verdict.stale) == (0, 0, 0)
    assert (verdict.claims, verdict.taken_back, verdict.in_vain, verdict.charged) == (6, 2, 1, 4)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_history_is_caught(case: str) -> None:
    kind, history = BAD[case]
    verdict = check(history)
    assert kind in verdict.kinds, verdict.breaches  # a bad one may break other promises, too
    with pytest.raises(AssertionError, match=kind):
        verdict.must_be_clean()


def test_a_late_start_of_a_claim_that_was_taken_back_is_nobody_s_fault() -> None:
    late = [event for event in GOOD.events if (event.job, event.claim) != (2, 1)]
    check(replace(GOOD, events=[*late, *run(2, 1, 4.2, 5.0)])).must_be_clean()


def test_a_history_is_gathered_from_a_real_run(app: Rowlock, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")

    @app.task(retry=Retry(max_attempts=2, base=0.0))
    def apply(ctx: JobContext, raises: int) -> int:
        log.write(ctx.id, ctx.claim, "start")
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO effects (job, claim) VALUES ({ctx.id}, {ctx.claim})")
            log.write(ctx.id, ctx.claim, "end")
            if ctx.claim <= raises:
                raise RuntimeError("on purpose")
        return ctx.claim

    app.store.open()
    make_effects(app.store.url)
    jobs = [apply.enqueue(raises).id for raises in (0, 1, 2)]
    sampler = Sampler(app)
    app.worker(poll_interval=0.05).run(until_empty=True)
    sampler.look(jobs)
    verdict = check(gather(app, jobs, log, sampler))
    verdict.must_be_clean()
    assert verdict.states == {"completed": 2, "failed": 1}
    assert (verdict.claims, verdict.charged, len(sampler.sightings)) == (5, 3, 3)
    app.retry(jobs[0])  # an operator may do it; to the checker a final state has changed
    assert {"not final", "unfinished"} <= set(check(gather(app, jobs, log, sampler)).kinds)
