"""`task.using(x)`: a job commits or rolls back with the caller's own rows, whatever x is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import md5
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rowlock import ConfigurationError, Job, Rowlock
from rowlock.stores.postgres import PostgresStore
from rowlock.stores.postgres.dialect import CHANNEL
from tests.eventually import eventually
from tests.servers.postgres import schema_url
from tests.stores.steps import worker
from tests.stores.test_user_connection import (
    Case,
    Place,
    case,
    on_postgres,
    on_sqlite,
    opened,
    postgres_place,
    sqlite_file,
    table_in,
)

__all__ = ["case", "sqlite_file"]  # fixtures


@pytest.fixture
def postgres_table(postgres_queue: str) -> Iterator[Place]:
    """The user's table beside a queue that is there already."""
    url, _, schema = postgres_queue.partition("?schema=")
    with psycopg.connect(url, autocommit=True) as other, table_in(schema, url, other) as place:
        yield place


@pytest.fixture
def place_without_queue(postgres_url: str) -> Iterator[Place]:
    with postgres_place(postgres_url) as place:
        yield place


nowhere = [pytest.param(("place_without_queue", one.values[0][1]), id=one.id) for one in on_postgres]
case_without_queue = pytest.fixture(opened, name="case_without_queue", params=[*on_sqlite, *nowhere])


def queue_in(place: Place) -> Rowlock:
    """A queue beside the user's table, with a task to enqueue."""
    schema, dot, _ = place.table.partition(".")
    app = Rowlock(schema_url(place.url, schema) if dot else place.url)

    @app.task(queue="mail")
    def send(to: str, copies: int = 1) -> str:
        return to * copies

    return app


@pytest.fixture
def app(case: Case) -> Iterator[Rowlock]:
    made = queue_in(case.place)
    made.store.open()
    yield made
    made.close()


def finished(case: Case, made: Any) -> Any:
    """The result of a call that has to be awaited on an asynchronous connection."""
    return case.loop.run_until_complete(made) if case.loop else made


def send_on(case: Case, app: Rowlock, *args: Any, **options: Any) -> Job:
    enqueuer = app.tasks["send"].configure(**options).using(case.given)
    job = finished(case, enqueuer.enqueue(*args))
    assert isinstance(job, Job)
    return job


def test_a_rollback_leaves_neither_row_nor_job(app: Rowlock, case: Case) -> None:
    case.start()
    case.do(lambda face: case.insert(face, 1))
    send_on(case, app, "ada")
    case.rollback()
    assert case.place.read() == []
    assert app.jobs() == []


def test_a_commit_leaves_the_row_and_one_job_that_runs(app: Rowlock, case: Case) -> None:
    case.start()
    case.do(lambda face: case.insert(face, 1))
    job = send_on(case, app, "ada", 2)
    assert app.jobs() == []
    case.commit()
    assert case.place.read() == [(1, "x")]
    assert app.jobs() == [app.job(job.id)]
    told = (job.id, job.task, job.queue, job.args, job.state, job.created_at)
    found = app.job(job.id)
    assert told == (found.id, found.task, found.queue, found.args, found.state, found.created_at)
    app.worker(concurrency=1).run(until_empty=True)
    assert app.result(job.id) == "adaada"


def test_many_jobs_commit_together(app: Rowlock, case: Case) -> None:
    calls = [{"to": f"n{number}"} for number in range(60)]
    case.start()
    ids = finished(case, app.tasks["send"].using(case.given).enqueue_many(calls))
    assert app.jobs() == []
    case.commit()
    assert [app.job(id).args["to"] for id in ids] == [call["to"] for call in calls]
    assert len(app.jobs(limit=100)) == 60


def test_options_are_kept(app: Rowlock, case: Case) -> None:
    case.start()
    job = send_on(case, app, "ada", priority=7, delay=60, expires=30, meta={"trace": "t"}, queue="late")
    case.commit()
    found = app.job(job.id)
    assert (found.priority, found.queue, found.state, found.meta) == (7, "late", "scheduled", {"trace": "t"})
    assert found.run_at == job.run_at and found.expires_at == job.expires_at
    assert found.expires_at is not None and (found.expires_at - found.run_at).total_seconds() == 30


def test_a_unique_key_finds_its_holder_in_the_same_transaction(app: Rowlock, case: Case) -> None:
    case.start()
    first = send_on(case, app, "ada", unique_key="k")
    second = send_on(case, app, "bob", unique_key="k")
    assert (first.is_new, second.is_new, second.id, second.args["to"]) == (True, False, first.id, "ada")
    case.commit()
    assert len(app.jobs()) == 1


