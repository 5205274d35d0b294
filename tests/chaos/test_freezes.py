"""Workers frozen past their lease and thawed again: what they come back with must not count."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest

from rowlock.job import HistoryEntry, Job
from rowlock.liveness import Lease
from tests.chaos.conftest import StartStorm
from tests.chaos.storm import Member, Storm, chosen_size, say
from tests.eventually import eventually


def started(storm: Storm, worker: Member) -> set[tuple[int, int]]:
    """The claims that this worker has begun to run."""
    return {(event.job, event.claim) for event in storm.log.read() if event.pid == worker.pid}


def ended(storm: Storm) -> set[tuple[int, int]]:
    return {(event.job, event.claim) for event in storm.log.read() if event.what == "end"}


def end_all(storm: Storm) -> None:
    """End every worker in good order, so that each has tried to write what it still had."""
    workers = storm.living("work")
    for worker in workers:
        storm.terminate(worker)
    for worker in workers:
        storm.wait_for_end(worker)


def test_a_worker_that_was_frozen_past_its_lease_changes_nothing(start_storm: StartStorm) -> None:
    storm = start_storm(lease=2.0)
    (frozen,) = storm.start_workers(1)
    jobs = [storm.app.enqueue(task, {"seconds": 2.0}).id for task in ("apply", "plain")]
    eventually(lambda: started(storm, frozen) == {(job, 1) for job in jobs}, timeout=60)
    storm.freeze(frozen)
    storm.start_workers(1)
    storm.drain()
    storm.thaw(frozen)
    eventually(lambda: {(job, 1) for job in jobs} <= ended(storm), timeout=30)
    end_all(storm)
    verdict = storm.verdict(jobs)
    verdict.must_be_clean()
    assert (verdict.in_vain, verdict.charged) == (2, 0)
    runs = Counter(event.job for event in storm.log.read() if event.what == "start")
    assert runs == dict.fromkeys(jobs, 2)


def freeze_one_after_the_other(storm: Storm, freezes: int, at_once: int) -> None:
    """Keep so many workers frozen, each for longer than its lease, while jobs come and go."""
    frozen: list[tuple[float, Member]] = []
    done = 0
    while frozen or done < freezes:
        if storm.unfinished() < 40 and not storm.living("produce"):
            storm.start_producer(60, seconds=0.2)
        if done < freezes and len(frozen) < at_once:
            victim = storm.random.choice(storm.living("work"))
            storm.freeze(victim)
            frozen.append((time.monotonic() + storm.lease * storm.random.uniform(1.05, 1.7), victim))
            done += 1
        for thaw in [thaw for thaw in frozen if thaw[0] <= time.monotonic()]:
            storm.thaw(thaw[1])
            frozen.remove(thaw)
        storm.pass_time(storm.random.uniform(0.05, 0.3))


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_two_hundred_freezes_past_the_lease(start_storm: StartStorm) -> None:
    storm = start_storm(lease=2.0)
    freezes = chosen_size(200)
    began = time.monotonic()
    storm.start_workers(8)
    freeze_one_after_the_other(storm, freezes, at_once=4)
    storm.drain(120)
    end_all(storm)
    verdict = storm.verdict()
    say(f"{storm.name}: {freezes} freezes in {time.monotonic() - began:.0f} s; {verdict}")
    verdict.must_be_clean()
    assert verdict.in_vain > 0


def freeze_all_together(storm: Storm, rounds: int) -> int:
    """Let all workers stop and go on together, as a suspended machine does; returns how many claims froze.

    Meanwhile, and until each has had the time to beat again, none may be taken for dead.
    """
    claims = 0
    spared: list[tuple[datetime, datetime]] = []
    producer = storm.start_producer(40, seconds=0.5, faults=False)
    for number in range(rounds):
        if number:  # let them find each other again
            storm.pass_time(storm.lease / 2)
        if number and storm.unfinished() < 20:
            producer = storm.start_producer(20, seconds=0.5, faults=False)
        eventually(storm.running, timeout=30)
        storm.pass_time(storm.random.uniform(0.0, 0.3))
        everybody = storm.living("work")
        frozen_at = datetime.now(timezone.utc)
        for worker in everybody:
            storm.freeze(worker)
        claims += storm.running()
        storm.pass_time(storm.lease * storm.random.uniform(1.1, 1.5))
        recovered_at = datetime.now(timezone.utc) + timedelta(seconds=Lease(storm.lease).recovery)
        spared.append((frozen_at, recovered_at))
        for worker in storm.random.sample(everybody, len(everybody)):
            storm.thaw(worker)
        storm.wait_for_end(producer)
    storm.drain(120)
    rescued = [line.at for job in storm.app.jobs(limit=10_000) for line in rescues(storm, job)]
    assert not [at for at in rescued for first, last in spared if first <= at < last]
    return claims


def rescues(storm: Storm, job: Job) -> list[HistoryEntry]:
    return [line for line in storm.app.history(job) if line.event == "rescued"]


def test_workers_that_were_frozen_together_do_not_bury_each_other(start_storm: StartStorm) -> None:
    storm = start_storm(lease=3.0)
    storm.start_workers(4)
    assert freeze_all_together(storm, rounds=1) > 0
    verdict = storm.verdict()
    verdict.must_be_clean()
    assert verdict.charged == 0


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_frozen_together_again_and_again(start_storm: StartStorm) -> None:
    storm = start_storm(lease=2.0)
    rounds = chosen_size(40)
    storm.start_workers(6)
    claims = freeze_all_together(storm, rounds)
    verdict = storm.verdict()
    say(f"{storm.name}: {rounds} times 6 workers frozen together, with {claims} claims; {verdict}")
    verdict.must_be_clean()
    assert verdict.charged == 0
