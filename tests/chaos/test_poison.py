"""Jobs that kill their worker, among good ones: they use up their budget and take nobody along."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import StartStorm
from tests.chaos.storm import Storm, chosen_size, say
from tests.chaos.work import POISON_BUDGET
from tests.eventually import eventually


def run_with_poison(storm: Storm, poison: int, good: int) -> tuple[list[int], list[int]]:
    """Enqueue both, mixed, and replace workers as they die; returns the ids of both."""
    batches = storm.random.sample(["poison"] * poison + ["apply"] * good, poison + good)
    jobs: dict[str, list[int]] = {"poison": [], "apply": []}
    for task in batches:
        args = {"seconds": round(storm.random.uniform(0, 0.2), 3)} if task == "apply" else {}
        jobs[task].append(storm.app.enqueue(task, args).id)
    finish(storm)
    return jobs["poison"], jobs["apply"]


def run_with_quick_poison(storm: Storm, poison: int, good: int) -> tuple[list[int], list[int]]:
    """The same with one task for both, whose jobs are claimed ahead because most of them are quick."""
    kinds = [False] * 50 + storm.random.sample([True] * poison + [False] * good, poison + good)
    ids = [storm.app.enqueue("poison", {"deadly": deadly}).id for deadly in kinds]
    finish(storm)
    named = list(zip(ids, kinds, strict=True))
    return [id for id, deadly in named if deadly], [id for id, deadly in named if not deadly]


def finish(storm: Storm) -> None:
    storm.start_workers(3)

    def done() -> bool:
        for _ in range(3 - len(storm.living("work"))):
            storm.start_worker()
        return not storm.unfinished()

    eventually(done, timeout=300)


def must_have_failed_alone(storm: Storm, poison: list[int], good: list[int]) -> None:
    for job in poison:
        found = storm.app.job(job)
        runs = sum((event.job, event.what) == (job, "start") for event in storm.log.read())
        assert (found.state, found.failures, runs) == ("failed", POISON_BUDGET, POISON_BUDGET)
        assert found.error_kind == "worker_died"
        assert f"its worker died {POISON_BUDGET} times" in str(found.error)
    charged = {job: storm.app.job(job).failures for job in good}
    assert max(charged.values()) <= 1, charged


def must_have_died_as_often_as_its_budget(storm: Storm, poison: list[int], good: list[int]) -> None:
    """It may have been given back in between, so its claims may be more."""
    for job in poison:
        found = storm.app.job(job)
        deaths = [entry.event for entry in storm.app.history(job)].count("rescued")
        assert (found.state, found.failures, deaths) == ("failed", POISON_BUDGET, POISON_BUDGET)
    assert {storm.app.job(job).state for job in good} == {"completed"}
    assert max(storm.app.job(job).failures for job in good) <= 1


def test_a_poison_job_fails_after_its_budget_and_the_others_are_done(start_storm: StartStorm) -> None:
    storm = start_storm(lease=1.0)
    poison, good = run_with_poison(storm, poison=1, good=20)
    storm.verdict([*poison, *good]).must_be_clean()
    must_have_failed_alone(storm, poison, good)


def test_a_poison_job_of_a_quick_task_fails_after_its_budget_too(start_storm: StartStorm) -> None:
    storm = start_storm(lease=1.0)
    poison, good = run_with_quick_poison(storm, poison=1, good=100)
    storm.verdict([*poison, *good]).must_be_clean()
    must_have_died_as_often_as_its_budget(storm, poison, good)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_many_poison_jobs_of_a_quick_task(start_storm: StartStorm) -> None:
    storm = start_storm(lease=2.0)
    poison, good = run_with_quick_poison(storm, poison=10, good=chosen_size(2_000))
    verdict = storm.verdict([*poison, *good])
    charged = [storm.app.job(job).failures for job in good]
    say(
        f"{storm.name}: {len(poison)} poison jobs of budget {POISON_BUDGET} among {len(good)} of the same "
        f"quick task, {sum(map(bool, charged))} neighbours charged, at most {max(charged)} times; {verdict}"
    )
    verdict.must_be_clean()
    must_have_died_as_often_as_its_budget(storm, poison, good)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_many_poison_jobs_among_good_ones(start_storm: StartStorm) -> None:
    storm = start_storm(lease=2.0)
    poison, good = run_with_poison(storm, poison=10, good=chosen_size(500))
    verdict = storm.verdict([*poison, *good])
    neighbours = sum(storm.app.job(job).failures for job in good)
    say(
        f"{storm.name}: {len(poison)} poison jobs of budget {POISON_BUDGET} among {len(good)}, "
        f"neighbours charged {neighbours} times; {verdict}"
    )
    verdict.must_be_clean()
    must_have_failed_alone(storm, poison, good)
