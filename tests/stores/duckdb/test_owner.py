"""Owner mode: the process that has the DuckDB file open runs the worker, on cursors of its connection."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from rowlock import Flag, JobContext, Rowlock
from rowlock.errors import ConfigurationError, StoreBusy, StoreClosed, StoreUnusable
from rowlock.insights import doctor
from rowlock.job import Ending
from rowlock.relays.workload import workload_for
from rowlock.stores.duckdb.faults import explain
from tests.eventually import eventually
from tests.stores.steps import add, end, state, take, worker


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data.duckdb")


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    made = create_engine(f"duckdb:///{path}")
    yield made
    made.dispose()


@pytest.fixture
def app(engine: Engine) -> Iterator[Rowlock]:
    made = Rowlock(engine=engine)
    yield made
    made.close()


def videos(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT id, cuts FROM videos ORDER BY id"))]


def make_videos(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE videos (id INTEGER, cuts INTEGER)"))


def test_a_worker_in_the_process_that_has_the_file_runs_its_jobs(app: Rowlock, engine: Engine) -> None:
    double = app.task(lambda n: 2 * n, name="double")  # type: ignore[call-overload]
    with app.worker(concurrency=2).background() as running:
        jobs = [double.enqueue(n=n) for n in range(3)]
        assert [app.result(job, timeout=60) for job in jobs] == [0, 2, 4]
        assert running.failed is None
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM rowlock_jobs")).scalar() == 3


def test_a_connection_of_the_users_does_as_well(path: str) -> None:
    with duckdb.connect(path) as connection:
        app = Rowlock(connection=connection)
        job = app.task(lambda: "done", name="one").enqueue()  # type: ignore[call-overload]
        app.worker(concurrency=1).run(until_empty=True)
        assert app.job(job).result == "done"
        app.close()
        assert connection.execute("SELECT state FROM rowlock_jobs").fetchall() == [("completed",)]


def test_the_users_row_and_its_job_commit_together_or_not_at_all(app: Rowlock, engine: Engine) -> None:
    make_videos(engine)
    cut = app.task(lambda video: None, name="cut")  # type: ignore[call-overload]
    app.store.open()
    for video, is_kept in ((1, False), (2, True)):
        with Session(engine) as session:
            session.execute(text("INSERT INTO videos VALUES (:id, NULL)"), {"id": video})
            job = cut.using(session).enqueue(video=video)
            assert app.store.get(job.id) is None
            session.commit() if is_kept else session.rollback()
    assert [job.args for job in app.jobs()] == [{"video": 2}]
    assert videos(engine) == [(2, None)]


def test_the_first_job_of_all_may_come_in_a_session(app: Rowlock, engine: Engine) -> None:
    cut = app.task(lambda: None, name="cut")  # type: ignore[call-overload]
    with Session(engine) as session:
        job = cut.using(session).enqueue()
        session.commit()
    assert app.job(job).state == "queued"


@pytest.mark.parametrize("kind", ["session", "own"])
def test_a_tasks_rows_and_its_completion_commit_together(app: Rowlock, engine: Engine, kind: str) -> None:
    make_videos(engine)

    @app.task(retry=False)
    def cut(ctx: JobContext, video: int, ok: bool) -> int:
        insert = f"INSERT INTO videos VALUES ({video}, 7)"
        if kind == "session":
            with Session(engine) as session, ctx.transaction(session):
                session.execute(text(insert))
        else:
            with ctx.transaction() as tx:
                tx.execute(insert)
                with pytest.raises(RuntimeError, match="rowlock commits"):
                    tx.execute("COMMIT")
        if not ok:
            raise ValueError("no")
        return 7

    good, bad = cut.enqueue(video=1, ok=True), cut.enqueue(video=2, ok=False)
    app.worker(concurrency=1).run(until_empty=True)
    assert [app.job(job).state for job in (good, bad)] == ["completed", "failed"]
    assert videos(engine) == [(1, 7)]


def test_a_session_that_the_task_ended_itself_fails_its_job(app: Rowlock, engine: Engine) -> None:
    make_videos(engine)

    @app.task(retry=False)
    def cut(ctx: JobContext) -> None:
        with Session(engine) as session, ctx.transaction(session):
            session.execute(text("INSERT INTO videos VALUES (1, 1)"))
            session.rollback()

    job = cut.enqueue()
    app.worker(concurrency=1).run(until_empty=True)
    assert app.job(job).state == "failed" and "before the task had returned" in str(app.job(job).error)


def test_a_transaction_that_another_was_faster_than_is_made_again(path: str) -> None:
    with duckdb.connect(path) as connection:
        store: Any = Rowlock(connection=connection).store
        add(store)
        (claim,) = take(store, worker(store))
        mine = connection.cursor()
        mine.execute("BEGIN")
        mine.execute("UPDATE rowlock_jobs SET state = state")
        ender = threading.Thread(target=lambda: ended.append(end(store, claim, Ending.FAILED)))
        ended: list[bool] = []
        ender.start()
        eventually(lambda: store.database.clashes > 0)
        mine.execute("ROLLBACK")
        ender.join(timeout=60)
        assert ended == [True] and state(store, claim.id) == "failed"
        assert store.facts()["clashes"] == store.database.clashes


def test_a_clash_that_does_not_end_is_told_after_a_bounded_number_of_tries(path: str) -> None:
    with duckdb.connect(path) as connection:
        store: Any = Rowlock(connection=connection).store
        add(store)
        (claim,) = take(store, worker(store))
        connection.execute("BEGIN")
        connection.execute("UPDATE rowlock_jobs SET state = state")
        with pytest.raises(StoreBusy, match="changed the same rows"):
            end(store, claim, Ending.FAILED)
        assert 1 < store.database.clashes < 50


def test_a_unique_key_that_a_session_takes_first_is_held_by_it(app: Rowlock, engine: Engine) -> None:
    cut = app.task(lambda: None, name="cut")  # type: ignore[call-overload]
    app.store.open()
    with Session(engine) as session:
        first = cut.using(session).configure(unique_key="v1").enqueue()
        session.commit()
    assert cut.configure(unique_key="v1").enqueue().id == first.id


# -- what bad input gets -------------------------------------------------------------------------


def test_an_engine_of_another_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r'is for DuckDB.*give its URL, Rowlock\("sqlite://\.\.\."\)'
    ):
        Rowlock(engine=create_engine(f"sqlite:///{tmp_path}/jobs.db"))
    with pytest.raises(ConfigurationError, match="takes a SQLAlchemy engine for DuckDB, not a int"):
        Rowlock(engine=1)
    with pytest.raises(ConfigurationError, match="takes a DuckDB connection, not a str"):
        Rowlock(connection="x")
    with pytest.raises(ConfigurationError, match="has to outlive its process"):
        Rowlock(engine=create_engine("duckdb:///:memory:"))
    with duckdb.connect() as memory, pytest.raises(ConfigurationError, match="has to outlive its process"):
        Rowlock(connection=memory)
    with pytest.raises(ConfigurationError, match="only one of them"):
        Rowlock("sqlite:///x.db", engine=create_engine(f"duckdb:///{tmp_path}/x.duckdb"))


def test_a_closed_connection_and_a_disposed_engine_are_named(path: str) -> None:
    engine = create_engine(f"duckdb:///{path}")
    app = Rowlock(engine=engine)
    app.store.open()
    engine.dispose()
    with pytest.raises(StoreUnusable, match="was disposed"):
        app.depth()
    connection = duckdb.connect(path)  # which the disposed engine does not hold any more
    app = Rowlock(connection=connection)
    app.store.open()
    connection.close()
    with pytest.raises(StoreUnusable, match="is closed"):
        app.depth()


def closes(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.close()
    except duckdb.Error:  # one of its cursors is in use
        return False
    return True


def test_a_worker_that_dies_in_the_background_is_loud(path: str, caplog: pytest.LogCaptureFixture) -> None:
    connection = duckdb.connect(path)
    app = Rowlock(connection=connection)
    running = app.worker(concurrency=1)
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(StoreClosed))
        stack.enter_context(running.background())
        eventually(lambda: bool(app.store.workers()))
        assert running.failed is None
        eventually(lambda: closes(connection))
        running.show_stacks()  # which wakes it
        eventually(lambda: running.failed is not None)
    assert any(one.levelname == "CRITICAL" and "stopped on" in one.message for one in caplog.records)


DIES = """
import sys, duckdb
from rowlock import Rowlock
connection = duckdb.connect(sys.argv[1])
worker = Rowlock(connection=connection).worker(concurrency=1)
connection.close()
try:
    with worker.background():
        pass
