"""SIGTERM at random moments: nothing is lost, nothing is charged, and the process ends."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import StartStorm
from tests.chaos.storm import Member, Storm, chosen_size, say
from tests.eventually import eventually


def terminate_at_random(storm: Storm, times: int) -> list[int]:
    """Ask one worker after the other to end, each replaced at once; returns their exit codes."""
    storm.start_workers(4)
    asked: list[Member] = []
    while len(asked) < times:
        if storm.unfinished() < 30 and not storm.living("produce"):
            storm.start_producer(60, seconds=0.1, faults=False)
        storm.pass_time(storm.random.uniform(0.0, 0.3))
        # Before it is registered a worker has no claims, and may not listen to signals yet.
        ready = eventually(
            lambda: [
                one for one in storm.living("work") if one not in asked and one.name in storm.registered()
            ]
        )
        worker = storm.random.choice(ready)
        storm.terminate(worker)
        asked.append(worker)
        storm.start_worker()
    codes = [storm.wait_for_end(worker) for worker in asked]
    storm.drain()
    return codes


def test_workers_told_to_end_at_random_lose_and_charge_nothing(start_storm: StartStorm) -> None:
    storm = start_storm(lease=60.0)  # nobody is rescued: what a worker leaves behind would stay
    assert set(terminate_at_random(storm, times=6)) == {0}
    verdict = storm.verdict()
    verdict.must_be_clean()
    assert verdict.charged == 0


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_sigterm_at_a_hundred_random_moments(start_storm: StartStorm) -> None:
    storm = start_storm(lease=60.0)
    times = chosen_size(100)
    began = time.monotonic()
    codes = terminate_at_random(storm, times)
    verdict = storm.verdict()
    took = time.monotonic() - began
    say(f"{storm.name}: {times} times SIGTERM in {took:.0f} s, exit codes {set(codes)}; {verdict}")
    verdict.must_be_clean()
    assert set(codes) == {0}
    assert verdict.charged == 0
