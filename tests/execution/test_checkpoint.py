"""`ctx.checkpoint()`: rows that are committed in the middle of a run, if and only if its claim is held."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from rowlock import ClaimLost, JobContext
from tests.eventually import eventually
from tests.execution.bench import Bench
from tests.execution.test_transaction import alchemy_url, named_insert
from tests.freezing import frozen_outside_of_transactions
from tests.stores.test_user_connection import Place, django


@pytest.fixture
def engine(bench: Bench) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(alchemy_url(bench), poolclass=NullPool)
    yield made
    made.dispose()


def test_rows_and_progress_are_seen_when_the_block_ends(bench: Bench) -> None:
    seen: list[Any] = []

    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> str:
        for number in (1, 2):
            ctx.progress(number, 2, f"image {number}")
            with ctx.checkpoint() as tx:
                tx.execute(bench.insert, (f"image {number}",))
            job = bench.app.job(ctx.id)
            seen.append((bench.words(), job.state, job.progress and job.progress.note))
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("summary",))
        seen.append(bench.words())
        return "done"

    job = write.enqueue()
    assert bench.work().completed == 1
    assert seen == [
        (["image 1"], "running", "image 1"),
        (["image 1", "image 2"], "running", "image 2"),
        ["image 1", "image 2"],
    ]
    assert bench.words() == ["image 1", "image 2", "summary"]
    assert bench.app.result(job.id) == "done"


def test_what_was_saved_stays_when_the_run_fails_afterwards(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        with ctx.checkpoint() as tx:
            tx.execute(bench.insert, ("saved",))
        with suppress(LookupError), ctx.checkpoint() as tx:
            tx.execute(bench.insert, ("undone",))
            raise LookupError
        with ctx.checkpoint() as tx:
            tx.execute(bench.insert, ("saved, too",))
        raise ValueError

    job = write.enqueue()
    bench.work()
    assert bench.words() == ["saved", "saved, too"]
    assert bench.app.job(job.id).state == "failed"


def test_a_late_checkpoint_writes_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    lost: list[BaseException] = []

    @bench.app.task
    def write(ctx: JobContext) -> None:
        with ctx.checkpoint() as tx:
            tx.execute(bench.insert, (f"claim {ctx.claim}, first",))
        if ctx.claim == 1:
            bench.lose_the_claim()
        try:
            ctx.progress(1, 1, f"claim {ctx.claim}")
            with ctx.checkpoint() as tx:
                tx.execute(bench.insert, (f"claim {ctx.claim}, second",))
                child.enqueue(ctx.claim)
        except ClaimLost as error:
            lost.append(error)
            with pytest.raises(ClaimLost), ctx.checkpoint():  # nor does any later one
                pass
            raise

    @bench.app.task
    def child(claim: int) -> int:
        return claim

    job = write.enqueue()
    tally = bench.work()
    assert len(lost) == 1 and f"job {job.id}" in str(lost[0])
    assert f"job {job.id} (write) was given back: its claim was lost" in caplog.messages
    assert bench.words() == ["claim 1, first", "claim 2, first", "claim 2, second"]
    assert (tally.completed, tally.lost) == (2, 1)
    assert [bench.app.result(one.id) for one in bench.app.jobs() if one.task == "child"] == [2]
    progress = bench.app.job(job.id).progress
    assert progress is not None and progress.note == "claim 2"


def test_what_is_enqueued_joins_the_checkpoint_it_is_in(bench: Bench) -> None:
    @bench.app.task
    def child() -> None:
        pass

    @bench.app.task(retry=False)
    def parent(ctx: JobContext) -> None:
        with suppress(LookupError), ctx.checkpoint():
            child.enqueue()
            raise LookupError
        with ctx.checkpoint():
            child.enqueue()
        child.enqueue()
        raise ValueError

    parent.enqueue()
    bench.work()
    assert [one.task for one in bench.app.jobs()].count("child") == 2


def test_it_is_no_part_of_another_block(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> int:
        refused = 0
        with ctx.checkpoint() as tx:
            tx.execute(bench.insert, ("outer",))
            for block in (ctx.checkpoint, ctx.transaction):
                with pytest.raises(ValueError, match="commits by itself"), block():
                    refused += 1
        with ctx.transaction():
            pass
        with pytest.raises(ValueError, match="commits by itself"), ctx.checkpoint():
            refused += 1
        return refused

    job = write.enqueue()
    bench.work()
    assert bench.app.result(job.id) == 0
    assert bench.words() == ["outer"]


def test_threads_of_a_run_take_turns(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        def save(number: int) -> None:
            with ctx.checkpoint() as tx:
                tx.execute(bench.insert, (f"image {number}",))

        threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    write.enqueue()
    assert bench.work().completed == 1
    assert bench.words() == [f"image {number}" for number in range(4)]


def test_async_tasks_use_async_with_and_coroutines_take_turns(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> list[str]:
        async def save(number: int) -> None:
            async with ctx.checkpoint() as tx:
                await tx.execute(bench.insert, (f"image {number}",))
                await child.aenqueue()

        await asyncio.gather(*(save(number) for number in range(3)))
        async with ctx.checkpoint():
            with pytest.raises(ValueError, match="inside of another"):
                async with ctx.checkpoint():
                    pass
        with pytest.raises(ValueError, match="async with"), ctx.checkpoint():
            pass
        return bench.words()

    @bench.app.task
    async def child() -> None:
        pass

    job = write.enqueue()
    bench.work()
    assert bench.app.result(job.id) == [f"image {number}" for number in range(3)]
    assert [one.task for one in bench.app.jobs()].count("child") == 3


def test_a_late_checkpoint_of_an_async_task_writes_nothing(bench: Bench) -> None:
    @bench.app.task
    async def write(ctx: JobContext) -> None:
        if ctx.claim == 1:
            await asyncio.to_thread(bench.lose_the_claim)
        async with ctx.checkpoint() as tx:
            await tx.execute(bench.insert, (f"claim {ctx.claim}",))

    write.enqueue()
    tally = bench.work()
    assert bench.words() == ["claim 2"]
    assert (tally.completed, tally.lost) == (1, 1)


def test_a_cancel_while_a_checkpoint_opens_leaves_nothing_open(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> None:
        async def save() -> None:
            async with ctx.checkpoint() as tx:
                await tx.execute(bench.insert, ("cancelled",))

        saving = asyncio.ensure_future(save())
        await asyncio.sleep(0)
        saving.cancel()
        await asyncio.wait({saving})
        async with ctx.checkpoint() as tx:
            await tx.execute(bench.insert, ("saved",))

    write.enqueue()
    assert bench.work().completed == 1
    assert bench.words() == ["saved"]


def test_a_sqlalchemy_session_is_committed_on_the_way(bench: Bench, engine: sqlalchemy.Engine) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> list[str]:
        with Session(engine) as session:
            for number in (1, 2):
                if (ctx.claim, number) == (1, 2):
                    bench.lose_the_claim()
                with ctx.checkpoint(session) as tx:
                    tx.execute(named_insert(bench), {"word": f"claim {ctx.claim}, image {number}"})
            return bench.words()

    job = write.enqueue()
    assert bench.work().lost == 1
    assert bench.app.result(job.id) == ["claim 1, image 1", "claim 2, image 1", "claim 2, image 2"]


def test_a_session_that_the_task_commits_inside_of_the_block_is_noticed(
    bench: Bench, engine: sqlalchemy.Engine
) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        with Session(engine) as session, ctx.checkpoint(session):
            session.execute(named_insert(bench), {"word": "a"})
            session.commit()

    job = write.enqueue()
    bench.work()
    error = bench.app.job(job.id).error or ""
    assert "committed, rolled back or closed before the checkpoint's block had ended" in error
    assert "with SessionLocal() as db, ctx.checkpoint(db):" in error


def test_an_async_session_is_committed_on_the_way(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> list[str]:
        engine = create_async_engine(alchemy_url(bench, asynchronous=True), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            for number in (1, 2):
                async with ctx.checkpoint(session) as tx:
                    await tx.execute(named_insert(bench), {"word": f"image {number}"})
        return bench.words()

    job = write.enqueue()
    bench.work()
    assert bench.app.result(job.id) == ["image 1", "image 2"]


def test_djangos_connection_is_committed_on_the_way(bench: Bench) -> None:
    place = Place(bench.app.settings.database_url.partition("?")[0], bench.table, list)

    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> list[str]:
        with django("proxy")(place) as case:
            for number in (1, 2):
                with ctx.checkpoint(case.given) as connection, connection.cursor() as cursor:
                    cursor.execute(f"INSERT INTO {bench.table} (word) VALUES (%s)", [f"image {number}"])
            return bench.words()

    job = write.enqueue()
    bench.work()
    assert bench.app.result(job.id) == ["image 1", "image 2"]


def test_on_sqlite_the_write_lock_is_held_inside_of_the_block_alone(on_sqlite: Bench) -> None:
    @on_sqlite.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        with ctx.checkpoint() as tx:
            tx.execute(on_sqlite.insert, ("a",))
        on_sqlite.read("BEGIN IMMEDIATE")  # on a connection of somebody else, which is closed at once

    write.enqueue()
    assert on_sqlite.work().completed == 1


def test_outside_of_a_worker_there_is_nothing_to_commit_with(bench: Bench) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> None:
        with ctx.checkpoint():
            pass

    with pytest.raises(ValueError, match="enqueue it"):
        write()


# -- in child processes, and in a worker that was frozen -----------------------------------------

IMAGES = """
import os
import time
from pathlib import Path

