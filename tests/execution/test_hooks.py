"""`@app.around` with async generators: around async tasks and consumers, on their event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from rowlock import JobContext, Outcome, Retry
from rowlock.execution.context import local_context
from rowlock.execution.execute import Executor
from rowlock.execution.residents import Residents
from tests.execution.bench import Bench
from tests.execution.test_transaction import alchemy_url, named_insert


def test_an_async_generator_goes_around_async_tasks_alone(on_sqlite: Bench) -> None:
    app, seen = on_sqlite.app, []

    @app.around
    def plain(ctx: JobContext) -> Iterator[None]:
        seen.append(f"plain in {ctx.task}")
        outcome: Outcome = yield
        seen.append(f"plain out {ctx.task} {outcome.ending}")

    @app.around
    async def awaited(ctx: JobContext) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append(f"async in {ctx.task}")
        outcome: Outcome = yield
        await asyncio.sleep(0)
        seen.append(f"async out {ctx.task} {outcome.ending}")

    @app.task
    async def good() -> None:
        seen.append("good")

    @app.task(retry=False)
    async def bad() -> None:
        raise ValueError

    @app.task
    def threaded() -> None: ...

    for task in (good, bad, threaded):
        task.enqueue()
        on_sqlite.work()
    assert seen == [
        *("plain in good", "async in good", "good", "async out good completed", "plain out good completed"),
        *("plain in bad", "async in bad", "async out bad failed", "plain out bad failed"),
        *("plain in threaded", "plain out threaded completed"),
    ]


def test_an_async_session_of_a_hook_commits_with_the_job(bench: Bench) -> None:
    session: ContextVar[AsyncSession] = ContextVar("session")

    @bench.app.around
    async def with_session(ctx: JobContext) -> AsyncIterator[None]:
        engine = create_async_engine(alchemy_url(bench, asynchronous=True), poolclass=NullPool)
        async with AsyncSession(engine) as opened:
            session.set(opened)
            yield
        await engine.dispose()

    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> None:
        async with ctx.transaction(session.get()) as tx:
            await tx.execute(named_insert(bench), {"word": "a"})

    job = write.enqueue()
    bench.work()
    assert (bench.app.job(job.id).state, bench.words()) == ("completed", ["a"])


def test_a_hook_that_raises_before_the_run_is_an_attempt_of_it(
    on_sqlite: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    @on_sqlite.app.around
    async def shaky(ctx: JobContext) -> AsyncIterator[None]:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise OSError("no session")
        yield
        raise OSError("no goodbye")

    @on_sqlite.app.task(retry=Retry(max_attempts=2, base=0.0))
    async def work() -> str:
        return "done"

    job = work.enqueue()
    with caplog.at_level(logging.ERROR):
        on_sqlite.work()
    assert (tries, on_sqlite.app.result(job.id)) == ([1, 2], "done")
    assert [line for line in caplog.messages if "hook raised" in line] == [
        f"job {job.id} (work): a hook raised before the run",
        f"job {job.id} (work): a hook raised after the run",
    ]


def test_a_timeout_reaches_a_run_that_is_still_in_its_hook(on_sqlite: Bench) -> None:
    ended: list[str] = []

    @on_sqlite.app.around
    async def outer(ctx: JobContext) -> AsyncIterator[None]:
        outcome: Outcome = yield
        ended.append(f"{outcome.error_kind}")

    @on_sqlite.app.around
    async def waits(ctx: JobContext) -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("left")
        yield

    @on_sqlite.app.task(timeout=0.1, retry=False)
    async def work() -> None: ...

    job = work.enqueue()
    on_sqlite.work()
    assert on_sqlite.app.job(job.id).error_kind == "timeout"
    assert ended == ["left", "timeout"]


def test_a_hook_that_yields_twice_is_told_of(on_sqlite: Bench, caplog: pytest.LogCaptureFixture) -> None:
    @on_sqlite.app.around
    async def twice(ctx: JobContext) -> AsyncIterator[None]:
        yield
        yield

    @on_sqlite.app.task
    async def work() -> None: ...

    work.enqueue()
    with caplog.at_level(logging.ERROR):
        assert on_sqlite.work().completed == 1
    assert any("yielded more than once" in line for line in caplog.messages)


def test_a_consumer_has_them_too(on_sqlite: Bench) -> None:
    on_sqlite.read("CREATE TABLE rows (id INTEGER PRIMARY KEY, state TEXT)")
    on_sqlite.read("INSERT INTO rows (id) VALUES (1)")
    seen: list[str] = []

    @on_sqlite.app.around
    async def hook(ctx: JobContext) -> AsyncIterator[None]:
        outcome: Outcome = yield
        seen.append(f"{ctx.task} {outcome.ending}")

    @on_sqlite.app.consumer("birdnet", table="rows", state="state")
    async def birdnet(row: object) -> None: ...

    on_sqlite.app.consume("birdnet", until_empty=True)
    assert seen == ["birdnet completed"]


def test_in_a_child_process_a_plain_hook_may_have_an_event_loop_of_its_own(on_sqlite: Bench) -> None:
    async def told() -> str:
        return "told"

    def hook(ctx: JobContext) -> Iterator[None]:
        assert asyncio.run(told()) == "told"
        yield

    @on_sqlite.app.task
    async def work() -> str:
        return "done"

    outcome = Executor([hook], 1000, Residents()).execute(on_sqlite.app.tasks["work"], local_context("work"))
    assert (outcome.ending, outcome.result) == ("completed", '"done"')


def test_a_child_process_awaits_them_with_the_task(on_sqlite: Bench) -> None:
    """There is no event loop: each run of an async task has one to itself."""
    loops: list[object] = []

    async def hook(ctx: JobContext) -> AsyncIterator[None]:
        loops.append(asyncio.get_running_loop())
        outcome: Outcome = yield
        loops.append(outcome.ending)

    @on_sqlite.app.task
    async def work() -> str:
        loops.append(asyncio.get_running_loop())
        return "done"

    context = local_context("work")
    outcome = Executor([hook], 1000, Residents()).execute(on_sqlite.app.tasks["work"], context)
    assert (outcome.ending, outcome.result) == ("completed", '"done"')
    assert loops == [loops[0], loops[0], "completed"]
