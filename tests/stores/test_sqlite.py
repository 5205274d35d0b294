"""What only SQLite promises: durability settings, plans, files, forks, old versions, broken disks."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from rowlock.errors import (
    DataRefused,
    DiskTrouble,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreMissing,
    StoreUnusable,
)
from rowlock.job import Ending
from rowlock.stores.sql.scan_marks import Marks
from rowlock.stores.sqlite import SqliteStore, connections, wal_checkpoints
from rowlock.stores.sqlite.dialect import CLAIM_SQL, STATEMENTS
from rowlock.strategies import HIGHEST, LOWEST, NEWEST, OLDEST, Key, Strategy, Weight
from tests.eventually import eventually
from tests.forks import end_child
from tests.stores.steps import add, emptied, end, new, take, worker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(str(path), busy_timeout=0.2)
    yield made
    made.close()


def connection_of(store: SqliteStore) -> sqlite3.Connection:
    """This thread's connection."""
    with store.database.connections.borrowed() as connection:
        return connection


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the same file."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.2)
    yield connection
    connection.close()


def test_nothing_is_opened_before_the_first_call(store: SqliteStore, path: Path) -> None:
    assert not path.exists()
    add(store)
    assert path.exists()


def test_a_commit_survives_a_power_cut(store: SqliteStore) -> None:
    facts = store.facts()
    assert (facts["journal_mode"], facts["synchronous"]) == ("wal", "FULL")
    seen: list[tuple[str, int]] = []

    def look() -> None:
        add(store)
        connection = connection_of(store)
        seen.append(
            (
                connection.execute("PRAGMA journal_mode").fetchone()[0],
                connection.execute("PRAGMA synchronous").fetchone()[0],
            )
        )

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [("wal", 2)]


