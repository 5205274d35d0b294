"""What a job costs, in statements (SQLite) or round trips (PostgreSQL), beside a queue with settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock
from tests.eventually import least
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

ONE_BY_ONE = {"concurrency": 1, "prefetch": 0}


class Watched:
    """An app, and what has been asked of its database so far."""

    def __init__(self, app: Rowlock, asked: Callable[[], int]) -> None:
        self.app = app
        self.asked = asked
        self._warm = False
        self.task = app.task(name="nothing")(lambda: None)

    def cost_of_a_job(self, jobs: int, queues: tuple[str, ...], **options: Any) -> float:
        """By a worker that is started for them, once all is opened and prepared."""
        if not self._warm:
            self._warm = True
            self.cost_of_a_job(10, queues, **options)
        for queue in queues:
            self.task.configure(queue=queue).enqueue_many([{}] * (jobs // len(queues)))
        before = self.asked()
        assert self.app.worker(**options).run(until_empty=True).completed == jobs
        return (self.asked() - before) / jobs


@pytest.fixture
def on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    said: list[str] = []
    connect = sqlite3.connect

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*given, **named)
        connection.set_trace_callback(said.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    with closing(Rowlock(f"sqlite:///{tmp_path}/jobs.db")) as app:
        yield Watched(app, lambda: len(said))


@pytest.fixture
def on_postgres(postgres: PostgresServer, postgres_queue: str) -> Iterator[Watched]:
    with Proxy(postgres.port) as proxy, closing(Rowlock(proxy.url(postgres_queue))) as app:
        yield Watched(app, lambda: proxy.questions)


def pause_one(app: Rowlock) -> tuple[str, ...]:
    app.enqueue("nothing", queue="other")
    app.pause("other")
    return ("default",)


def give_one_its_own_strategy(app: Rowlock) -> tuple[str, ...]:
    app.set_strategy("other", "LIFO")
    return ("default", "other")


# Measured (each of 60 jobs one by one; each of 600): 6.8, 0.25 statements or 1.6, 0.09 round trips without
# settings; 8.8, 0.25 or 1.6, 0.09 with a queue paused;
# 7.8, 0.27 or 6.8, 0.18 with a strategy of its own, which
# leaves the fused statement for a plain transaction.
@pytest.mark.parametrize(
    ("store", "setting", "one_by_one", "of_many"),
    [
        ("on_sqlite", pause_one, 9.5, 0.5),
        ("on_sqlite", give_one_its_own_strategy, 8.5, 0.5),
        ("on_postgres", pause_one, 2.0, 0.3),
        ("on_postgres", give_one_its_own_strategy, 7.5, 0.3),
    ],
)
def test_a_job_costs_little_more_beside_a_queue_with_settings(
    request: pytest.FixtureRequest,
    store: str,
    setting: Callable[[Rowlock], tuple[str, ...]],
    one_by_one: float,
    of_many: float,
) -> None:
    watched: Watched = request.getfixturevalue(store)
    queues = setting(watched.app)
    alone = least(lambda: watched.cost_of_a_job(60, queues, **ONE_BY_ONE), one_by_one)
    assert alone <= one_by_one
    assert least(lambda: watched.cost_of_a_job(600, queues), of_many) <= of_many
