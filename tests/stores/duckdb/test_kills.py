"""kill -9 in the middle of a turn: nothing that was acknowledged is lost, and the file opens."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rowlock import Rowlock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX signals")

WORK = """
import sys
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.address import store_for
from tests.stores.steps import add, outcome, worker
store = store_for(sys.argv[1], busy_timeout=60.0)
who = worker(store)
print("ready", flush=True)
claims = []
while True:
    print("enqueued", *add(store, 5), flush=True)
    outcomes = [outcome(claim, Ending.COMPLETED, result="1") for claim in claims]
    got = store.exchange(who, outcomes, ClaimRequest(count=3))
    assert got.lost == []
    print("completed", *(claim.id for claim in claims), flush=True)
    claims = got.claims
"""


def killed_in_a_turn(url: str, after: float) -> dict[str, set[int]]:
    """Let a worker work, kill it in the middle, and return what it had been told was done."""
    process = subprocess.Popen([sys.executable, "-c", WORK, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    told: dict[str, set[int]] = {"enqueued": set(), "completed": set()}
    for line in process.stdout:
        if not told["enqueued"]:  # the first time
            threading.Timer(after, lambda: os.kill(process.pid, signal.SIGKILL)).start()
        if line.endswith("\n"):
            what, *ids = line.split()
            told[what] |= set(map(int, ids))
    process.wait()
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()
    return told


def storm(path: Path, kills: int, seed: int) -> None:
    url, draw = f"duckdb:///{path}", random.Random(seed)
    told: dict[str, set[int]] = {"enqueued": set(), "completed": set()}
    app = Rowlock(url, busy_timeout=60.0)
    for _ in range(kills):
        for what, ids in killed_in_a_turn(url, draw.uniform(0.05, 0.4)).items():
            told[what] |= ids
        jobs, cursor = {}, None
        while page := app.jobs(limit=10_000, cursor=cursor):  # the file opens, and nothing is lost
            jobs |= {job.id: str(job.state) for job in page}
            cursor = page.cursor
            if cursor is None:
                break
        assert told["enqueued"] <= jobs.keys()
        assert {jobs[id] for id in told["completed"]} <= {"completed"}
    assert told["enqueued"]
    app.close()


def test_a_kill_in_a_turn_loses_nothing(tmp_path: Path) -> None:
    storm(tmp_path / "data.duckdb", kills=2, seed=random.randrange(10**6))


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_fifty_kills_in_a_turn_lose_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("ROWLOCK_CHAOS_SEED", random.randrange(10**6)))
    sys.stdout.write(f"seed {seed}\n")
    storm(tmp_path / "data.duckdb", kills=50, seed=seed)