def test_the_queue_lives_beside_a_users_own_tables(store: SqliteStore, other: sqlite3.Connection) -> None:
    other.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT)")
    other.execute("INSERT INTO jobs (status) VALUES ('mine')")
    add(store)
    names = [row[0] for row in other.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")]
    assert all(name.startswith("rowlock_") for name in names if name != "jobs")
    assert other.execute("SELECT status FROM jobs").fetchall() == [("mine",)]


# -- plans -------------------------------------------------------------------------------------------


@pytest.fixture
def backlog(store: SqliteStore, other: sqlite3.Connection) -> SqliteStore:
    """A few thousand rows in all states, without ANALYZE: plans may not depend on statistics."""
    store.open()
    other.execute(
        """
        INSERT INTO rowlock_jobs (task, queue, priority, state, position, max_attempts, created_at, run_at,
                                  due_at, args, claimed_by)
        WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
        SELECT 't', 'q' || (i % 20), i % 5,
               CASE i % 4 WHEN 0 THEN 'queued' WHEN 1 THEN 'completed'
                          WHEN 2 THEN 'scheduled' ELSE 'running' END,
               i, 3, i, i, i, '{}', 'w' || (i % 7)
        FROM n
        """
    )
    assert other.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchone() == (0,)
    return store


def plan(other: sqlite3.Connection, sql: str) -> list[str]:
    values = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    return [row[3] for row in other.execute("EXPLAIN QUERY PLAN " + sql, values)]


ORDERS = [(*first, last) for first in ((), (HIGHEST,), (LOWEST,)) for last in (OLDEST, NEWEST)]
CLAIMS = {
    **{f"{order}": CLAIM_SQL.take(Strategy("A", order)) for order in ORDERS},
    **{f"{order} at marks": CLAIM_SQL.take(Strategy("A", order), marked=True) for order in ORDERS},
    **{
        f"{order} drawn{' at marks' * marked}": CLAIM_SQL.take(Strategy("A", order, Weight()), marked)
        for order in ORDERS[:2]
        for marked in (False, True)
    },
}


@pytest.mark.parametrize(
    "name",
    [
        *CLAIMS,
        *("levels", "next_queue", "queue_after", "queue_has_work", "oldest_queued", "overdue_queued"),
        *("sweep_oldest", "sweep_newest"),
    ],
)
def test_every_claim_reads_the_ready_index(
    backlog: SqliteStore, other: sqlite3.Connection, name: str
) -> None:
    steps = plan(other, CLAIMS.get(name) or STATEMENTS[name])
    reads = [step for step in steps if "rowlock_jobs" in step and "PRIMARY KEY" not in step]
    assert reads and all("INDEX rowlock_jobs_ready" in step for step in reads), steps
    # Other orders than that of the index merge the first few of each level; none may sort or scan the jobs.
    assert not any(re.match(r"SCAN (rowlock_jobs|first|j)\b", step) for step in steps), steps
    sorts = [step for step in steps if "TEMP B-TREE" in step]
    assert not sorts or "one_level" in CLAIMS.get(name, ""), steps


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_scan_that_begins_at_marks_takes_no_longer_for_more_jobs_before_them(
    store: SqliteStore, other: sqlite3.Connection, order: tuple[Key, ...]
) -> None:
    def steps(foreign: int) -> int:
        """How many hundreds of SQLite's own steps it takes to find two jobs beside so many of others."""
        emptied(store)
        (own,) = add(store, task="own")
        others = add(store, foreign, task="foreign")
        (last,) = add(store, task="own")
        newest = order[-1].descending
        marks = Marks()
        strategy = Strategy("A", order)
        marks.add("default", strategy, [(0, own if newest else last, others[-1] if newest else last)])
        values = {"queue": "default", "count": 2, "unknown": '["foreign"]', "now": 1.0, "worker": "w"}
        given = json.dumps(marks.of("default", strategy))
        counted: list[None] = []
        other.set_progress_handler(lambda: counted.append(None), 100)
        sql = CLAIM_SQL.take(strategy, marked=True)
        found = other.execute(sql, {**values, "marks": given}).fetchall()
        other.set_progress_handler(None, 0)
        assert len(found) == (2 if newest else 1)
        return len(counted)

    store.open()
    assert steps(2_000) <= steps(10) + 2


@pytest.mark.parametrize("name", ["depth", "depth_of_queue"])
def test_the_depth_is_read_from_the_ready_index_alone(
    backlog: SqliteStore, other: sqlite3.Connection, name: str
) -> None:
    (step,) = plan(other, STATEMENTS[name])
    assert "INDEX rowlock_jobs_ready" in step
    # Versions that do not call the index covering put the look into the table off, until a column is read.
    program = {row[1] for row in other.execute("EXPLAIN " + STATEMENTS[name], {"queue": "q1"})}
    assert "Next" in program and not program & {"Column", "FinishSeek"}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("due_jobs", "rowlock_jobs_due"),
        ("due_heads", "rowlock_jobs_due"),
        ("next_needed", "rowlock_jobs_due"),
        ("expired_jobs", "rowlock_jobs_expiring"),
        ("next_needed", "rowlock_jobs_expiring"),
        ("held_by", "rowlock_jobs_held"),
        ("held", "rowlock_jobs_held"),
        ("unique_holder", "rowlock_jobs_unique"),
        ("isolated_waiting", "rowlock_jobs_isolated"),
        ("find_running", "rowlock_jobs_held"),
        ("find_bad", "rowlock_jobs_bad"),
        ("history", "rowlock_history_job"),
        ("logs", "rowlock_logs_job"),
    ],
)
def test_maintenance_and_reads_use_their_index(
    backlog: SqliteStore, other: sqlite3.Connection, name: str, index: str
) -> None:
    steps = plan(other, STATEMENTS[name])
    assert any(index in step for step in steps), steps


@pytest.mark.parametrize(
    "name",
    [
        *("finish", "finish_retry", "finish_released", "finish_not_begun"),
        *("promote", "cancel", "rescue_requeue", "retry_job"),
    ],
)
def test_finishing_goes_by_the_primary_key(
    backlog: SqliteStore, other: sqlite3.Connection, name: str
) -> None:
    assert plan(other, STATEMENTS[name]) == ["SEARCH rowlock_jobs USING INTEGER PRIMARY KEY (rowid=?)"]


