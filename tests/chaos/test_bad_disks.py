"""Disks that are full, read-only or broken, and files that are damaged or locked: said once, and survived."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from rowlock import Poller, Rowlock
from tests.chaos import strace
from tests.chaos.outages import Outage, SmallDisk, can_mount, failing_calls, seconds_until
from tests.chaos.seeds import seed
from tests.eventually import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at workers through /proc")
needs_mount = pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
needs_strace = pytest.mark.skipif(not strace.works(), reason="strace is not there, or may not trace")
GENEROUS = 30.0  # the promise is 5 s; this is for a machine that is busy with other things


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture
def outage(tmp_path: Path) -> Outage:
    return Outage(tmp_path, tmp_path / "queue.db")


# -- outages that pass -------------------------------------------------------------------------------


def survive(
    outage: Outage, store_backoff: Callable[[], AbstractContextManager[None]], seconds: float, kinds: int = 1
) -> float:
    """Two tasks end while the database cannot be written; returns how soon after it this was written down.

    The worker says it once, or each time when what SQLite calls the trouble has changed.
    """
    before = sum(outage.runs().values())
    jobs = {before, before + 1}
    outage.hold()
    for n in jobs:
        assert outage.enqueue(n)
    eventually(lambda: jobs <= set(outage.runs()), timeout=30)
    said, again = (
        len(outage.told("the store cannot be used")),
        len(outage.told("the store can be used again")),
    )
    completed = outage.completed()
    with store_backoff():
        outage.let_go()
        eventually(lambda: len(outage.told("the store cannot be used")) > said, timeout=30)
        outage.watch(seconds).assert_calm()
        lines = outage.told("the store cannot be used")[said:]
        assert len(lines) <= kinds, lines
    took = seconds_until(lambda: outage.completed() == completed + 2, GENEROUS)
    eventually(lambda: len(outage.told("the store can be used again")) == again + 1)
    assert all(outage.runs()[n] == 1 for n in jobs), "what they came to was kept, so nothing ran again"
    assert outage.integrity() == "ok"
    print(f"resumed after {took:.2f} s")  # noqa: T201
    return took


@contextmanager
def full(disk: SmallDisk) -> Iterator[None]:
    disk.fill()
    try:
        yield
    finally:
        disk.free()


@needs_mount
def test_a_worker_says_once_that_the_disk_is_full_and_goes_on_when_there_is_space(
    disk: SmallDisk, tmp_path: Path
) -> None:
    outage = Outage(tmp_path, disk.folder / "queue.db")
    with outage.worker():
        survive(outage, lambda: full(disk), seconds=1.0)
        assert "is full; nothing was written, free some space" in outage.told("the store cannot be used")[0]
        assert outage.stop() == 0


@needs_mount
def test_a_command_on_a_full_disk_says_so_and_what_was_acknowledged_stays(
    disk: SmallDisk, tmp_path: Path
) -> None:
    outage = Outage(tmp_path, disk.folder / "queue.db")
    assert outage.enqueue(1)
    disk.fill()
    refused = outage.rowlock("enqueue", "work", "n=2", "--database", outage.database)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"the disk that holds {outage.database} is full" in refused.stderr
    disk.free()
    assert outage.enqueue(3)
    assert (outage.states(), outage.integrity()) == ({"queued": 2}, "ok")


@needs_mount
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_disk_that_fills_up_again_and_again_loses_nothing(disk: SmallDisk, tmp_path: Path) -> None:
    chance = random.Random(seed())
    outage = Outage(tmp_path, disk.folder / "queue.db", lease=3.0)  # some outages outlast it
    with outage.worker():
        took = [survive(outage, lambda: full(disk), chance.uniform(0.5, 10.0)) for _ in range(20)]
        assert outage.stop() == 0
    print(f"resumed after at most {max(took):.2f} s, {sorted(took)[len(took) // 2]:.2f} s in the middle")  # noqa: T201
    assert outage.states() == {"completed": 40}


@needs_strace
def test_a_worker_survives_syncs_that_fail(outage: Outage) -> None:
    with outage.worker() as process:
        survive(outage, lambda: failing_calls(process, "fdatasync:error=EIO"), seconds=1.0)
        (line,) = outage.told("the store cannot be used")
        assert f"reading or writing {outage.database} failed" in line
        assert outage.stop() == 0


@needs_strace
@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "what",
    [
        *("pwrite64:error=EIO", "pwrite64:error=EROFS", "pwrite64:error=ENOSPC", "pwrite64:error=EDQUOT"),
        *("fdatasync:error=EIO", "pwrite64,fdatasync:error=EIO:when=1+3", "pread64,pwrite64:error=EIO"),
    ],
)
def test_a_worker_survives_calls_that_fail(outage: Outage, what: str) -> None:
    with outage.worker() as process:
        for _ in range(3):
            survive(outage, lambda: failing_calls(process, what), seconds=5.0, kinds=4)
        assert outage.stop() == 0
    assert outage.states() == {"completed": 6}


def test_a_write_lock_held_for_long_is_one_line_and_the_work_goes_on_afterwards(outage: Outage) -> None:
    with outage.worker():
        survive(outage, lambda: locked(outage.database), seconds=1.0)
        assert "holds the write lock" in outage.told("the store cannot be used")[0]
        assert outage.stop() == 0


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_write_lock_held_for_a_minute_is_one_line(outage: Outage) -> None:
    with outage.worker():
        survive(outage, lambda: locked(outage.database), seconds=60.0)
        assert outage.stop() == 0


def test_a_poller_counts_the_polls_that_found_the_database_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Rowlock(f"sqlite:///{tmp_path / 'queue.db'}", busy_timeout=0.05)
    poller = Poller(app, poll_interval=0.01)
    job = app.enqueue("work")
    with locked(tmp_path / "queue.db"):
        assert not any(poller.poll_once(lambda claim: None) for _ in range(5))
        assert (poller.stats()["polls_busy"], poller.stats()["polls_empty"]) == (5, 5)
    assert len([line for line in caplog.messages if "the database cannot be used now" in line]) == 1
    assert poller.poll_once(lambda claim: "done")
    assert app.result(job.id, timeout=0) == "done"
    poller.close()
    app.close()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Somebody else holds the write lock while the block runs."""
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# -- those that do not pass by themselves ------------------------------------------------------------


