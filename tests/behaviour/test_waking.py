"""How a worker that waits comes to know of jobs, and of signals, long before its next poll."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock import Rowlock
from tests.behaviour.exchanges import Exchanges
from tests.consumers.lab import Lab
from tests.eventually import eventually
from tests.stores.steps import take
from tests.stores.steps import worker as register

NEVER = 600.0  # seconds between polls; no test here is so long
ENQUEUE = """
import sys
from rowlock import Rowlock

app = Rowlock(sys.argv[1])
for line in sys.stdin:
    app.enqueue(line.strip())
    print("done", flush=True)
"""
WORK = """
import sys
from rowlock import Rowlock

app = Rowlock(sys.argv[1], poll_interval=600.0)
app.task(name="work")(lambda: None)
app.worker(concurrency=1, worker_id="w").run()
"""


class OtherProcess:
    """Another program that enqueues jobs when it is told to."""

    def __init__(self, url: str) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._program = subprocess.Popen([sys.executable, "-c", ENQUEUE, url], **pipes)
        self._lock = threading.Lock()

    def enqueue(self, task: str) -> None:
        """Returns when it has committed."""
        assert self._program.stdin is not None and self._program.stdout is not None
        with self._lock:
            self._program.stdin.write(f"{task}\n")
            self._program.stdin.flush()
            assert self._program.stdout.readline() == "done\n"

    def end(self) -> None:
        self._program.communicate()


@pytest.fixture
def other(lab: Lab, app: Rowlock) -> Iterator[OtherProcess]:
    made = OtherProcess(lab.url)
    yield made
    made.end()


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)  # where each connection sees commits by itself
def test_another_processs_commit_wakes_a_worker_whose_last_exchange_a_runner_made(
    app: Rowlock, other: OtherProcess, exchanges: Exchanges
) -> None:
    """Right after that exchange, which found nothing, and when all is quiet again."""
    runners, right_after = set[int](), list[int]()

    @app.task
    def work() -> None:
        runners.add(threading.get_ident())

    def enqueue_right_after() -> None:
        if threading.get_ident() in runners and len(right_after) < 2:
            right_after.append(1)
            other.enqueue("work")

    def all_done() -> bool:
        return app.stats()["completed"] == quiet + len(right_after)

    exchanges.after, quiet = enqueue_right_after, 0
    with app.worker(concurrency=1, prefetch=0, poll_interval=NEVER).background():
        while quiet < 200 and len(right_after) < 2:  # the loop may be quicker than the runner, but not always
            exchanges.rest()
            quiet += 1
            other.enqueue("work")
            eventually(all_done)
        exchanges.rest()
        eventually(all_done)
    assert len(right_after) == 2


def test_an_idle_worker_polls_as_rarely_as_it_was_told_to(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    rarely, often = lab.app(), lab.app()
    for one in (rarely, often):
        one.task(name="work")(lambda: None)
    few, many = Exchanges(rarely, monkeypatch), Exchanges(often, monkeypatch)
    with rarely.worker(poll_interval=NEVER).background(), often.worker(poll_interval=0.05).background():
        eventually(lambda: many.count >= 10)
    assert few.count <= 4  # the first, and some because others registered


@pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX signals")
@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)  # where a wait is many short ones
def test_signals_reach_a_worker_that_waits(lab: Lab, app: Rowlock) -> None:
    """Also thousands of them: a handler that waited for a lock of the loop's would hang sooner or later."""
    program = subprocess.Popen([sys.executable, "-c", WORK, lab.url], stderr=subprocess.DEVNULL)
    try:
        app.result(app.enqueue("work").id, timeout=60)
        for _ in range(50_000):
            os.kill(program.pid, signal.SIGUSR1)
        os.kill(program.pid, signal.SIGTERM)
        assert program.wait(timeout=60) == 0
    finally:
        program.kill()
        program.wait()
    assert [record.ended for record in app.store.workers()] == ["stopped"]


# -- who says that it waits (PostgreSQL, where one who waits is told by name) ---------------------------


@pytest.mark.parametrize("lab", ["postgres"], indirect=True)
def test_a_worker_does_not_say_that_it_waits_while_a_runner_makes_its_exchange(
    lab: Lab, app: Rowlock, exchanges: Exchanges
) -> None:
    """It would have to take that back, which costs a round trip per job."""
    runners, waits = set[int](), list[bool]()

    @app.task
    def work() -> None:
        runners.add(threading.get_ident())

    def look() -> None:
        if threading.get_ident() in runners and len(waits) < 2:
            threading.Event().wait(0.15)  # the loop's thread has the time to say so
            waits.append(lab.sleeps("w"))

    with app.worker(concurrency=1, prefetch=0, poll_interval=NEVER, worker_id="w").background():
        eventually(lambda: lab.sleeps("w"))
        exchanges.before = look
        for batch in range(1, 50):  # the loop may be quicker than the runner, but not always
            work.enqueue_many([{}] * 8)
            eventually(lambda: app.stats()["completed"] == 8 * batch)  # noqa: B023 - asked at once
            if waits:
                break
    assert waits and not any(waits)


@pytest.mark.parametrize("lab", ["postgres"], indirect=True)
def test_a_worker_that_runs_a_job_alone_does_not_ask_to_be_told_of_others(lab: Lab, app: Rowlock) -> None:
    begun, leave = threading.Event(), threading.Event()

    @app.task
    def suspect() -> None:
        begun.set()
        leave.wait(30)

    work = app.task(name="work")(lambda: None)
    suspect.enqueue()
    take(app.store, register(app.store, "dead", lease=0.0))
    with app.worker(concurrency=2, worker_id="isolate", poll_interval=NEVER).background():
        assert begun.wait(30)
        with app.worker(concurrency=2, worker_id="idle", poll_interval=NEVER).background():
            eventually(lambda: lab.sleeps("idle"))
            assert not lab.sleeps("isolate")
            job = work.enqueue()
            app.result(job.id, timeout=30)
            assert app.job(job.id).claimed_by == "idle"
            leave.set()
