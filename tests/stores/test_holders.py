"""Who holds the write lock of a SQLite file: an open transaction of this very program is found and named."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from rowlock import JobContext, Rowlock, StoreBusy
from rowlock.outage import Outage
from rowlock.stores.sqlite.lock_holders import OpenTransaction, open_transaction
from rowlock.worker import store_backoff as backoff_module
from rowlock.worker.store_backoff import StoreBackoff
from tests.eventually import eventually

OWN = r"this program itself has a transaction open on it.*task\.using\(session\)"
PERHAPS = r"this program itself has a transaction open, perhaps on it.*task\.using\(session\)"
LOCKS_ARE_SHOWN = sys.platform == "linux"

STORM = """
import sqlite3, sys, threading, time
from rowlock.stores.sqlite.lock_holders import open_transaction

end = time.monotonic() + 0.5

def open_and_close():
    while time.monotonic() < end:
        ones = [sqlite3.connect(sys.argv[1], check_same_thread=False) for _ in range(20)]
        for one in ones:
            one.execute("BEGIN")
        for one in ones:
            one.close()

threads = [threading.Thread(target=open_and_close) for _ in range(2)]
for thread in threads:
    thread.start()
while time.monotonic() < end:
    open_transaction(sys.argv[1])
for thread in threads:
    thread.join()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path: Path) -> Iterator[Rowlock]:
    made = Rowlock(f"sqlite:///{path}", busy_timeout=0.02)
    made.task(name="work")(lambda: 1)
    made.store.open()
    yield made
    made.close()


def write_to(path: Path, **options: Any) -> closing[sqlite3.Connection]:
    """A connection of the user's with a row written and not committed."""
    connection = sqlite3.connect(path, **options)
    connection.execute("CREATE TABLE IF NOT EXISTS mine (x)")
    connection.execute("INSERT INTO mine VALUES (1)")
    return closing(connection)


def test_a_transaction_on_another_file_is_not_blamed(app: Rowlock, path: Path, tmp_path: Path) -> None:
    with write_to(tmp_path / "other.db"), closing(app.store.database.connections.open()) as somebody:  # type: ignore[attr-defined]
        somebody.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match=r"the write lock of .*; the call can simply be made again"):
            app.enqueue("work")
        somebody.execute("ROLLBACK")


def test_a_session_that_keeps_the_tables_from_being_made_is_named(path: Path) -> None:
    app = Rowlock(f"sqlite:///{path}", busy_timeout=0.02)
    with write_to(path) as mine:
        with pytest.raises(StoreBusy, match=OWN):
            app.enqueue("work")
        mine.commit()
        app.enqueue("work")
    app.close()


def test_a_connection_without_a_transaction_is_not_blamed(path: Path) -> None:
    with write_to(path) as mine:
        mine.commit()
        assert open_transaction(str(path)) is None
    assert open_transaction(str(path)) is None  # nor one that was closed


def test_rows_of_another_shape_and_attached_files_are_understood(app: Rowlock, path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as mine:
        mine.row_factory = lambda cursor, row: {"a row": row}
        mine.text_factory = bytes
        mine.execute("ATTACH ? AS queue", (str(path),))
        mine.execute("CREATE TABLE queue.mine (x)")
        mine.execute("INSERT INTO queue.mine VALUES (1)")
        with pytest.raises(StoreBusy, match=OWN):
            app.enqueue("work")


def test_a_session_is_found_from_the_thread_of_an_async_twin(app: Rowlock, path: Path) -> None:
    with write_to(path), pytest.raises(StoreBusy, match=PERHAPS):
        asyncio.run(app.aenqueue("work"))


def test_a_raw_aiosqlite_connection_is_suspected(app: Rowlock, path: Path) -> None:
    async def enqueue() -> None:
        async with aiosqlite.connect(path) as mine:
            await mine.execute("CREATE TABLE mine (x)")
            await mine.execute("INSERT INTO mine VALUES (1)")
            with pytest.raises(StoreBusy, match=PERHAPS):
                app.enqueue("work")

    asyncio.run(enqueue())


# -- connections that any thread may use, and close -----------------------------------------------------


def test_a_program_survives_that_connections_are_closed_during_a_look(path: Path) -> None:
    subprocess.run([sys.executable, "-c", STORM, str(path)], check=True, timeout=60)


def test_no_statement_runs_on_a_connection_that_another_thread_may_close(app: Rowlock, path: Path) -> None:
    statements: list[str] = []
    with write_to(path, check_same_thread=False) as mine:
        mine.set_trace_callback(statements.append)
        with pytest.raises(StoreBusy, match=OWN if LOCKS_ARE_SHOWN else PERHAPS):
            app.enqueue("work")
        assert statements == []


def test_a_shared_connection_in_the_middle_of_a_statement_is_not_waited_for(app: Rowlock, path: Path) -> None:
    begun, over = threading.Event(), threading.Event()
    with write_to(path, check_same_thread=False) as busy, ThreadPoolExecutor(1) as thread:
        busy.create_function("hold", 0, lambda: (begun.set(), over.wait(30))[1])
        running = thread.submit(busy.execute, "UPDATE mine SET x = hold()")
        assert begun.wait(30)
        with pytest.raises(StoreBusy, match=OWN if LOCKS_ARE_SHOWN else PERHAPS):
            app.enqueue("work")
        assert not running.done()
        over.set()
        running.result()


@pytest.mark.skipif(not LOCKS_ARE_SHOWN, reason="only Linux shows which locks a process has")
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_shared_connection_is_known_to_be_the_writer_by_its_lock(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path, check_same_thread=False)) as mine:
        mine.execute(f"PRAGMA journal_mode = {mode}")
        mine.execute("CREATE TABLE mine (x)")
        mine.execute("BEGIN")
        mine.execute("SELECT * FROM mine").fetchall()
        assert open_transaction(str(path)) is None  # it only reads
        mine.execute("INSERT INTO mine VALUES (1)")
        assert open_transaction(str(path)) == (id(mine), 1, True)