except Exception:
    sys.exit(3)
"""


def test_a_dead_worker_is_on_stderr_where_nobody_has_set_up_a_log(path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES, path], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert "in the background stopped on an error" in done.stderr and "StoreClosed" in done.stderr


# What 1.5 says of a file that 2.0 made; `make matrix` has both.
NEWER = (
    "IO Error: Trying to read a database file with version number 69, but we can only read versions "
    "between 64 and 68.\nThe database file was created with a newer version of DuckDB."
)
HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


def test_a_file_that_another_program_holds_is_told_with_its_process_id(path: str) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
        for app in (
            Rowlock(engine=create_engine(f"duckdb:///{path}")),
            Rowlock(f"duckdb:///{path}", busy_timeout=0.1),
        ):
            with pytest.raises(StoreBusy, match=rf"open in process {holder.pid}"):
                app.depth()
        with pytest.raises(StoreBusy, match=r"rowlock\.duckdb\.create_engine"):
            app.depth()
    finally:
        holder.communicate()


def test_a_database_from_a_newer_duckdb_is_named_so() -> None:
    said = explain(duckdb.IOException(NEWER), "data.duckdb")
    assert isinstance(said, StoreUnusable)
    assert f"data.duckdb was written by a newer DuckDB than this one ({duckdb.__version__})" in str(said)


def test_consumers_files_and_the_relay_are_refused(app: Rowlock, engine: Engine, tmp_path: Path) -> None:
    make_videos(engine)
    app.consumer("cut", table="videos", state="meta")(lambda row: None)
    app.consumer("done", table="videos", flag=Flag("cuts"))(lambda row: None)
    for name in ("cut", "done"):
        with pytest.raises(
            ConfigurationError, match=f"consumer '{name}': state= and flag= are not for DuckDB"
        ):
            app.consume(name, until_empty=True)
    with pytest.raises(ConfigurationError, match="the relay is not for a queue in DuckDB"):
        workload_for(app, [])
    with pytest.raises(ConfigurationError, match=r"ingest 'films'.*not duckdb"):
        app.ingest("films", table="videos", folder=tmp_path).run_once()


def test_the_doctor_names_the_mode(app: Rowlock) -> None:
    (mode,) = [one for one in doctor(app.store) if one.check == "mode"]
    assert "owner mode" in mode.message and "move on, with `rowlock copy`" in mode.message


SHOP = """
from rowlock import Flag, JobContext, Rowlock
from sqlalchemy import create_engine

