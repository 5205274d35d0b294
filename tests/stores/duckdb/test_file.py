"""File mode: processes take turns with one DuckDB file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import duckdb
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.orm import Session

from rowlock import Poller, Rowlock, Status
from rowlock.duckdb import create_engine
from rowlock.errors import ConfigurationError, StoreUnusable
from rowlock.insights import doctor
from rowlock.job import Claim, Ending
from rowlock.stores.duckdb.file_lock import FileLock, TurnRecord
from tests.eventually import eventually
from tests.forks import end_child
from tests.stores.conformance.test_waking import asleep
from tests.stores.steps import add, end, run_sql, take, worker

PATIENT = 60.0  # seconds for a turn, on a machine that is busy with other tests


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data.duckdb")


@pytest.fixture
def app(path: str) -> Iterator[Rowlock]:
    made = Rowlock(f"duckdb:///{path}", busy_timeout=PATIENT, lease=3600.0)  # no beat is due: it is a turn
    yield made
    made.close()


CLAIM = """
import json, sys
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.address import store_for
from tests.stores.steps import outcome, worker
store = store_for(sys.argv[1], busy_timeout=60.0)
who, done, claims = worker(store, sys.argv[2]), [], []
while True:
    outcomes = [outcome(claim, Ending.COMPLETED, result="1") for claim in claims]
    got = store.exchange(who, outcomes, ClaimRequest(count=25))
    assert got.lost == []
    claims = got.claims
    done += [claim.id for claim in claims]
    if not claims:
        break
print(json.dumps(done))
"""


def test_four_processes_claim_each_job_once(app: Rowlock) -> None:
    ids = add(app.store, 400)
    started = [
        subprocess.Popen([sys.executable, "-c", CLAIM, app.store.url, f"p{n}"], stdout=subprocess.PIPE)
        for n in range(4)
    ]
    done = [json.loads(one.communicate(timeout=100)[0]) for one in started]
    assert sorted(id for part in done for id in part) == ids
    assert {job.state for job in app.jobs(limit=400)} == {"completed"}
    assert {job.claim for job in app.jobs(limit=400)} == {1}


def test_nobody_has_the_file_between_turns(app: Rowlock, path: str) -> None:
    add(app.store)
    assert take(app.store, worker(app.store))
    found = subprocess.run(
        [sys.executable, "-c", "import duckdb, sys; duckdb.connect(sys.argv[1]).close()", path], check=False
    )
    assert found.returncode == 0


def test_a_turn_of_the_users_own_is_in_the_same_file_and_keeps_others_out(app: Rowlock, path: str) -> None:
    with app.connection() as con:
        con.execute("CREATE TABLE videos (id INTEGER)")
        con.execute("INSERT INTO videos VALUES (1)")
        waited: Any = subprocess.run(
            [sys.executable, "-c", OTHER, path], check=False, capture_output=True, text=True
        )
        assert "StoreBusy" in waited.stdout
    waited = subprocess.run([sys.executable, "-c", OTHER, path], check=False, capture_output=True, text=True)
    assert waited.stdout == "0\n"
    assert Rowlock(f"duckdb:///{path}").depth() == 0


OTHER = """
import sys
from rowlock import Rowlock, StoreError
app = Rowlock(f"duckdb:///{sys.argv[1]}", busy_timeout=0.1)
try:
    print(app.depth())
except StoreError as error:
    print(type(error).__name__, error)
