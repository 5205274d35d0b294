"""A worker of an older version, which does not know a task, beside one that does."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import StartStorm
from tests.chaos.storm import Storm, chosen_size, say
from tests.eventually import eventually


def offered_to_the_old_one_first(storm: Storm, count: int) -> list[int]:
    """Enqueue jobs that only a newer version knows while there is none; returns when some were given back."""
    storm.start_worker(newer=False)
    jobs = [storm.app.enqueue("newest").id for _ in range(count)]
    eventually(lambda: storm.app.job(jobs[0]).error_kind == "unknown_task", timeout=30)
    found = storm.app.job(jobs[0])
    assert (found.state, found.failures) == ("scheduled", 0)
    return jobs


def test_an_older_worker_leaves_to_a_newer_one_what_it_does_not_know(start_storm: StartStorm) -> None:
    storm = start_storm(lease=60.0)
    jobs = offered_to_the_old_one_first(storm, 5)
    storm.start_worker()
    eventually(lambda: all(storm.app.job(job).state.final for job in jobs), timeout=30)
    verdict = storm.verdict(jobs)
    verdict.must_be_clean()
    assert (verdict.states, verdict.charged) == ({"completed": 5}, 0)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_old_and_new_workers_side_by_side(start_storm: StartStorm) -> None:
    storm = start_storm(lease=60.0)
    jobs = offered_to_the_old_one_first(storm, chosen_size(50))
    storm.start_workers(3)
    storm.drain(600)
    verdict = storm.verdict(jobs)
    say(f"{storm.name}: {len(jobs)} jobs that three workers knew and one did not; {verdict}")
    verdict.must_be_clean()
    assert verdict.charged == 0
