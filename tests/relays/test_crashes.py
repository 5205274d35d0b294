"""A process of the fleet dies at each step between claim and run; another one takes over, within a lease."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.relays.crashing import STEPS, make_app
from tests.relays.fleet import Fleet
from tests.servers.redis import RedisServer

ROOT = Path(__file__).parents[2]


STORES = [("claimed", "sqlite"), *((step, "postgres") for step in STEPS)]


@pytest.mark.parametrize(("step", "store"), STORES)
def test_a_crash_at_any_step_loses_nothing(
    step: str, store: str, tmp_path: Path, redis: RedisServer, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    if store == "postgres":
        url = request.getfixturevalue("postgres_queue")
    app = make_app(url)
    job = app.enqueue("work")
    command = [sys.executable, "-m", "tests.relays.crashing", step, url, redis.url]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    fleet = Fleet(app, redis)
    with fleet.working():
        assert app.result(job, timeout=30) == "done"
        eventually(lambda: fleet.hashes() == fleet.waiting() == fleet.popped() == [])
    found = app.job(job)
    # What was sent before its relay died may be begun all the same: its claim is still that relay's.
    assert found.failures == 0 and found.claim in ((1, 2) if step == "handed over" else (2,))
    fleet.close()
    app.close()