"""


def test_threads_share_the_turn_of_their_process(app: Rowlock) -> None:
    add(app.store)
    found: list[int] = []
    with app.connection():  # for as long as that takes, nobody else could have a turn: so why wait
        thread = threading.Thread(target=lambda: found.append(app.depth()))
        thread.start()
        thread.join(timeout=60)
    assert found == [1]


def test_an_engine_without_a_pool_gives_everybody_a_turn(app: Rowlock, path: str) -> None:
    engine = create_engine(path)
    cut = app.task(lambda video: None, name="cut")  # type: ignore[call-overload]
    with Session(engine) as session:
        session.execute(text("CREATE TABLE videos (id INTEGER)"))
        session.execute(text("INSERT INTO videos VALUES (1)"))
        job = cut.using(session).enqueue(video=1)
        session.commit()
    assert app.job(job).state == "queued"
    other = subprocess.run([sys.executable, "-c", OTHER, path], check=True, capture_output=True, text=True)
    assert other.stdout == "1\n"
    with Session(engine) as session:
        assert session.execute(text("SELECT count(*) FROM videos")).scalar() == 1
    with create_engine(f"duckdb:///{path}").connect() as connection:  # its URL does as well
        assert connection.execute(text("SELECT count(*) FROM videos")).scalar() == 1


def test_a_pooled_engine_in_the_same_process_is_refused_with_the_cure(app: Rowlock, path: str) -> None:
    app.store.open()
    pooled = sqlalchemy.create_engine(f"duckdb:///{path}")
    with pooled.connect(), pytest.raises(StoreUnusable, match=r"rowlock\.duckdb\.create_engine\(path\)"):
        app.depth()
    pooled.dispose()


def test_an_engine_that_takes_turns_is_not_for_owner_mode(path: str) -> None:
    url = re.escape(f'Rowlock("duckdb:///{path}")')
    with pytest.raises(ConfigurationError, match=f"Give the app the URL, {url}"):
        Rowlock(engine=create_engine(path))


def test_what_cannot_take_turns_is_refused(app: Rowlock, path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no pool"):
        create_engine(path, poolclass=None)
    with pytest.raises(ConfigurationError, match="name a file"):
        create_engine(":memory:")
    with pytest.raises(ConfigurationError, match=r"app\.connection\(\) is for DuckDB"):
        Rowlock(f"sqlite:///{tmp_path}/jobs.db").connection()


# -- turns that need not be taken ----------------------------------------------------------------


class Idle:
    """An idle worker that is told when to make its next round."""

    def __init__(self, app: Rowlock, workload: Any = None) -> None:
        self.poller, self._turn = Poller(app, workload=workload), cast("Any", app.store).database.access.turn
        for _ in range(3):
            assert self.round() is None

    def round(self) -> str | None:
        """Look for work once; returns the task of what it found."""
        self.poller._polls.maintenance._next_at = 0.0  # as if it were time for maintenance
        if (claim := self.poller.claim()) is not None:
            claim.complete()
        self.poller.idle_wait()
        return None if claim is None else claim.task

    def turns_of(self, rounds: int) -> int:
        """How many turns that many rounds take."""
        before = self._turn.turns
        for _ in range(rounds):
            assert self.round() is None
        return int(self._turn.turns - before)


def rows_of(app: Rowlock, *statements: str) -> Any:
    """The workload of a table with a status column."""
    with app.connection() as con:
        for statement in ("CREATE TABLE videos (id INTEGER PRIMARY KEY, status VARCHAR)", *statements):
            con.execute(statement)
    app.consumer("cut", table="videos", status=Status("status", due="new"))(lambda row: None)
    return app.workload(consumer="cut")


def test_an_idle_worker_takes_a_turn_only_after_anothers_write(app: Rowlock, path: str) -> None:
    idle = Idle(app)
    assert idle.turns_of(5) == 0
    subprocess.run([sys.executable, "-c", ENQUEUE, path], check=True)
    assert idle.round() == "double"
    subprocess.run([sys.executable, "-c", ENQUEUE.replace("1})", "1}, delay=0.5)"), path], check=True)
    assert eventually(idle.round) == "double"
    add(app.store, task="double", delay=0.0, run_at=time.time() - 1)  # scheduled, and due at once
    run_sql(app.store, "UPDATE rowlock_jobs SET state = 'scheduled' WHERE state = 'queued'")
    assert idle.round() == "double"
    idle.poller.close()


def test_an_idle_consumer_takes_a_turn_only_after_a_write(app: Rowlock, path: str) -> None:
    idle = Idle(app, rows_of(app))
    assert idle.turns_of(5) == 0
    subprocess.run([sys.executable, "-c", INSERT, path], check=True)
    assert idle.round() == "cut"
    with app.connection() as con:  # in this process, too
        con.execute("INSERT INTO videos VALUES (2, 'new')")
    assert idle.round() == "cut"
    idle.poller.close()


@pytest.mark.parametrize("kind", ["job", "row"])
def test_what_a_worker_puts_off_itself_is_no_others_write_and_falls_due(app: Rowlock, kind: str) -> None:
    store: Any = app.store
    if kind == "row":
        store = rows_of(app, "INSERT INTO videos VALUES (1, 'new'), (2, 'new')").store
    else:
        add(store, 2, task="cut")
    who = worker(store)
    late, soon = take(store, who, 2, strategy="FIFO")
    assert store.next_needed(who) is None  # looked at while they run
    assert end(store, late, Ending.RETRY, delay=1000.0)
    assert store.next_needed(who) > 0.0
    assert end(store, soon, Ending.RETRY, delay=0.2)

    def taken_again() -> list[Claim]:
        store.next_needed(who)
        store.promote(10)
        return take(store, who, 2, strategy="FIFO")

    assert len(eventually(taken_again)) == 1


ENQUEUE = (
    "import sys; from rowlock import Rowlock; Rowlock(f'duckdb:///{sys.argv[1]}').enqueue('double', {'n': 1})"
)
INSERT = (
    "import sys; from rowlock import Rowlock\n"
    "with Rowlock(f'duckdb:///{sys.argv[1]}').connection() as con:\n"
    "    con.execute(\"INSERT INTO videos VALUES (1, 'new')\")"
)


def test_a_sleeper_hears_of_a_job_from_another_process(app: Rowlock, path: str) -> None:
    store: Any = app.store
    wake, bell = asleep(store, worker(store))
    sleeper = threading.Thread(target=wake.wait, args=(bell, 600.0, True), daemon=True)
    sleeper.start()
    store.beat("w", "FIFO")  # a turn of its own is no change
    sleeper.join(timeout=0.2)
    assert sleeper.is_alive()
    subprocess.run([sys.executable, "-c", ENQUEUE, path], check=True)
    sleeper.join(timeout=60)
    assert not sleeper.is_alive()


def test_an_exchange_is_one_turn(app: Rowlock) -> None:
    store: Any = app.store
    add(store, 2)
    who = worker(store)
    turns = store.database.access.turn.turns
    assert len(take(store, who, 2)) == 2
    assert store.database.access.turn.turns == turns + 1


# -- long turns ----------------------------------------------------------------------------------


def test_a_rescue_waits_one_beat_after_a_turn_longer_than_the_lease(app: Rowlock, path: str) -> None:
    store: Any = app.store
    add(store)
    take(store, worker(store, "silent", now=time.time() - 100))
    rescuer = worker(store, "rescuer")
    for ago, waits in ((5.0, True), (11.0, False)):  # a beat of this lease, 60 s, is 10 s
        ended = time.monotonic() - ago
        with open(f"{path}.turn", "wb") as file:
            record = TurnRecord(1, ended - 90.0, ended, long_seconds=90.0, long_ended=ended)
            file.write(" ".join(map(str, record)).encode().ljust(200))
        assert store.rescue(rescuer, careful_age=20.0).waited is waits
    assert store.get(1).state == "queued"


def test_the_longest_turn_of_late_is_remembered() -> None:
    record = TurnRecord().after(90.0, ended=1000.0)
    assert (record.long_seconds, record.long_ended) == (90.0, 1000.0)
    assert record.after(0.5, ended=1001.0) == record and record.after(2.0, ended=1001.0) == record
    assert record.after(100.0, ended=1100.0).long_ended == 1100.0
    assert record.after(2.0, ended=9000.0).long_seconds == 2.0


def test_a_turn_in_which_its_process_died_counts_as_long(path: str) -> None:
    with open(f"{path}.turn", "wb") as file:
        file.write(" ".join(map(str, TurnRecord(1, time.monotonic() - 90.0))).encode().ljust(200))
    lock = FileLock(path)
    assert lock.acquire(1.0)
    assert lock.record().long_seconds >= 90.0 and lock.record().pid == os.getpid()
    assert not FileLock(path).acquire(0.0)
    lock.release()


def test_before_the_first_turn_nobody_has_died_in_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowlock.stores.duckdb.file_lock.time.monotonic", lambda: 900.0)  # since the boot
    lock = FileLock(path)
    assert lock.acquire(1.0)
    assert lock.record().long_seconds == 0.0
    lock.release()


def test_the_cost_of_a_turn_is_told_without_the_wait_for_it(app: Rowlock, path: str) -> None:
    store: Any = app.store
    store.open()
    other = FileLock(path)
    assert other.acquire(PATIENT)
    began = time.monotonic()
    threading.Timer(0.3, other.release).start()
    store.depth()
    assert store.database.access.turn.seconds <= time.monotonic() - began - 0.3


def test_the_doctor_names_the_mode_the_cost_of_a_turn_and_long_turns(app: Rowlock, path: str) -> None:
    app.store.open()
    found = {one.check: one for one in doctor(app.store)}
    said = found["mode"].message + found["mode"].advice  # on a busy machine a turn may be a slow one
    assert re.search(r"file mode.*a turn takes \d+ ms.*`rowlock copy`", said)
    ended = time.monotonic()
    long_ago = TurnRecord(1, 0.0, ended, long_seconds=90.0, long_ended=ended - 10 * 86_400.0)
    just_now = TurnRecord(1, ended - 90.0, ended, long_seconds=90.0, long_ended=ended)
    for record, told in ((long_ago, False), (just_now, True)):
        with open(f"{path}.turn", "wb") as file:
            file.write(" ".join(map(str, record)).encode().ljust(200))
        found = {one.check: one for one in doctor(app.store)}
        assert ("for 90 s" in found["turns"].message) is told


def test_the_doctor_finds_a_file_that_its_own_process_keeps_open(app: Rowlock, path: str) -> None:
    app.store.open()
    with duckdb.connect(path) as kept:
        (mode,) = [one for one in doctor(app.store) if one.check == "mode"]
        assert mode.level == "error" and f"this process ({os.getpid()}) has the file open" in mode.message
        assert "rowlock.duckdb.create_engine(path)" in mode.advice
        attached = kept.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchall()
        assert attached == [(1,)]  # it leaves nothing behind
    (mode,) = [one for one in doctor(app.store) if one.check == "mode"]
    assert "nobody has the file in between" in mode.message


def test_the_doctor_names_a_turn_that_does_not_end(app: Rowlock, path: str) -> None:
    app.store.open()
    other = FileLock(path)
    assert other.acquire(PATIENT)
    (found,) = doctor(Rowlock(f"duckdb:///{path}", busy_timeout=0.1).store)
    other.release()
    assert (found.check, found.level) == ("opens", "error") and "has its turn with" in found.message


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_that_was_forked_in_a_turn_keeps_nobody_waiting(app: Rowlock, path: str) -> None:
    told, tell = os.pipe()
    stay, leave = os.pipe()
    with app.connection() as con:
        con.execute("CREATE TABLE videos AS SELECT 1 AS id")
        child = os.fork()
        if not child:
            os.close(leave)
            try:
                app.depth()
            except StoreUnusable as error:  # DuckDB cannot be made to let go of the file here
                os.write(tell, str(error).encode())
            os.read(stay, 1)
        elif b"was forked while process" in os.read(told, 500):
            con.execute("INSERT INTO videos VALUES (2)")
    if not child:
        end_child(0)  # after the end of the block, which must not end the parent's turn or close the file
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    other = subprocess.run([sys.executable, "-c", OTHER, path], check=True, capture_output=True, text=True)
    assert other.stdout == "0\n"
    os.close(leave)
    assert os.waitpid(child, 0)[1] == 0
    with app.connection() as con:
        assert con.execute("SELECT * FROM videos").fetchall() == [(1,), (2,)]


FORKED = """
import os, sys
from rowlock import Rowlock
app = Rowlock(f"duckdb:///{sys.argv[1]}")
with app.connection() as con:
    con.execute("CREATE TABLE videos AS SELECT 1 AS id")
    if os.fork():
        os.kill(os.getpid(), 9)
    sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_keeps_neither_the_lock_nor_the_file_of_a_parent_that_was_killed(path: str) -> None:
    command = [sys.executable, "-c", FORKED, path]
    parent = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL)
    assert parent.wait(60) < 0
    lock = FileLock(path)
    assert lock.acquire(0.0)  # though the child lives
    parent.communicate()  # until the child has ended
    assert os.path.exists(f"{path}.wal")  # which has not closed the file, and so written nothing to it
    lock.release()