def test_a_queue_that_may_only_be_read_is_named_by_every_command(tmp_path: Path) -> None:
    with read_only_folder(tmp_path / "disk") as (folder, shut):
        outage = Outage(tmp_path, folder / "queue.db")
        assert outage.enqueue(1)
        shut(True)
        for words in (["enqueue", "work", "n=2"], ["jobs"]):
            refused = outage.rowlock(*words, "--database", outage.database)
            assert (refused.returncode, refused.stdout) == (1, "")
            (line,) = refused.stderr.splitlines()
            assert str(outage.database) in line and "check the rights of the file" in line
        shut(False)
        assert outage.enqueue(3)
        assert (outage.states(), outage.integrity()) == ({"queued": 2}, "ok")


@contextmanager
def read_only_folder(folder: Path) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """A folder that can be made read-only and writable again: root needs a disk of its own for that."""
    if can_mount():
        disk = SmallDisk(folder)
        try:
            yield folder, disk.read_only
        finally:
            disk.close()
    else:
        folder.mkdir()

        def shut(yes: bool) -> None:
            folder.chmod(0o555 if yes else 0o755)

        try:
            yield folder, shut
        finally:
            shut(False)


def test_a_running_worker_says_once_that_the_file_is_damaged_and_stays_calm(outage: Outage) -> None:
    with outage.worker():
        assert outage.enqueue(0)
        eventually(lambda: outage.completed() == 1, timeout=30)
        damage(outage.database)
        eventually(lambda: outage.told("the store cannot be used"), timeout=30)
        outage.watch(1.0).assert_calm()
        (line,) = outage.told("the store cannot be used")
        assert f"{outage.database} is damaged; restore a backup, or try `.recover`" in line
        assert outage.stop() == 0
    refused = outage.rowlock("enqueue", "work", "n=1", "--database", outage.database)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{outage.database} is damaged; restore a backup" in refused.stderr


_DAMAGE = """
import os, sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("PRAGMA wal_checkpoint(PASSIVE)")
file = os.open(sys.argv[1], os.O_WRONLY)
os.pwrite(file, b"\\xff" * (os.fstat(file).st_size - 4096), 4096)
os.fsync(file)
other.execute("PRAGMA user_version = 7")  # a commit, so that everybody looks at the file again
"""


def damage(database: Path) -> None:
    """Overwrite all pages but the first; in a process of its own, which loses its locks by that."""
    subprocess.run([sys.executable, "-c", _DAMAGE, str(database)], check=True, timeout=60)
