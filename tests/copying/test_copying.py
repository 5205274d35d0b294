"""`rowlock copy`: what arrives, what the source refuses then, and what is refused before anything is done."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from rowlock import Rowlock, State, Status
from rowlock.copying import copier
from rowlock.copying.checks import CopyRefused
from rowlock.copying.report import CopyProgress
from rowlock.errors import SchemaMismatch, StoreBusy, StoreMissing, StoreMoved
from rowlock.job import NewJob
from rowlock.stores.address import store_for
from rowlock.stores.sql.copying import COLUMNS
from tests.copying.queues import Pair, fill, shown, silence, writing
from tests.eventually import eventually
from tests.stores.steps import worker

JOB = NewJob(task="cut", queue="default", args="{}")


def test_everything_arrives_as_it_left(every_pair: Pair) -> None:
    ids = fill(every_pair.source)
    before = {job.id: (job, history, logs) for job, history, logs in shown(every_pair.source)}
    settings = [(one.name, one.paused, one.strategy) for one in every_pair.source.store.queues()]
    report = every_pair.copy()
    assert report.agrees and report.moved and report.ids_kept and not report.resumed

    arrived = {job.id: (job, history, logs) for job, history, logs in shown(every_pair.target)}
    assert arrived.keys() == before.keys() == set(ids.values()) - {ids["pruned"]}
    ran = {ids["running"], ids["asked"]}
    assert [arrived[id] for id in arrived if id not in ran] == [before[id] for id in before if id not in ran]

    running, history, logs = arrived[ids["running"]]
    assert (running.state, running.claim, running.claimed_by) == ("queued", 1, None)
    assert running.progress == before[running.id][0].progress and logs == before[running.id][2]
    assert [one.event for one in history] == ["released"] and "was copied from" in (history[0].error or "")
    asked, history, _ = arrived[ids["asked"]]  # to give back what is to be cancelled is to cancel it
    assert (asked.state, history[-1].event) == ("cancelled", "cancelled") and report.released == 2

    consumer = ("consumer:birdnet", True, None)  # a consumer's table stays, and so does its pause
    assert [one for one in settings if one != consumer] == [
        (one.name, one.paused, one.strategy) for one in every_pair.target.store.queues()
    ]
    assert every_pair.target.enqueue("cut").id > max(ids.values())
    claim = every_pair.target.poller(queues=["work"], strategy="FIFO").claim()
    assert claim is not None and claim.claim == arrived[claim.id][0].claim + 1  # the fence goes on


def test_a_source_that_has_moved_refuses_jobs_and_workers(some_pair: Pair) -> None:
    left = some_pair.source.enqueue("cut").id
    some_pair.copy()
    assert some_pair.source.job(left).state == "queued"  # it can still be read
    where = some_pair.target.store.url.rpartition("/")[2]
    for act in (
        lambda: some_pair.source.enqueue("cut"),
        lambda: some_pair.source.store.insert([JOB] * 30),
        lambda: some_pair.source.cancel(left),
        lambda: some_pair.source.pause("default"),
        lambda: some_pair.source.worker().run(until_empty=True),
        lambda: some_pair.source.poller().claim(),
    ):
        with pytest.raises(StoreMoved, match="has moved to") as refused:
            act()
        assert where.partition("?")[0] in str(refused.value)
    with pytest.raises(StoreMoved, match="has moved to"):
        some_pair.copy()
    assert some_pair.target.job(left).state == "queued"

    some_pair.copier().open_again()  # --undo
    assert some_pair.source.enqueue("cut").id > left
    some_pair.source.cancel(left)


def test_a_users_own_transaction_is_refused_too(some_pair: Pair) -> None:
    url = some_pair.urls[0]
    some_pair.source.enqueue("cut")
    some_pair.copy()
    task = some_pair.source.task(name="cut")(lambda: None)
    kind, _, place = url.partition(":///")
    own: Any = (
        sqlite3.connect(place)
        if kind == "sqlite"
        else duckdb.connect(place)
        if kind == "duckdb"
        else psycopg.connect(url.partition("?")[0])
    )
    with pytest.raises((sqlite3.IntegrityError, psycopg.Error, StoreMoved), match="has moved to"):
        task.using(own).enqueue()
    own.close()


def test_an_enqueue_that_is_acknowledged_during_the_copy_is_never_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "PAGE", 7)
    pair.source.store.insert([JOB] * 30)
    acknowledged: list[int] = []
    refused = threading.Event()

    def produce() -> None:
        app = Rowlock(pair.urls[0])
        try:
            while True:
                with suppress(StoreBusy):
                    acknowledged.append(app.enqueue("cut").id)
                    if len(acknowledged) % 3:
                        app.cancel(acknowledged[-1])
        except StoreMoved:
            refused.set()
        finally:
            app.close()

    producers = [threading.Thread(target=produce) for _ in range(2)]
    for one in producers:
        one.start()
    eventually(lambda: len(acknowledged) > 20)
    report = pair.copy()
    for one in producers:
        one.join(30)
    assert refused.is_set() and report.agrees and report.ids_kept
    there = {job.id: job.state for job in pair.target.jobs(limit=10_000)}
    assert set(acknowledged) <= there.keys() and len(there) == len(acknowledged) + 30
    assert there == {job.id: job.state for job in pair.source.jobs(limit=10_000)}


def test_a_kept_source_goes_on(pair: Pair) -> None:
    ids = fill(pair.source)
    before = shown(pair.source)
    report = pair.copy(keep=True)
    assert report.agrees and not report.moved and shown(pair.source) == before
    assert pair.source.enqueue("cut").id > max(ids.values())
    with pytest.raises(CopyRefused, match=r"has a copy of .* already"):
        pair.copy(keep=True, merge=True)


def test_into_a_queue_that_is_not_empty_jobs_get_new_ids(pair: Pair) -> None:
    own = [pair.target.enqueue("cut", unique_key="k").id, pair.target.enqueue("cut").id]
    pair.target.set_strategy("work", "FIFO")
    ids = fill(pair.source)
    with pytest.raises(CopyRefused, match="is not empty"):
        pair.copy()
    left = {job.id: (history, logs) for job, history, logs in shown(pair.source)}
    report = pair.copy(merge=True)
    assert report.agrees and not report.ids_kept
    (range_,) = report.ids
    assert range_.shift == own[-1]
    arrived = {job.id - range_.shift: (job, history, logs) for job, history, logs in shown(pair.target)[:-2]}
    assert arrived.keys() == left.keys()
    assert [arrived[id][2] for id in arrived] == [left[id][1] for id in arrived]  # logs stay with their jobs

    held = arrived[ids["scheduled"]][0]
    assert (held.state, held.error_kind) == ("cancelled", "unique_key")
    assert (held.error or "").endswith(f"job {own[0]} holds its unique key 'k' here")
    assert [(one.source_id, one.holder) for one in report.conflicts] == [(ids["scheduled"], own[0])]
    assert report.settings_kept == ["work"] and report.conflicts_total == 1
    assert pair.target.enqueue("cut").id > held.id


def test_a_target_in_use_keeps_its_own_jobs_apart(files: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "PAGE", 5)
    jobs = [files.source.enqueue("cut").id for _ in range(20)]
    for id in jobs[:15]:
        files.source.cancel(id)
    new: list[int] = []

    def meanwhile(_: object) -> None:
        new.append(files.target.enqueue("own").id)  # draws a number, so that the next ones go elsewhere
        if len(new) == 2:
            jobs.append(files.source.enqueue("late").id)

    report = files.copy(tell=meanwhile)
    assert report.agrees and not report.ids_kept and len(report.ids) == 2
    there = files.target.jobs(limit=1000)
    assert sorted(job.id for job in there if job.task == "own") == new
    assert sorted(job.id for job in there if job.task == "cut") == jobs[:20]
    assert [job.id for job in there if job.task == "late"] == [jobs[-1] + report.ids[1].shift]


def test_workers_on_the_source_are_told_and_their_jobs_run_on_the_target(pair: Pair) -> None:
    started, go = threading.Event(), threading.Event()

    def cut(n: int) -> int:
        started.set()
        go.wait(30)
        return n

    ran = pair.source.task(cut)
    pair.target.task(cut)
    jobs = ran.enqueue_many([{"n": n} for n in range(6)])
    ended: list[BaseException] = []

    def work() -> None:
        try:
            pair.source.worker(concurrency=2).run()
        except StoreMoved as error:
            ended.append(error)

    working = threading.Thread(target=work)
    working.start()
    assert started.wait(30)
    with pytest.raises(CopyRefused, match=r"workers are alive on .*: stop them first"):
        pair.copy()
    report = pair.copy(with_workers_alive=True)
    assert report.agrees and report.released >= 1
    go.set()
    working.join(60)
    assert ended and "has moved to" in str(ended[0])
    pair.target.worker().run(until_empty=True)
    assert [pair.target.job(id).result for id in jobs] == list(range(6))
    assert not [job for job in pair.source.jobs() if job.state == "completed"]


def test_a_worker_that_has_nothing_to_do_is_told_too(files: Pair) -> None:
    app = Rowlock(files.urls[0], lease=1.0)
    ended: list[BaseException] = []

    def work() -> None:
        try:
            app.worker().run()
        except StoreMoved as error:
            ended.append(error)

    working = threading.Thread(target=work)
    working.start()
    eventually(files.source.store.workers)
    files.copy(with_workers_alive=True)
    working.join(30)
    app.close()
    assert ended and "has moved to" in str(ended[0])


def test_nothing_can_be_claimed_on_the_target_before_the_source_is_closed(
    files: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "BATCH_BYTES", 1)  # a page is read at once, and copied job by job
    jobs = [files.source.enqueue("cut").id for _ in range(6)]
    for id in jobs[:4]:
        files.source.cancel(id)
    early: list[int] = []

    def meanwhile(progress: CopyProgress) -> None:
        if progress.phase == "finished jobs":
            early.append(files.target.depth())
            if len(early) == 1:
                files.source.retry(jobs[2])

    assert files.copy(tell=meanwhile).agrees and early == [0, 0, 0, 0]
    assert files.target.depth() == 3


def test_a_job_that_may_run_only_once_is_not_run_again(files: Pair) -> None:
    @files.source.task(retry=False)
    def once() -> None: ...

    once.enqueue()
    claim = files.source.poller().claim()
    assert claim is not None
    with writing(files.source) as tx:
        tx.connection.execute("UPDATE rowlock_jobs SET started_at = claimed_at")
    silence(files.source)
    assert files.copy().agrees
    job = files.target.job(claim.id)
    assert (job.state, job.error_kind, job.claim) == ("failed", "worker_stopped", 1)


def test_consumers_stay_where_their_table_is(files: Pair) -> None:
    seen: list[int] = []
    path = files.urls[0].removeprefix("sqlite:///")
    with sqlite3.connect(path) as own:
        own.execute("CREATE TABLE recordings (id INTEGER PRIMARY KEY, analysis_state TEXT)")
        own.executemany("INSERT INTO recordings (id) VALUES (?)", [(n,) for n in range(1, 4)])
    own.close()

    @files.source.consumer("birdnet", table="recordings", state="analysis_state")
    def birdnet(row: dict[str, int]) -> str:
        seen.append(row["id"])
        return "done"

    files.source.enqueue("cut")
    files.source.consume("birdnet", until_empty=True)
    files.copy()
    with sqlite3.connect(path) as own:
        own.execute("INSERT INTO recordings (id) VALUES (9)")
    own.close()
    files.source.consume("birdnet", until_empty=True)
    assert sorted(seen) == [1, 2, 3, 9]


def test_consumers_on_duckdb_stay_where_their_table_is(tmp_path: Path) -> None:
    source = Rowlock(f"duckdb:///{tmp_path}/data.duckdb", busy_timeout=60.0)
    with source.connection() as own:
        own.execute("CREATE TABLE videos (id INTEGER PRIMARY KEY, status VARCHAR DEFAULT 'pending')")
        own.execute("INSERT INTO videos (id) VALUES (1)")
    source.consumer("cut", table="videos", status=Status("status"))(lambda row: None)
    source.enqueue("cut")
    busy = worker(source.store, "busy")
    target = store_for(f"sqlite:///{tmp_path}/jobs.db")
    assert copier.Copier(source.store, target, with_workers_alive=True).run().moved
    assert not source.store.beat(busy, "FIFO")  # so a worker is told, whatever it runs
    source.consume("cut", until_empty=True)
    source.pause("consumer:cut")
    target.close()
    with source.connection() as own:
        assert own.execute("SELECT status FROM videos").fetchall() == [("completed",)]
    source.close()


def test_a_large_job_is_a_batch_of_its_own(files: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "BATCH_BYTES", 1200)
    for n in range(10):
        files.source.cancel(files.source.enqueue("cut", {"text": "x" * (2000 if n == 4 else 400)}))
    told: list[int] = []
    assert files.copy(tell=lambda progress: told.append(progress.done)).agrees
    assert told[:6] == [2, 4, 5, 7, 9, 10]


def test_every_column_of_a_jobs_tables_is_copied(every_pair: Pair) -> None:
    own = {"jobs": {"token"}, "history": {"id"}, "logs": {"id"}}  # numbers that mean nothing elsewhere
    every_pair.source.store.open()
    with writing(every_pair.source) as session:
        for table, columns in COLUMNS.items():
            if not every_pair.urls[0].startswith("postgresql"):
                there = {
                    row[1]
                    for row in session.connection.execute(f"PRAGMA table_info(rowlock_{table})").fetchall()
                }
            else:
                schema = every_pair.urls[0].rpartition("schema=")[2]
                found = session.connection.own_cursor.execute(
                    "SELECT column_name FROM information_schema.columns "
                    "WHERE table_schema = %s AND table_name = %s",
                    (schema, f"rowlock_{table}"),
                )
                there = {row[0] for row in found.fetchall()}
            assert there - own.get(table, set()) == set(columns)


def test_a_page_takes_two_turns_with_a_duckdb_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "PAGE", 5)
    source: Any = Rowlock(f"duckdb:///{tmp_path}/from.duckdb").store
    source.insert([JOB] * 40)
    before = source.database.access.turn.turns
    assert copier.Copier(source, Rowlock(f"sqlite:///{tmp_path}/to.db").store).run().agrees
    assert source.database.access.turn.turns - before < 2 * 8 + 16


# -- what is refused before anything is written -------------------------------------------------------


def test_what_cannot_be_copied_is_refused_before_anything_is_written(
    files: Pair, another: Rowlock, tmp_path: Path
) -> None:
    target = tmp_path / "to.db"
    with pytest.raises(StoreMissing, match="no queue at"):
        files.copy()
    assert not target.exists() and not (tmp_path / "from.db").exists()

    files.source.enqueue("cut")
    files.source.poller().claim()
    with pytest.raises(CopyRefused, match="workers are alive"):
        files.copy()
    silence(files.source)
    with pytest.raises(CopyRefused, match="cannot be copied onto itself"):
        Pair(files.urls[0], files.urls[0]).copy()

    with writing(files.source) as tx:
        tx.connection.execute("UPDATE rowlock_meta SET value = '2' WHERE key = 'version'")
    with pytest.raises(CopyRefused, match="has schema 2, and this rowlock knows no newer one than 1"):
        files.copy()
    with writing(files.source) as tx:
        tx.connection.execute("UPDATE rowlock_meta SET value = '2' WHERE key = 'compatible_from'")
    files.source.close()
    with pytest.raises(SchemaMismatch, match="install a newer rowlock"):
        files.copy()
    assert not target.exists()
    with files.source.store.database.connections.borrowed() as connection:  # type: ignore[attr-defined]
        connection.execute("UPDATE rowlock_meta SET value = '1' WHERE key IN ('version', 'compatible_from')")

    files.copy()
    with pytest.raises(StoreMoved, match="has moved to"):  # neither from it nor to it
        Pair(files.urls[0], str(another.store.url)).copy()
    another.enqueue("cut")
    with pytest.raises(StoreMoved, match=r"nothing can be copied to it: .* has moved to"):
        copier.Copier(another.store, files.source.store, merge=True).run()


def test_all_states_are_counted(files: Pair) -> None:
    fill(files.source)
    assert [one.what for one in files.copy().counts] == [*map(str, State), "history", "logs"]
