"""Workers that are started while their file cannot be written: they say so once, wait, and then go on.

What does not pass (no such folder, no database, damaged, too new) ends them at once.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rowlock import Rowlock, resident
from rowlock.errors import SchemaMismatch, StoreError
from rowlock.stores.sqlite import SqliteStore
from tests.chaos.outages import Outage, SmallDisk, can_mount
from tests.chaos.test_bad_disks import locked, read_only_folder
from tests.cli.commands import CommandLine
from tests.eventually import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at workers through /proc")
needs_mount = pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")

_ROWS = """
from rowlock import Rowlock

app = Rowlock({url!r}, poll_interval=0.1, busy_timeout=0.2)


@app.consumer("reader", table="pages", state="state")
def read(page):
    pass
"""
WORKER, CONSUMER = ("worker", "jobs:app"), ("consume", "rows:app", "reader")
both = pytest.mark.parametrize("words", [WORKER, CONSUMER], ids=["worker", "consume"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk")
    yield made
    made.close()


def begin(folder: Path, database: Path, words: tuple[str, ...]) -> Outage:
    """A worker's folder. A consumer's table is in a file that has no queue yet."""
    outage = Outage(folder, database)
    if words == CONSUMER:
        (folder / "rows.py").write_text(_ROWS.format(url=f"sqlite:///{database}"))
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE pages (id INTEGER PRIMARY KEY, state TEXT)")
    return outage


def wait_and_go_on(outage: Outage, words: tuple[str, ...], told: str, mend: Callable[[], object]) -> None:
    """The worker is running: it says one line and is calm, until somebody mends what is broken."""
    eventually(lambda: outage.told("the worker waits and goes on trying"), timeout=30)
    outage.watch(0.5).assert_calm()
    (line,) = outage.log()
    assert told in line and str(outage.database) in line
    mend()
    eventually(lambda: outage.told("the database can be used now"), timeout=30)
    work(outage, words)
    assert len(outage.told("goes on trying")) == 1
    assert outage.stop() == 0
    assert outage.integrity() == "ok"


def work(outage: Outage, words: tuple[str, ...]) -> None:
    """There is something to do, and it is done."""
    if words != CONSUMER:
        assert outage.enqueue(1)
        eventually(lambda: outage.completed() == 1, timeout=30)
        return
    with closing(sqlite3.connect(outage.database, timeout=10, isolation_level=None)) as connection:
        connection.execute("INSERT INTO pages DEFAULT VALUES")
        look = "SELECT state FROM pages WHERE state IS NOT NULL"
        eventually(lambda: connection.execute(look).fetchone() == ('{"reader":true}',), timeout=30)


# -- what passes -------------------------------------------------------------------------------------


@needs_mount
@both
def test_a_worker_that_is_started_on_a_full_disk_waits_for_space(
    disk: SmallDisk, tmp_path: Path, words: tuple[str, ...]
) -> None:
    outage = begin(tmp_path, disk.folder / "queue.db", words)
    disk.fill()
    with outage.worker(*words):
        wait_and_go_on(outage, words, "is full; nothing was written, free some space", disk.free)


@needs_mount
def test_a_queue_that_is_there_is_waited_for_as_well(disk: SmallDisk, tmp_path: Path) -> None:
    outage = begin(tmp_path, disk.folder / "queue.db", WORKER)
    assert outage.enqueue(0)
    disk.fill()
    with outage.worker():
        eventually(lambda: outage.told("is full; nothing was written"), timeout=30)
        disk.free()
        eventually(lambda: outage.completed() == 1, timeout=30)
        assert outage.stop() == 0


@both
def test_a_worker_waits_for_writes_that_fail(tmp_path: Path, words: tuple[str, ...]) -> None:
    outage = begin(tmp_path, tmp_path / "queue.db", words)
    with outage.worker(*words, largest_file=2_000):  # less than a page, and more than its log
        wait_and_go_on(outage, words, "reading or writing", outage.unlimit)


@pytest.mark.parametrize("there", ["a queue", "an empty file"])
def test_a_worker_waits_until_its_file_can_be_written(tmp_path: Path, there: str) -> None:
    with read_only_folder(tmp_path / "disk") as (folder, shut):
        outage = begin(tmp_path, folder / "queue.db", WORKER)
        if there == "a queue":
            create(outage.database)
        else:
            outage.database.touch()
            outage.database.chmod(0o444)
        shut(True)

        def mend() -> None:
            shut(False)
            outage.database.chmod(0o644)

        with outage.worker():
            wait_and_go_on(outage, WORKER, "check the rights of the file", mend)


@both
def test_a_worker_waits_for_a_file_that_somebody_else_has_locked(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    outage = begin(tmp_path, tmp_path / "queue.db", words)
    holder = locked(outage.database)
    holder.__enter__()
    with outage.worker(*words):
        wait_and_go_on(outage, words, "holds the write lock", lambda: holder.__exit__(None, None, None))


@pytest.mark.parametrize(("words", "number"), [(WORKER, signal.SIGTERM), (CONSUMER, signal.SIGINT)])
def test_a_worker_that_waits_ends_when_it_is_told_to(
    tmp_path: Path, words: tuple[str, ...], number: int
) -> None:
    outage = begin(tmp_path, tmp_path / "queue.db", words)
    with outage.worker(*words, largest_file=2_000) as process:
        eventually(lambda: outage.told("the worker waits and goes on trying"), timeout=30)
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
    _, last = outage.log()
    assert "told to stop before the database could be used" in last


@needs_mount
@pytest.mark.parametrize("room", [0, 4_096, 8_192, 40_960, 100_000])
def test_tables_that_the_disk_has_no_room_for_are_created_when_it_has(disk: SmallDisk, room: int) -> None:
    """Wherever the space ends, the disk is called full, and what is left behind does no harm."""
    store = SqliteStore(str(disk.folder / "queue.db"))
    tried: list[str] = []
    with store.database.connections.borrowed() as connection:
        connection.set_trace_callback(tried.append)
    disk.fill(spare=room)
    with pytest.raises(StoreError, match="is full; nothing was written"):
        store.open()
    assert tried.count("PRAGMA journal_mode = WAL") <= 1, "it does not wait for what is no lock"
    disk.free()
    store.open()
    assert store.facts()["quick_check"] == ["ok"]
    store.close()


@needs_mount
def test_a_worker_in_a_program_waits_as_well(disk: SmallDisk, caplog: pytest.LogCaptureFixture) -> None:
    app = Rowlock(f"sqlite:///{disk.folder / 'queue.db'}", poll_interval=0.1)
    loads: list[int] = []

    def load() -> str:
        loads.append(1)
        return "model"

    @app.task
    def ask(model: str = resident(load)) -> str:
        return model

    disk.fill()
    with app.worker().background():
        eventually(lambda: "the store cannot be used" in caplog.text)
        disk.free()
        assert app.result(ask.enqueue().id, timeout=30) == "model"
    app.close()
    assert len([line for line in caplog.messages if "the store cannot be used" in line]) == 1
    assert loads == [1], "what it had loaded was kept"


@needs_mount
def test_what_a_worker_finds_when_there_is_space_may_still_end_it(
    disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    database = disk.folder / "queue.db"
    create(database)
    app = Rowlock(f"sqlite:///{database}")

    def work_in_vain() -> None:
        with app.worker().background() as worker:
            eventually(lambda: "the store cannot be used" in caplog.text)
            with closing(sqlite3.connect(database, isolation_level=None)) as other:
                disk.free()
                make_too_new(other)
            eventually(lambda: not worker.polls.running)

    disk.fill()
    with pytest.raises(SchemaMismatch):
        work_in_vain()
    app.close()


# -- what does not -----------------------------------------------------------------------------------


def make_too_new(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE rowlock_meta SET value = '9' WHERE key IN ('version', 'compatible_from')")


def no_folder(database: Path) -> None:
    database.unlink(missing_ok=True)
    database.parent.rename(database.parent.with_name("elsewhere"))


def a_folder(database: Path) -> None:
    database.unlink(missing_ok=True)
    database.mkdir()


def no_database(database: Path) -> None:
    database.write_text("this is a diary, not a database. " * 300)


def damaged(database: Path) -> None:
    create(database)
    with database.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * (os.fstat(file.fileno()).st_size - 100))


def too_new(database: Path) -> None:
    create(database)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        make_too_new(connection)


def create(database: Path) -> None:
    app = Rowlock(f"sqlite:///{database}")
    app.store.open()
    app.close()


@both
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (no_folder, "cannot be opened: check that its folder exists"),
        (a_folder, "cannot be opened: check that its folder exists"),
        (no_database, "is not a SQLite database"),
        (damaged, "is damaged; restore a backup"),
        (too_new, "install a newer rowlock"),
    ],
)
def test_a_worker_does_not_wait_for_what_does_not_pass(
    tmp_path: Path, words: tuple[str, ...], spoil: Callable[[Path], None], told: str
) -> None:
    (tmp_path / "data").mkdir()
    outage = begin(tmp_path, tmp_path / "data" / "queue.db", words)
    spoil(outage.database)
    assert told in CommandLine(tmp_path).refused_here(*words)