def test_an_empty_queue_costs_no_write_transaction(store: SqliteStore, other: sqlite3.Connection) -> None:
    who = worker(store)
    other.execute("BEGIN IMMEDIATE")  # somebody holds the write lock: a write would be refused
    assert take(store, who) == []
    other.execute("ROLLBACK")


# -- files -------------------------------------------------------------------------------------------


def test_the_wal_is_kept_small_by_writers_alone(store: SqliteStore, path: Path) -> None:
    for _ in range(600):
        store.insert([new(args='"' + "x" * 1000 + '"') for _ in range(50)])
    assert os.stat(f"{path}-wal").st_size < 32 * 1024 * 1024


def test_short_lived_writers_cut_a_large_wal(
    store: SqliteStore, path: Path, other: sqlite3.Connection
) -> None:
    add(store)
    other.execute("PRAGMA wal_autocheckpoint = 0")
    other.execute("CREATE TABLE mine (x)")
    other.execute("INSERT INTO mine VALUES (zeroblob(40000000))")
    assert os.stat(f"{path}-wal").st_size > 32 * 1024 * 1024
    for _ in range(2):  # the first copies the log, the next starts it over
        producer = SqliteStore(str(path))
        add(producer)
        producer.close()
    assert os.stat(f"{path}-wal").st_size <= 16 * 1024 * 1024 + 65536