@pytest.mark.skipif(not LOCKS_ARE_SHOWN, reason="only Linux shows which locks a process has")
def test_a_shared_connection_is_not_blamed_for_the_lock_of_another_process(
    app: Rowlock, path: Path, tmp_path: Path
) -> None:
    hold = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); input('\\n')"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other, write_to(tmp_path / "other.db", check_same_thread=False):
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(StoreBusy, match=r"the write lock of .*; the call can simply be made again"):
            app.enqueue("work")
        other.communicate("\n", timeout=30)


# -- tasks -------------------------------------------------------------------------------------------


def test_a_task_that_operates_inside_its_own_transaction_is_told(app: Rowlock) -> None:
    @app.task(retry=False)
    def cancel_another(ctx: JobContext, other: int) -> None:
        with ctx.transaction() as tx:
            tx.execute("CREATE TABLE mine (x)")
            app.cancel(other)

    job = cancel_another.enqueue(app.enqueue("work", delay=60).id)
    app.worker(concurrency=1).run(until_empty=True)
    assert "this program itself has a transaction open on it" in (app.job(job).error or "")


# -- the worker --------------------------------------------------------------------------------------


def test_a_worker_does_not_wait_for_ever_for_the_session_of_its_caller(
    app: Rowlock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff_module, "LONGEST_HELD_SECONDS", 0.1)
    app.enqueue("work")
    worker = app.worker(concurrency=1)
    with write_to(path) as mine:
        with pytest.raises(StoreBusy, match=r"commit or close it before the call") as raised:
            worker.run(until_empty=True)
        assert "task.using(session)" in str(raised.value.__cause__)
        mine.commit()
        assert worker.run(until_empty=True).completed == 1


def test_a_worker_waits_for_a_transaction_that_another_thread_ends(app: Rowlock, path: Path) -> None:
    app.enqueue("work")
    worker = app.worker(concurrency=1)
    with write_to(path) as mine, ThreadPoolExecutor(1) as thread:
        tally = thread.submit(worker.run, until_empty=True)
        eventually(lambda: worker.polls.busy)
        mine.commit()
        assert tally.result().completed == 1


def test_a_worker_in_the_background_never_gives_up(
    app: Rowlock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff_module, "LONGEST_HELD_SECONDS", 0.0)
    job = app.enqueue("work")
    with write_to(path, check_same_thread=False) as mine, app.worker(concurrency=1).background() as worker:
        eventually(lambda: worker.polls.busy > 1)
        mine.commit()
        assert app.result(job, timeout=30) == 1


def test_only_a_transaction_that_stands_still_counts_as_held() -> None:
    def busy(*transaction: Any) -> StoreBusy:
        error = StoreBusy("locked")
        error.own_transaction = OpenTransaction(*transaction) if transaction else None
        return error

    store_backoff = StoreBackoff(Outage())
    assert store_backoff.held_for(busy(7, 1, True), now=3.0) == 0.0
    assert store_backoff.held_for(busy(7, 1, True), now=5.0) == 2.0
    assert store_backoff.held_for(busy(7, 2, True), now=9.0) == 0.0  # it has written
    assert store_backoff.held_for(busy(), now=11.0) == 0.0
    assert store_backoff.held_for(busy(), now=13.0) == 0.0
