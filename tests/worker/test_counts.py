"""What 1,000 jobs that do nothing cost in statements, transactions and round trips."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.stores.sqlite import connections
from tests.eventually import least
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

JOBS = 1_000


def warmed_up(app: Rowlock) -> None:
    """All is opened and prepared."""
    app.task(name="nothing")(lambda: None).enqueue_many([{}] * JOBS)
    app.worker().run(until_empty=True)


def run_all(app: Rowlock, asked: Callable[[], float]) -> float:
    """What was asked of the database while a worker did all jobs."""
    app.tasks["nothing"].enqueue_many([{}] * JOBS)
    before = asked()
    assert app.worker().run(until_empty=True).completed == JOBS
    return asked() - before


def test_on_sqlite_batches_form_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    connect = sqlite3.connect

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*given, **named)
        connection.set_trace_callback(said.append)
        return connection

    monkeypatch.setattr(connections.sqlite3, "connect", traced)
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")
    warmed_up(app)

    def statements(beginning: str) -> Callable[[], int]:
        return lambda: sum(statement.startswith(beginning) for statement in said)

    # A batch is taken by one statement, and finished by one.
    for beginning, most in (("UPDATE rowlock_jobs", JOBS / 10), ("COMMIT", JOBS / 10), ("", JOBS / 2)):
        assert least(lambda: run_all(app, statements(beginning)), most) <= most  # noqa: B023 - asked at once
    app.close()


def test_on_postgresql_a_batch_is_one_round_trip(postgres: PostgresServer, postgres_queue: str) -> None:
    with Proxy(postgres.port) as proxy:
        app = Rowlock(proxy.url(postgres_queue))
        warmed_up(app)
        assert least(lambda: run_all(app, lambda: proxy.questions), JOBS / 10) <= JOBS / 10
        app.close()


def test_without_claiming_ahead_each_job_is_an_exchange(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="nothing")(lambda: None).enqueue_many([{}] * 50)
    worker = app.worker(concurrency=1, prefetch=0)
    assert worker.run(until_empty=True).completed == 50
    assert worker.polls.successful == 50
    app.close()
