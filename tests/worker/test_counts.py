"""What 1,000 jobs that do nothing cost in statements, transactions and round trips."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.stores.sqlite import connections
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

JOBS = 1_000


def warmed_up(app: Rowlock) -> None:
    """All is opened and prepared, and the jobs are there."""
    app.task(name="nothing")(lambda: None).enqueue_many([{}] * JOBS)
    app.worker().run(until_empty=True)
    app.tasks["nothing"].enqueue_many([{}] * JOBS)


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
    said.clear()
    assert app.worker().run(until_empty=True).completed == JOBS
    kinds = Counter(statement.split()[0] for statement in said)
    updates = sum(statement.startswith("UPDATE rowlock_jobs") for statement in said)
    assert updates <= JOBS / 10  # a batch is taken by one statement, and finished by one
    assert kinds["COMMIT"] <= JOBS / 10
    assert len(said) <= JOBS / 2
    app.close()


def test_on_postgresql_a_batch_is_one_round_trip(postgres: PostgresServer, postgres_schema: str) -> None:
    with Proxy(postgres.port) as proxy:
        app = Rowlock(proxy.url(postgres_schema))
        warmed_up(app)
        before = proxy.questions
        assert app.worker().run(until_empty=True).completed == JOBS
        assert proxy.questions - before <= JOBS / 10
        app.close()


def test_without_claiming_ahead_each_job_is_an_exchange(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="nothing")(lambda: None).enqueue_many([{}] * 50)
    worker = app.worker(concurrency=1, prefetch=0)
    assert worker.run(until_empty=True).completed == 50
    assert worker.poller.polls_successful == 50
    app.close()
