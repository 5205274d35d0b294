"""`async with worker.abackground()`: async tasks and consumers on the event loop of the program around."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from rowlock import JobContext, Rowlock, resident
from rowlock.execution.residents import ResidentFailed
from tests.consumers.lab import Lab
from tests.eventually import eventually
from tests.stores.conformance.conftest import postgres, sqlite


@pytest.fixture(params=[sqlite, postgres], ids=["sqlite", "postgres"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with closing(Lab(request.param(request))) as made:
        yield made


async def until(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, true)


def test_tasks_share_an_engine_with_the_program(lab: Lab) -> None:
    lab.create()
    app = lab.app()
    url = lab.url.partition("?")[0].replace("sqlite:", "sqlite+aiosqlite:")
    url = url.replace("postgresql:", "postgresql+asyncpg:")
    insert = text(f"INSERT INTO {lab.prefix}detections VALUES (:word, 'task')")

    async def program() -> list[object]:
        loop = asyncio.get_running_loop()
        engine = create_async_engine(url)  # pooled, and bound to this loop

        @app.task(retry=False)
        async def write(ctx: JobContext, word: str) -> bool:
            async with AsyncSession(engine) as session:
                async with ctx.checkpoint(session) as tx:
                    await tx.execute(insert, {"word": word})
                return asyncio.get_running_loop() is loop

        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        jobs = [await write.aenqueue(word) for word in ("a", "b")]
        async with app.worker(concurrency=1).abackground():
            found = [await app.aresult(job.id, timeout=50) for job in jobs]
        await engine.dispose()
        return found

    assert asyncio.run(program()) == [True, True]
    assert lab.detections() == [("a", "task"), ("b", "task")]


def test_a_consumer_runs_on_the_callers_loop(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()
    loops = []

    @app.consumer("birdnet", table=lab.table, state="analysis_state")
    async def birdnet(recording: object) -> None:
        loops.append(asyncio.get_running_loop())

    async def program() -> asyncio.AbstractEventLoop:
        async with app.consuming("birdnet").abackground():
            await until(lambda: lab.marks("birdnet") == {1: True, 2: True})
        return asyncio.get_running_loop()

    loop = asyncio.run(program())
    assert loops == [loop, loop]


@pytest.fixture
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rowlock]:
    with closing(Rowlock(f"sqlite:///{tmp_path_factory.mktemp('jobs')}/jobs.db")) as made:
        yield made


def test_the_block_ends_after_what_runs(app: Rowlock) -> None:
    began = []

    @app.task
    async def slow() -> str:
        began.append(True)
        await asyncio.sleep(0.2)
        return "to the end"

    async def program() -> None:
        async with app.worker().abackground():
            job = await slow.aenqueue()
            await until(lambda: bool(began))
        assert app.job(job.id).state == "completed"

    asyncio.run(program())


def test_to_cancel_the_program_again_gives_back_what_runs(app: Rowlock) -> None:
    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async def program() -> None:
        async with app.worker().abackground():
            await asyncio.Event().wait()

    async def supervisor() -> None:
        running = asyncio.ensure_future(program())
        job = await endless.aenqueue()
        await until(lambda: app.job(job.id).state == "running")
        running.cancel()  # ends the block, which waits for what runs
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        assert app.job(job.id).state == "queued"

    asyncio.run(supervisor())


def test_what_goes_wrong_is_raised_at_the_end(app: Rowlock) -> None:
    def load() -> object:
        raise ZeroDivisionError

    @app.task
    async def work(model: object = resident(load)) -> None: ...

    async def program() -> None:
        async with app.worker().abackground():
            pass

    with pytest.raises(ResidentFailed, match="ZeroDivisionError"):
        asyncio.run(program())
