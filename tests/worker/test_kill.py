"""Worker processes that die or are told to end, in the middle of their jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rowlock import Rowlock
from tests.eventually import eventually, time_lost

LEASE = 2.0
CODE = """
import os, signal, sys, time
from pathlib import Path
from rowlock import JobContext, Retry, Rowlock

app = Rowlock("sqlite:///{database}", lease={lease})
folder = Path({folder!r})

@app.task
def work(ctx: JobContext, n: int, seconds: float = 0.0) -> int:
    (folder / f"started-{{n}}-{{os.getpid()}}").touch()
    if ctx.claim == 1:
        time.sleep(seconds)
    return n

@app.task(retry=Retry(max_attempts=2, base=0.0))
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

app.worker(concurrency=2, worker_id=sys.argv[1]).run()
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX signals")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Rowlock]:
    made = Rowlock(f"sqlite:///{tmp_path}/jobs.db", lease=LEASE)
    made.store.open()
    yield made
    made.close()


@pytest.fixture
def start(app: Rowlock, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    script = tmp_path / "work.py"
    script.write_text(CODE.format(database=tmp_path / "jobs.db", folder=str(tmp_path), lease=LEASE))
    processes: list[subprocess.Popen[bytes]] = []

    def start_worker(name: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, str(script), name])
        processes.append(process)
        eventually(lambda: any(worker.id == name for worker in app.store.workers()), timeout=60)
        return process

    yield start_worker
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_jobs_of_a_killed_worker_finish_elsewhere_within_lease_and_a_second(
    app: Rowlock, start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    victim = start("victim")
    jobs = [app.enqueue("work", {"n": n, "seconds": 60.0}) for n in range(2)]
    eventually(lambda: len(list(tmp_path.glob("started-*"))) == 2)
    start("survivor")
    with time_lost() as lost:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        assert [app.result(job.id, timeout=60) for job in jobs] == [0, 1]
    (last_beat,) = [worker.beat_at for worker in app.store.workers() if worker.id == "victim"]
    for job in jobs:
        rescued = app.history(job.id)[0]
        assert (rescued.at - last_beat).total_seconds() < LEASE + 1 + 2 * lost()
        found = app.job(job.id)
        assert (found.claim, found.claimed_by, found.failures) == (2, "survivor", 0)
        assert [entry.event for entry in app.history(job.id)] == ["rescued", "completed"]


def test_a_job_that_kills_its_workers_fails_and_the_others_are_done(
    app: Rowlock, start: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    poison = app.enqueue("poison")
    good = [app.enqueue("work", {"n": n}) for n in range(5)]
    first = start("first")
    first.wait()
    second = start("second")
    second.wait()
    start("third")
    eventually(lambda: app.job(poison.id).state.final, timeout=60)
    found = app.job(poison.id)
    assert (found.state, found.error_kind, found.failures) == ("failed", "worker_died", 2)
    assert "its worker died 2 times" in str(found.error)
    assert [app.result(job.id, timeout=60) for job in good] == list(range(5))


def test_sigterm_finishes_what_runs(
    app: Rowlock, start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start("w")
    job = app.enqueue("work", {"n": 1, "seconds": 1.0})
    eventually(lambda: list(tmp_path.glob("started-1-*")))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert app.result(job.id, timeout=0) == 1


def test_a_second_signal_gives_back_what_runs_at_once(
    app: Rowlock, start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start("w")
    job = app.enqueue("work", {"n": 1, "seconds": 60.0})
    eventually(lambda: list(tmp_path.glob("started-1-*")))
    process.send_signal(signal.SIGTERM)  # two of one kind may arrive as one
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    found = app.job(job.id)
    assert (found.state, found.failures) == ("queued", 0)


def test_many_workers_killed_again_and_again_lose_nothing(
    app: Rowlock, start: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    jobs = [app.enqueue("work", {"n": n, "seconds": 0.01}) for n in range(60)]
    for number in range(3):
        process = start(f"w{number}")
        eventually(lambda number=number: app.stats()["completed"] >= (number + 1) * 5, timeout=60)
        process.kill()
        process.wait()
    start("last")
    assert [app.result(job.id, timeout=60) for job in jobs] == list(range(60))
    assert all(app.job(job.id).failures <= 3 for job in jobs)