def test_maintenance_makes_a_checkpoint_when_others_only_write(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(40):
        store.insert([new(args='"' + "x" * 1000 + '"') for _ in range(100)])
    log = os.stat(f"{path}-wal").st_size
    assert log > 4 * 1024 * 1024
    before = os.stat(path).st_size
    # Also on a machine that was just started: the monotonic clock counts from there.
    monkeypatch.setattr(wal_checkpoints, "time", SimpleNamespace(monotonic=lambda: 0.01))
    store.checkpoint()
    assert os.stat(path).st_size > before + 2 * 1024 * 1024


def test_a_reader_that_stays_does_not_stop_the_writers(store: SqliteStore, other: sqlite3.Connection) -> None:
    add(store)
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM rowlock_jobs").fetchone() == (1,)
    for _ in range(150):
        store.insert([new(args='"' + "x" * 1000 + '"') for _ in range(40)])
    assert len(store.find(limit=5)) == 5
    other.execute("COMMIT")


@pytest.mark.parametrize("who", ["this writer", "another writer"])
def test_a_log_that_was_started_over_is_not_left_alone_for_a_reader_that_has_gone(
    store: SqliteStore, path: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Beside other load it became 103 MB large in such a pause."""
    large, moment = 512 * 1024, [0.0]
    monkeypatch.setattr(wal_checkpoints, "_LARGE", large)
    monkeypatch.setattr(wal_checkpoints, "_TOO_LARGE", 3 * large)
    monkeypatch.setattr(wal_checkpoints, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(connections, "_LARGEST_LOG", large)

    def log_after(writes: int) -> int:
        for _ in range(writes):
            store.insert([new(args='"' + "x" * 1000 + '"') for _ in range(20)])
        return os.stat(f"{path}-wal").st_size

    def sleep(seconds: float) -> None:
        moment[0] += seconds
        if who == "another writer" and not connection_of(store).in_transaction:
            other.execute("INSERT INTO mine VALUES (zeroblob(1000))")

    monkeypatch.setattr(wal_checkpoints, "time", SimpleNamespace(monotonic=lambda: moment[0], sleep=sleep))
    add(store)
    for setup in (f"PRAGMA journal_size_limit = {large}", "CREATE TABLE mine (x)"):
        other.execute(setup)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM rowlock_jobs").fetchone() == (1,)
    for _ in range(10):  # ever longer pauses between the attempts
        log_after(writes=4)
        moment[0] += 60.0
    assert log_after(writes=20) > 3 * large
    reader.close()
    moment[0] += 60.0
    log_after(writes=1)  # it copies the log, and the next writer starts that over
    if who == "another writer":
        other.execute(f"INSERT INTO mine VALUES (zeroblob({large}))")  # before this one has looked
    assert log_after(writes=60) < 3 * large


@pytest.mark.skipif(connections.SAFE_AUTOCHECKPOINT, reason="this SQLite has no WAL-reset bug")
def test_old_versions_make_no_passive_checkpoints(store: SqliteStore) -> None:
    add(store)
    assert connection_of(store).execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_threads_have_connections_of_their_own_and_close_ends_them_all(path: Path) -> None:
    store = SqliteStore(str(path), busy_timeout=30)
    found: list[sqlite3.Connection] = []
    done = threading.Event()

    def use() -> None:
        add(store)
        found.append(connection_of(store))
        done.wait(30)

    thread = threading.Thread(target=use)
    thread.start()
    add(store)
    eventually(lambda: found)
    mine = connection_of(store)
    assert found[0] is not mine
    store.close()
    for connection in (mine, found[0]):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    done.set()
    thread.join()
    assert len(store.find()) == 2  # a later call opens anew
    store.close()


FORK = """
import os, sys
from rowlock.stores.sqlite import SqliteStore
from rowlock.job import Ending
from tests.stores.steps import add

store = SqliteStore(sys.argv[1])
add(store)
to_child, to_parent = os.pipe(), os.pipe()
if os.fork() == 0:
    add(store)
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)  # by now the parent has closed its connections
    add(store, 2)
    assert len(store.find()) == 4
    os._exit(0)
os.read(to_parent[0], 1)
store.close()
os.write(to_child[1], b"x")
assert os.wait()[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_a_forked_child_commits_outlives_its_parents_connections(path: Path) -> None:
    """With a connection open at the fork, the parent's close deletes the WAL under the child."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, str(path)], check=True, timeout=60)
    later = SqliteStore(str(path))
    assert len(later.find()) == 4
    later.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_transactions_and_finds_no_connection_open(store: SqliteStore) -> None:
    add(store)
    before = connection_of(store)
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with store.database.write() as tx:
            inside.set()
            leave.wait(30)
            tx.run("set_paused", name="q", paused=1)

    thread = threading.Thread(target=write)
    thread.start()
    assert inside.wait(30)
    threading.Timer(0.2, leave.set).start()
    child = os.fork()
    if child == 0:
        end_child(0 if leave.is_set() else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")
    assert [queue.name for queue in store.queues() if queue.paused] == ["q"]


def test_close_waits_for_those_who_use_a_connection(path: Path) -> None:
    store = SqliteStore(str(path), busy_timeout=30)
    stop = threading.Event()
    added: list[int] = []

    def write() -> None:
        while not stop.is_set():
            added.extend(add(store))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        store.close()
    stop.set()
    for thread in threads:
        thread.join()
    assert store.queues()[0].counts["queued"] == len(added) == len(set(added))
    store.close()


def test_a_write_inside_a_write_is_refused_and_spoils_nothing(store: SqliteStore) -> None:
    """As in a signal handler that enqueues while its thread is in a transaction."""
    store.open()

    def outer() -> None:
        with store.database.write() as tx:
            tx.run("set_paused", name="one", paused=1)
            with pytest.raises(StoreError):
                add(store)
            tx.run("set_paused", name="two", paused=1)
            raise ValueError("outer")

    with pytest.raises(ValueError, match="outer"):
        outer()
    assert store.queues() == [] and store.find() == []


@pytest.mark.skipif(connections.SAFE_AUTOCHECKPOINT, reason="this SQLite has no WAL-reset bug")
def test_a_checkpoint_without_the_write_lock_copies_nothing(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    add(store, 2000)
    other.execute("BEGIN IMMEDIATE")
    size = os.stat(store.database.path).st_size
    store.database.checkpoints.make(connection_of(store))
    assert os.stat(store.database.path).st_size == size
    other.execute("ROLLBACK")
    store.database.checkpoints.make(connection_of(store))
    assert os.stat(store.database.path).st_size > size


def test_a_file_that_cannot_become_wal_is_named_and_nothing_hangs(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    other.execute("CREATE TABLE mine (x)")
    other.execute("INSERT INTO mine VALUES (1)")
    other.execute("BEGIN")
    assert other.execute("SELECT * FROM mine").fetchone() == (1,)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"write lock|journal mode"):
            add(store)
    other.execute("COMMIT")
    add(store)
    assert len(store.find()) == 1


def test_an_emptied_sequence_is_made_again(store: SqliteStore, other: sqlite3.Connection) -> None:
    who = worker(store)
    (first,) = add(store)
    other.execute("DELETE FROM sqlite_sequence")
    (second,) = add(store)
    other.execute("DELETE FROM sqlite_sequence")
    (third, fourth) = add(store, 2)
    assert [first, second, third, fourth] == sorted({first, second, third, fourth})
    assert len(store.find()) == 4
    other.execute("DELETE FROM sqlite_sequence")
    claim = take(store, who, strategy="FIFO")[0]
    end(store, claim, Ending.RETRY)
    assert store.promote(5) == 1
    assert add(store)[0] > fourth


def test_a_backup_is_a_whole_queue_and_never_overwrites(store: SqliteStore, tmp_path: Path) -> None:
    add(store, 5)
    target = str(tmp_path / "copy.db")
    assert store.backup(target) > 0
    copy = SqliteStore(target)
    assert len(copy.find()) == 5
    copy.close()
    with pytest.raises(StoreError, match=r"exists already"):
        store.backup(target)
    with pytest.raises(StoreError, match=r"the backup to .*nowhere.* failed"):
        store.backup(str(tmp_path / "nowhere" / "copy.db"))
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []


# -- what goes wrong ---------------------------------------------------------------------------------


def test_reading_alone_creates_no_file(store: SqliteStore, path: Path) -> None:
    with pytest.raises(StoreMissing, match="no queue at"):
        store.open(create=False)
    assert not path.exists()


def test_a_database_without_our_tables_is_no_queue(store: SqliteStore, other: sqlite3.Connection) -> None:
    other.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreMissing, match="rowlock's tables are not"):
        store.open(create=False)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)  # looked at, not touched


def test_a_held_write_lock_is_called_busy(store: SqliteStore, other: sqlite3.Connection) -> None:
    add(store)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="holds the write lock"):
        add(store)
    other.execute("ROLLBACK")
    add(store)
    assert len(store.find()) == 2


def test_a_slow_change_to_wal_is_not_taken_for_a_network_drive(path: Path) -> None:
    with closing(SqliteStore(str(path), busy_timeout=1e-9)) as store:
        store.open()


@pytest.mark.parametrize(
    "trigger",
    [
        "RAISE(ABORT, 'the disk is full and locked')",
        "RAISE(ROLLBACK, 'never')",
        "json('{')",
        "nowhere(1)",
        "abs(-9223372036854775808)",
    ],
)
def test_what_a_trigger_refuses_is_about_the_data(
    store: SqliteStore, other: sqlite3.Connection, trigger: str
) -> None:
    add(store)
    other.execute(f"CREATE TRIGGER never BEFORE UPDATE ON rowlock_workers BEGIN SELECT {trigger}; END")
    with pytest.raises(DataRefused) as raised:
        store.beat(worker(store), "FIFO")
    assert raised.value.said in str(raised.value)
    other.execute("DROP TRIGGER never")
    add(store)
    assert len(store.find()) == 2


def test_a_file_that_is_no_database_is_named_and_left_alone(store: SqliteStore, path: Path) -> None:
    path.write_text("this is a diary, not a database. " * 100)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="is not a SQLite database"):
        add(store)
    assert path.read_bytes() == before


def test_a_damaged_file_is_called_damaged(store: SqliteStore, path: Path) -> None:
    add(store, 500)
    store.close()
    raw = bytearray(path.read_bytes())
    raw[4096 * 2 : 4096 * 20] = b"\xff" * (4096 * 18)
    path.write_bytes(raw)
    with pytest.raises(StoreUnusable, match="is damaged"):
        store.find(limit=500)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "nowhere" / "queue.db"))
    with pytest.raises(StoreUnusable, match="cannot be opened: check that its folder exists"):
        add(store)


def test_a_thread_that_cannot_open_its_connection_is_told_in_our_words(
    store: SqliteStore, path: Path
) -> None:
    """A worker goes on after an error of the store, and ends with any other."""
    add(store)
    store.database.connections.close()
    path.rename(path.with_name("elsewhere.db"))
    path.mkdir()
    for call in (lambda: add(store), store.find):
        with pytest.raises(StoreUnusable, match="cannot be opened"):
            call()


def test_a_full_disk_loses_nothing_and_says_so(store: SqliteStore) -> None:
    add(store)
    connection = connection_of(store)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DiskTrouble, match=r"is full; nothing was written"):
        store.insert([new(args='"' + "x" * 5000 + '"') for _ in range(50)])
    assert len(store.find()) == 1
    connection.execute("PRAGMA max_page_count = 1000000")
    add(store)
    assert len(store.find()) == 2


def test_a_disk_without_room_for_the_tables_is_called_full_and_they_are_created_later(
    store: SqliteStore,
) -> None:
    connection_of(store).execute("PRAGMA max_page_count = 5")
    with pytest.raises(DiskTrouble, match=r"is full; nothing was written"):
        add(store)
    add(store)  # on a connection of its own, which knows no such limit
    assert len(store.find()) == 1


def test_a_read_only_file_is_called_that_and_is_opened_anew(store: SqliteStore) -> None:
    """A connection that was opened while nothing could be written would stay so."""
    add(store)
    connection_of(store).execute("PRAGMA query_only = ON")
    with pytest.raises(DiskTrouble, match="cannot be written"):
        add(store)
    add(store)
    assert len(store.find()) == 2


def test_what_cannot_be_a_file_is_no_trouble_of_the_disk(tmp_path: Path) -> None:
    """Nobody waits for it: the address is wrong."""
    (tmp_path / "folder").mkdir()
    for name in ("folder", "nowhere/queue.db"):
        with pytest.raises(StoreUnusable, match="cannot be opened: check that its folder exists") as told:
            add(SqliteStore(str(tmp_path / name)))
        assert not isinstance(told.value, DiskTrouble)


# -- versions ----------------------------------------------------------------------------------------


def test_code_older_than_compatible_from_is_refused(store: SqliteStore, other: sqlite3.Connection) -> None:
    store.open()
    store.close()
    other.execute("UPDATE rowlock_meta SET value = '9' WHERE key IN ('version', 'compatible_from')")
    with pytest.raises(SchemaMismatch, match="install a newer rowlock"):
        add(store)


def test_a_newer_schema_that_says_it_is_compatible_is_used(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    store.open()
    store.close()
    other.execute("UPDATE rowlock_meta SET value = '9' WHERE key = 'version'")
    add(store)
    assert len(store.find()) == 1


def test_an_older_schema_asks_for_upgrade(store: SqliteStore, other: sqlite3.Connection) -> None:
    store.open()
    store.close()
    other.execute("UPDATE rowlock_meta SET value = '0' WHERE key = 'version'")
    with pytest.raises(SchemaMismatch, match="run `rowlock upgrade`"):
        add(store)


def test_upgrade_applies_what_is_missing_all_or_none(store: SqliteStore) -> None:
    add(store)
    connection = connection_of(store)
    assert store.upgrade() == (1, 1)
    good = (2, "ALTER TABLE rowlock_jobs ADD COLUMN colour TEXT; -- why;\nCREATE TABLE rowlock_x (a);")
    broken = (3, "CREATE TABLE rowlock_y (a);\nCREATE TABLE rowlock_x (a);")
    with pytest.raises(StoreError, match="already exists"):
        store.upgrade([good, broken])
    version = "SELECT value FROM rowlock_meta WHERE key = 'version'"
    assert connection.execute(version).fetchall() == [("1",)]
    assert store.upgrade([good]) == (1, 2)
    assert connection.execute("SELECT colour FROM rowlock_jobs").fetchall() == [(None,)]
    assert store.upgrade([good]) == (2, 2)


def test_each_install_has_an_id_of_its_own(store: SqliteStore, tmp_path: Path) -> None:
    store.open()
    second = SqliteStore(str(tmp_path / "second.db"))
    second.open()
    assert store.facts()["install_id"] != second.facts()["install_id"]
    second.close()


def test_a_worker_from_before_a_reboot_is_dead(store: SqliteStore, other: sqlite3.Connection) -> None:
    """The monotonic clock starts again at a reboot, so that an old beat lies in the future."""
    gone, rescuer = worker(store, "gone"), worker(store, "rescuer")
    add(store)
    take(store, gone)
    other.execute("UPDATE rowlock_workers SET beat_mono = beat_mono + 1e6 WHERE id = 'gone'")
    assert store.rescue(rescuer, careful_age=20).workers == ["gone"]


def test_a_finished_job_does_not_slow_a_claim(store: SqliteStore, other: sqlite3.Connection) -> None:
    """Counts the pages of work (virtual machine steps), not time: ten times the rows, the same cost."""
    who = worker(store)

    def steps_of_one_claim() -> int:
        connection, count = connection_of(store), [0]

        def tick() -> int:
            count[0] += 1
            return 0

        connection.set_progress_handler(tick, 10)
        (claim,) = take(store, who, strategy="FIFO")
        connection.set_progress_handler(None, 0)
        end(store, claim)
        return count[0]

    add(store, 50)
    small = steps_of_one_claim()
    store.insert([new(priority=level % 3) for level in range(5000)])
    for claim in take(store, who, 2500, strategy="PRIORITY", may_isolate=False):
        end(store, claim)
    assert steps_of_one_claim() < small * 4


BUSY_FORK = """
import os, sys, threading
from rowlock.stores.sqlite import SqliteStore
from tests.stores.steps import add

store = SqliteStore(sys.argv[1], busy_timeout=20)
acknowledged, stop = [], threading.Event()

def produce():
    while not stop.is_set():
        acknowledged.extend(add(store))

threads = [threading.Thread(target=produce) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for _ in range(12):
    child = os.fork()
    if child == 0:
        add(store, 2)
        add(store)
        store.close()
        os._exit(0)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
stop.set()
for thread in threads:
    thread.join()
assert codes == [0] * 12, codes
assert len(set(acknowledged)) == len(acknowledged)
assert store.queues()[0].counts["queued"] == len(acknowledged) + 36
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_beside_busy_threads_lose_nothing(path: Path) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", BUSY_FORK, str(path)], check=True, timeout=60)


def test_a_changed_working_directory_does_not_lose_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("queue.db")
    add(store)
    monkeypatch.chdir(elsewhere)
    thread = threading.Thread(target=add, args=(store,))  # opens a connection of its own
    thread.start()
    thread.join()
    store.close()
    assert len(store.find()) == 2
    assert list(elsewhere.iterdir()) == []
    store.close()


def test_a_file_deleted_under_its_users_is_not_made_again_in_silence(store: SqliteStore, path: Path) -> None:
    add(store)
    for file in path.parent.glob("queue.db*"):
        file.unlink()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            add(store)
        except StoreMissing as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert len(failures) == 1 and not path.exists()


def test_an_interrupt_while_waiting_for_the_lock_leaves_no_transaction_open(
    store: SqliteStore, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store)
    begin = connections.Connection.execute

    def interrupted(self: sqlite3.Connection, sql: str, *args: object) -> sqlite3.Cursor:
        cursor = begin(self, sql, *args)  # type: ignore[arg-type]
        if sql == "BEGIN IMMEDIATE":
            raise KeyboardInterrupt
        return cursor

    monkeypatch.setattr(connections.Connection, "execute", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        add(store)
    monkeypatch.undo()
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    connection_of(store).execute("BEGIN IMMEDIATE")  # as if the interrupt had come a line later
    add(store)
    assert len(store.find()) == 2


def test_connections_of_ended_threads_are_closed_at_once(store: SqliteStore) -> None:
    import gc

    found: list[sqlite3.Connection] = []

    def use() -> None:
        add(store)
        found.append(connection_of(store))

    gc.disable()
    try:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            found[0].execute("SELECT 1")
    finally:
        gc.enable()
