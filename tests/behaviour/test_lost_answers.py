"""A connection is lost while PostgreSQL still executes: what that comes to is found, and done once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from rowlock import JobContext, Rowlock
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.parametrize("lab", ["postgres"], indirect=True)


class BadLine:
    """An app that reaches its database by a line which can be cut while the server is at work."""

    def __init__(self, lab: Lab, app: Rowlock, proxy: Proxy) -> None:
        self.lab, self.app, self._proxy = lab, app, proxy

    @contextmanager
    def cut_while_it_writes(self, table: str) -> Iterator[None]:
        """Who writes to the table in this block has to wait, and is cut off before the server goes on."""
        name = f"{self.lab.prefix}{table}"
        waiting = f"SELECT 1 FROM pg_locks WHERE relation = '{name}'::regclass AND NOT granted"
        with closing(self.lab.connect()) as holder, holder.transaction():
            holder.execute(f"LOCK TABLE {name} IN SHARE MODE")
            yield
            eventually(lambda: self.lab.execute(waiting))
            self._proxy.cut()
            threading.Event().wait(0.3)  # whoever lost the answer begins to look for it


@pytest.fixture
def line(lab: Lab, postgres: PostgresServer) -> Iterator[BadLine]:
    lab.app()
    with (
        Proxy(postgres.port) as proxy,
        closing(Rowlock(proxy.url(lab.url), poll_interval=0.05, lease=3.0)) as app,
    ):
        yield BadLine(lab, app, proxy)


def test_outcomes_and_claims_of_an_exchange(line: BadLine) -> None:
    app, runs, leave = line.app, Counter[int](), threading.Event()

    @app.task
    def work(ctx: JobContext) -> None:
        runs[ctx.id] += 1
        leave.wait(30)

    jobs = work.enqueue_many([{}] * 3)
    with app.worker(concurrency=1, prefetch=0, strategy="FIFO").background() as worker:
        eventually(lambda: runs)
        with line.cut_while_it_writes("rowlock_jobs"):
            leave.set()
        eventually(lambda: app.stats()["completed"] == 3)
    assert runs == dict.fromkeys(jobs, 1)
    assert (worker.tally.completed, worker.tally.lost) == (3, 0)
    assert [app.job(job).failures for job in jobs] == [0, 0, 0]


def test_the_claim_of_a_row(line: BadLine) -> None:
    app, runs = line.app, Counter[int]()
    line.lab.create(1)

    @app.consumer("birdnet", table=line.lab.table, state="analysis_state")
    def birdnet(recording: Row) -> None:
        runs[recording.id] += 1

    with app.consuming("birdnet", concurrency=1, poll_interval=1.0).background() as worker:
        eventually(lambda: line.lab.marks("birdnet")[1] and line.lab.sleeps(worker.id))
        with line.cut_while_it_writes("rowlock_consumer_claims"):
            line.lab.fill(2, 3)
            app.wake(line.lab.table)
        eventually(lambda: line.lab.marks("birdnet") == {1: True, 2: True, 3: True})
        eventually(lambda: not line.lab.claims())
    assert runs == {1: 1, 2: 1, 3: 1}


def test_an_enqueue(line: BadLine) -> None:
    app = line.app
    first = app.enqueue("work")
    with ThreadPoolExecutor(1) as elsewhere:
        with line.cut_while_it_writes("rowlock_jobs"):
            told = elsewhere.submit(app.enqueue, "work")
        id = told.result(timeout=20).id
    assert [job.id for job in app.jobs()] == [id, first.id]