engine = create_engine({url!r})
app = Rowlock(engine=engine)


@app.task(pool="process", retry=False)
def render(ctx: JobContext, n: int, write: bool = False) -> int:
    import os

    if write:
        with ctx.transaction() as tx:
            tx.execute("SELECT 1")
    ctx.progress(n, 9)
    return os.getpid()
"""


def test_a_child_process_reports_through_its_parent_and_has_no_database(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "duck_shop.py").write_text(SHOP.format(url=f"duckdb:///{path}"))
    monkeypatch.syspath_prepend(tmp_path)
    shop: Any = importlib.import_module("duck_shop")
    good, bad = shop.render.enqueue(n=3), shop.render.enqueue(n=4, write=True)
    shop.app.worker(concurrency=1).run(until_empty=True)
    done, failed = shop.app.job(good), shop.app.job(bad)
    assert done.state == "completed" and done.result != os.getpid() and done.progress.done == 3
    assert failed.state == "failed" and f"open in its parent, process {os.getpid()}" in failed.error
    shop.app.close()
    shop.engine.dispose()
    del sys.modules["duck_shop"]


def test_a_child_process_ends_without_a_word(path: str, tmp_path: Path) -> None:
    """DuckDB lists on stderr what a thread holds when its process ends; coverage, too, would hold some."""
    (tmp_path / "duck_shop.py").write_text(SHOP.format(url=f"duckdb:///{path}"))
    script = (
        "import duck_shop\n"
        "job = duck_shop.render.enqueue(n=3)\n"
        "duck_shop.app.worker(concurrency=1).run(until_empty=True)\n"
        "assert duck_shop.app.job(job).state == 'completed'\n"
        "duck_shop.app.close()\n"
        "duck_shop.engine.dispose()\n"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stderr == ""


def test_a_module_that_opens_the_file_when_a_child_imports_it_is_told_why_that_fails(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = f"import duckdb\nfrom rowlock import Rowlock\napp = Rowlock(connection=duckdb.connect({path!r}))\n"
    (tmp_path / "duck_connected.py").write_text(top + "@app.task(pool='process')\ndef cut() -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    shop: Any = importlib.import_module("duck_connected")
    with pytest.raises(ConfigurationError, match=r"must not open the DuckDB file when it is imported"):
        shop.app.worker(concurrency=1).run(until_empty=True)
    shop.app.close()
    del sys.modules["duck_connected"]