from rowlock import JobContext, Rowlock

HERE = Path({folder!r})
app = Rowlock({url!r}, lease=1, poll_interval=0.05)


@app.task(pool={pool!r})
def segment(ctx: JobContext) -> None:
    for number in (1, 2):
        ctx.progress(number, 2, f"image {{number}}")
        with ctx.checkpoint() as tx:
            tx.execute({insert!r}, (f"claim {{ctx.claim}}, image {{number}}",))
        if (ctx.claim, number) == (1, 1):
            (HERE / "saved").write_text(str(os.getpid()))
            while not (HERE / "go").exists():
                time.sleep(0.01)
"""


def images(bench: Bench, folder: Path, pool: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = f"images_{os.getpid()}_{folder.name}"
    url = bench.app.settings.database_url
    text = IMAGES.format(folder=str(folder), url=url, pool=pool, insert=bench.insert)
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name)


def test_a_child_process_saves_on_the_way(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = images(bench, tmp_path, "process", monkeypatch)
    with closing(module.app) as app:
        job = module.segment.enqueue()
        worker = app.worker(concurrency=1)
        thread = threading.Thread(target=worker.run, kwargs={"until_empty": True})
        thread.start()
        eventually((tmp_path / "saved").exists)
        assert bench.words() == ["claim 1, image 1"]
        progress = app.job(job.id).progress
        assert progress is not None and progress.note == "image 1"
        (tmp_path / "go").touch()
        thread.join(30)
        assert app.job(job.id).state == "completed"
    assert bench.words() == ["claim 1, image 1", "claim 1, image 2"]


@pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX signals")
def test_a_worker_that_was_frozen_saves_nothing_more(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = images(bench, tmp_path, "thread", monkeypatch)
    command = [sys.executable, "-m", "rowlock", "worker", f"{module.__name__}:app", "--concurrency", "1"]
    job = module.segment.enqueue()
    frozen = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        eventually((tmp_path / "saved").exists, 30)
        url = bench.app.settings.database_url
        eventually(lambda: frozen_outside_of_transactions(frozen, url), 30)
        (tmp_path / "go").touch()
        with closing(module.app) as app:
            eventually(lambda: app.worker(concurrency=1).run(until_empty=True).completed == 1, 30)
            frozen.send_signal(signal.SIGCONT)
            frozen.send_signal(signal.SIGTERM)
            out, _ = frozen.communicate(timeout=30)
            assert b"was lost" in out
            assert app.job(job.id).state == "completed"
    finally:
        frozen.kill()
        frozen.wait()
    assert bench.words() == ["claim 1, image 1", "claim 2, image 1", "claim 2, image 2"]