def test_another_database_is_refused_and_the_users_transaction_goes_on(case: Case, tmp_path: Path) -> None:
    with closing(Rowlock(f"sqlite:///{tmp_path / 'elsewhere.db'}")) as other:

        @other.task
        def send(to: str) -> None:
            pass

        case.start()
        case.do(lambda face: case.insert(face, 1))
        with pytest.raises(ConfigurationError, match="not to the database that holds the queue"):
            finished(case, send.using(case.given).enqueue("ada"))
        case.commit()
        assert case.place.read() == [(1, "x")]
        assert other.jobs() == []


def test_another_queue_in_the_same_server_is_refused(postgres_url: str, postgres_schema: str) -> None:
    with (
        closing(Rowlock(postgres_schema)) as mine,
        psycopg.connect(postgres_url) as connection,
    ):

        @mine.task
        def send(to: str) -> None:
            pass

        mine.store.open()
        name = postgres_schema.partition("schema=")[2]
        connection.execute(f"UPDATE {name}.rowlock_meta SET value = 'another' WHERE key = 'install_id'")
        with pytest.raises(ConfigurationError, match="not to the database that holds the queue"):
            send.using(connection).enqueue("ada")
        assert connection.execute("SELECT 1").fetchone() == (1,)
        connection.rollback()


def test_the_queue_need_not_be_there_before(case_without_queue: Case) -> None:
    case = case_without_queue
    with closing(queue_in(case.place)) as app:
        case.start()
        case.do(lambda face: case.insert(face, 1))
        send_on(case, app, "gone")
        case.rollback()
        case.start()
        case.do(lambda face: case.insert(face, 2))
        job = send_on(case, app, "ada")
        case.commit()
        assert case.place.read() == [(2, "x")]
        assert [found.args["to"] for found in app.jobs()] == ["ada"]
        app.worker(concurrency=1).run(until_empty=True)
        assert app.result(job.id) == "ada"


def test_what_is_no_connection_is_refused_at_once(tmp_path: Path, postgres_queue: str) -> None:
    for url in (f"sqlite:///{tmp_path / 'jobs.db'}", postgres_queue):
        with closing(Rowlock(url)) as app:
            task = app.task(lambda: None, name="send")
            with pytest.raises(ConfigurationError, match="cannot write jobs on a builtins"):
                task.using("sqlite:///jobs.db")
            with pytest.raises(ConfigurationError, match=r"using\(None\): pass the connection"):
                task.using(None)


def test_a_sleeping_worker_hears_of_the_commit(app: Rowlock, case: Case) -> None:
    with app.worker(concurrency=1, poll_interval=30.0).background() as worker:
        # On PostgreSQL it says that it sleeps, and then looks once more.
        looks = 1 if case.place.url.startswith("sqlite") else 2
        eventually(lambda: worker.polls.consecutive_empty >= looks, message="the worker never slept")
        case.start()
        job = send_on(case, app, "ada")
        case.commit()
        assert app.result(job.id, timeout=50) == "ada"


def test_sleepers_are_told_once_per_transaction(app: Rowlock, case: Case, postgres_url: str) -> None:
    """PostgreSQL: however many calls there are in it, and through whatever driver."""
    store = app.store
    if not isinstance(store, PostgresStore):
        pytest.skip("SQLite's sleepers look for themselves")
    heard: list[str] = []
    end = f"end_of_{store.database.address.schema}"
    with psycopg.connect(postgres_url, autocommit=True) as ear:
        ear.add_notify_handler(lambda word: heard.append(word.channel))
        ear.execute(f"LISTEN {end}")
        for number in range(3):
            who = worker(store, f"{number} of {store.database.address.schema}")
            ear.execute(f'LISTEN "{CHANNEL}{md5(who.encode(), usedforsecurity=False).hexdigest()}"')
            store.database.sleepers.fall_asleep(who)
        for _ in range(2):  # twice in one session: what the first leaves in it must not silence the second
            heard.clear()
            case.start()
            for number in range(4):
                send_on(case, app, "ada", queue=f"queue {number % 2}")
            finished(case, app.tasks["send"].using(case.given).enqueue_many([{"to": "bob"}] * 3))
            case.commit()
            ear.execute(f"NOTIFY {end}")  # words come in the order of their commits
            eventually(lambda: ear.execute("SELECT 1") and end in heard)
            assert len(heard) == 2


def test_a_raw_autocommit_connection_commits_at_once(tmp_path: Path) -> None:
    with (
        closing(Rowlock(f"sqlite:///{tmp_path / 'app.db'}")) as app,
        closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection,
    ):

        @app.task
        def send(to: str) -> None:
            pass

        app.store.open()
        job = send.using(connection).enqueue("ada")
        assert app.job(job.id).state == "queued"
