"""`ctx.transaction()`: rows, result and completion in one commit, or none of them."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from rowlock import Fail, JobContext, Retry, Rowlock
from rowlock.execution import transaction_thread
from rowlock.execution.transaction import Transaction
from rowlock.stores.sqlite import transaction as sqlite_transaction
from rowlock.worker.worker import Worker
from tests.eventually import eventually
from tests.execution.bench import Bench
from tests.forks import end_child
from tests.servers.postgres import schema_url
from tests.servers.proxy import Proxy
from tests.stores.test_user_connection import Place, django

ONCE_MORE = Retry(max_attempts=2, base=0.0)


# -- together, or not at all ---------------------------------------------------------------------


def test_rows_result_and_completion_are_seen_together(bench: Bench) -> None:
    seen: list[tuple[list[str], str]] = []

    @bench.app.task
    def write(ctx: JobContext) -> str:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("a",))
        seen.append((bench.words(), bench.app.job(ctx.id).state))  # the block is left, nothing is committed
        return "done"

    job = write.enqueue()
    tally = bench.work()
    assert seen == [([], "running")]
    assert bench.words() == ["a"]
    assert bench.app.result(job.id) == "done"
    assert (tally.completed, tally.lost) == (1, 0)


def test_an_exception_after_the_block_undoes_it(bench: Bench) -> None:
    @bench.app.task(retry=ONCE_MORE)
    def write(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, (f"attempt {ctx.attempt}",))
        if ctx.attempt == 1:
            raise ValueError("after the block")

    job = write.enqueue()
    bench.work()
    assert bench.words() == ["attempt 2"]
    assert [entry.event for entry in bench.app.history(job.id)] == ["retry", "completed"]


def test_an_exception_in_the_block_undoes_it_and_the_task_may_go_on(bench: Bench) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> str:
        try:
            with ctx.transaction() as tx:
                tx.execute(bench.insert, ("undone",))
                raise ValueError("inside")
        except ValueError:
            assert bench.words() == []
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("kept",))
        return "went on"

    job = write.enqueue()
    bench.work()
    assert bench.words() == ["kept"]
    assert bench.app.result(job.id) == "went on"


def test_a_statement_that_fails_undoes_everything(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("a",))
            tx.execute(bench.insert, (None,))

    job = write.enqueue()
    bench.work()
    assert bench.words() == []
    assert bench.app.job(job.id).state == "failed"


def test_two_blocks_are_one_transaction(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext, fail: bool) -> None:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("first",))
        with ctx.transaction() as again:
            assert again is tx
            again.execute(bench.insert, ("second",))
        if fail:
            raise ValueError

    write.enqueue(fail=True)
    bench.work()
    assert bench.words() == []
    write.enqueue(fail=False)
    bench.work()
    assert bench.words() == ["first", "second"]


def test_a_claim_that_was_lost_before_the_commit_leaves_nothing(bench: Bench) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> str:
        with ctx.transaction() as tx:
            if ctx.claim == 1:
                bench.lose_the_claim()
            tx.execute(bench.insert, (f"claim {ctx.claim}",))
        return f"claim {ctx.claim}"

    job = write.enqueue()
    tally = bench.work()
    assert bench.words() == ["claim 2"]
    assert bench.app.result(job.id) == "claim 2"
    assert (tally.completed, tally.lost) == (1, 1)


def test_a_result_that_is_too_large_undoes_the_rows(bench: Bench) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> str:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("a",))
        return "x" * (bench.app.settings.max_payload_bytes + 1)

    job = write.enqueue()
    bench.work()
    found = bench.app.job(job.id)
    assert (found.state, found.error_kind) == ("failed", "result")
    assert bench.words() == []


def test_what_is_enqueued_joins(bench: Bench) -> None:
    @bench.app.task
    def child(number: int) -> int:
        return number

    @bench.app.task(retry=False)
    def parent(ctx: JobContext, fail: bool) -> int:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("a",))
            made = child.enqueue(1)
            child.enqueue_many([{"number": 2}, {"number": 3}])
        child.enqueue(4)  # after the block, but before the commit: it joins as well
        if fail:
            raise ValueError
        return made.id

    parent.enqueue(fail=True)
    bench.work()
    assert len(bench.app.jobs()) == 1
    job = parent.enqueue(fail=False)
    bench.work()
    assert [one.task for one in bench.app.jobs()].count("child") == 4
    assert bench.app.result(bench.app.result(job.id)) == 1
    assert child.enqueue(5).id  # this thread's own again


def test_progress_and_log_lines_commit_with_the_rest(bench: Bench) -> None:
    @bench.app.task(retry=ONCE_MORE)
    def write(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("a",))
            ctx.progress(1, 2, "half")
            ctx.log("inside", attempt=ctx.attempt)
        ctx.progress(2, 2, "whole")
        ctx.log("after")

    job = write.enqueue()
    bench.work()
    progress = bench.app.job(job.id).progress
    assert progress is not None and tuple(progress) == (2, 2, "whole")
    assert [(line.message, line.fields) for line in bench.app.logs(job.id)] == [
        ("inside", {"attempt": 1}),
        ("after", {}),
    ]


def test_log_lines_of_a_run_that_failed_are_kept(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("a",))
            ctx.log("about to fail")
        raise ValueError

    job = write.enqueue()
    bench.work()
    assert [line.message for line in bench.app.logs(job.id)] == ["about to fail"]


def test_nobody_but_rowlock_commits(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext, how: str) -> None:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("a",))
            getattr(tx, how)()

    for how in ("commit", "rollback"):
        job = write.enqueue(how)
        bench.work()
        assert "rowlock commits this transaction" in (bench.app.job(job.id).error or "")
        assert bench.words() == []


def test_a_run_that_comes_back_has_a_history(bench: Bench) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> None:
        with ctx.transaction():
            pass

    job = write.enqueue()
    bench.app.retry(_done(bench, job.id))
    bench.work()
    assert [entry.event for entry in bench.app.history(job.id)] == ["retried", "completed"]


def _done(bench: Bench, job: int) -> int:
    bench.work()
    return job


def test_outside_of_a_worker_there_is_nothing_to_commit_with(bench: Bench) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> None:
        with ctx.transaction():
            pass

    with pytest.raises(ValueError, match="enqueue it"):
        write()


def test_async_tasks_use_async_with(bench: Bench) -> None:
    @bench.app.task
    async def child() -> None:
        pass

    @bench.app.task(retry=False)
    async def write(ctx: JobContext, fail: bool) -> int:
        async with ctx.transaction() as tx:
            await tx.execute(bench.insert, ("a",))
            await tx.executemany(bench.insert, [("b",), ("c",)])
            await child.aenqueue()
            rows = await (await tx.execute(f"SELECT word FROM {bench.table}")).fetchall()
        assert bench.words() == []
        if fail:
            raise ValueError
        return len(rows)

    write.enqueue(fail=True)
    bench.work()
    assert bench.words() == []
    job = write.enqueue(fail=False)
    bench.work()
    assert bench.app.result(job.id) == 3
    assert bench.words() == ["a", "b", "c"]
    assert [one.state for one in bench.app.jobs() if one.task == "child"] == ["completed"]


def test_many_async_tasks_do_not_hold_each_other_up(bench: Bench) -> None:
    """Each waits for a lock that another holds, between its first statement and its last."""
    inside: list[int] = []
    most: list[int] = []

    @bench.app.task(retry=False)
    async def write(ctx: JobContext, n: int) -> None:
        async with ctx.transaction() as tx:
            inside.append(n)
            most.append(len(inside))
            if bench.mark == "%s":  # SQLite has one lock for all
                await tx.execute(f"LOCK TABLE {bench.table} IN EXCLUSIVE MODE")
            await tx.execute(bench.insert, (f"{n} first",))
            await tx.execute(bench.insert, (f"{n} then",))
            inside.remove(n)

    write.enqueue_many([(n,) for n in range(60)])
    assert bench.app.worker(pool="async").run(until_empty=True).completed == 60
    assert len(bench.words()) == 120
    assert 1 < max(most) <= transaction_thread._AT_ONCE


def test_blocks_side_by_side_are_one_transaction(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext, n: int) -> None:
        async def one(name: str) -> None:
            async with ctx.transaction() as tx:
                await tx.execute(bench.insert, (f"{n} {name}",))

        await asyncio.gather(one("a"), one("b"), one("c"))

    write.enqueue_many([(n,) for n in range(20)])
    assert bench.app.worker(pool="async").run(until_empty=True).completed == 20
    assert len(bench.words()) == 60


def test_blocks_side_by_side_of_many_runs_take_one_slot_per_run(bench: Bench) -> None:
    """If a block that comes a moment later took another one, runs would wait for each other's."""

    @bench.app.task(retry=False, timeout=60)
    async def write(ctx: JobContext, n: int) -> None:
        async def one(name: str, turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            async with ctx.transaction() as tx:
                await tx.execute(bench.insert, (f"{n} {name}",))

        await asyncio.gather(one("a", 0), one("b", 1), one("c", 3))

    count = 2 * transaction_thread._AT_ONCE
    write.enqueue_many([(n,) for n in range(count)])
    assert bench.app.worker(pool="async").run(until_empty=True).completed == count
    assert len(bench.words()) == 3 * count


def test_what_is_enqueued_in_blocks_side_by_side_joins(bench: Bench) -> None:
    @bench.app.task
    def other(n: int) -> None: ...

    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> None:
        async def one(n: int) -> None:
            async with ctx.transaction():
                await other.aenqueue(n)

        await asyncio.gather(one(1), one(2))
        raise Fail("undo everything")

    write.enqueue()
    tally = bench.app.worker().run(until_empty=True)
    assert (tally.failed, tally.completed) == (1, 0)


def test_blocks_side_by_side_are_undone_once(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> list[str]:
        async def one(name: str) -> None:
            async with ctx.transaction() as tx:
                await tx.execute(bench.insert, (name,))
                raise LookupError(name)

        found = await asyncio.gather(one("a"), one("b"), return_exceptions=True)
        async with ctx.transaction() as tx:
            await tx.execute(bench.insert, ("then",))
        return [type(error).__name__ for error in found if error is not None]

    job = write.enqueue()
    bench.work()
    assert bench.app.result(job.id) == ["LookupError", "LookupError"]
    assert bench.words() == ["then"]


def test_enqueuing_in_an_async_tasks_transaction_leaves_the_event_loop_alone(bench: Bench) -> None:
    """Both want the same unique key (on SQLite, the one write lock): the second waits for the first."""
    inside = asyncio.Event()

    @bench.app.task
    def child() -> None: ...

    @bench.app.task(retry=False)
    async def first(ctx: JobContext) -> None:
        async with ctx.transaction():
            await child.configure(unique_key="key").aenqueue()
            inside.set()
            await asyncio.sleep(0.2)  # the other one waits by now

    @bench.app.task(retry=False, timeout=100)
    async def second(ctx: JobContext) -> None:
        await inside.wait()
        async with ctx.transaction():
            await child.configure(unique_key="key").aenqueue()

    jobs = [first.enqueue(), second.enqueue()]
    bench.app.worker(pool="async").run(until_empty=True)
    assert [bench.app.job(job.id).state for job in jobs] == ["completed", "completed"]


def test_an_async_task_may_fork_while_transactions_of_others_are_open(on_sqlite: Bench) -> None:
    @on_sqlite.app.task(retry=False)
    async def write(ctx: JobContext, n: int) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(on_sqlite.insert, (str(n),))
            if (child := os.fork()) == 0:
                end_child(0)
            os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once

    write.enqueue_many([(n,) for n in range(4)])
    assert on_sqlite.app.worker(pool="async").run(until_empty=True).completed == 4


def test_a_cancel_while_a_block_is_undone_is_heeded_after_that(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    undoing, go, end = threading.Event(), threading.Event(), Transaction._abort

    def slowly(transaction: Transaction, user: Any) -> None:
        undoing.set()
        assert go.wait(30)
        end(transaction, user)

    monkeypatch.setattr(Transaction, "_abort", slowly)

    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> str:
        async def block() -> None:
            async with ctx.transaction() as tx:
                await tx.execute(bench.insert, ("a",))
                raise LookupError

        inner = asyncio.ensure_future(block())
        await asyncio.to_thread(undoing.wait, 30)
        inner.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait({inner})
        return "cancelled" if inner.cancelled() else repr(inner.exception())

    job = write.enqueue()
    bench.work()
    assert bench.app.result(job.id) == "cancelled"
    assert bench.words() == []


def test_an_async_block_may_join_what_a_thread_of_the_task_has_opened(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> None:
        def in_a_thread() -> None:
            with ctx.transaction() as tx:
                tx.execute(bench.insert, ("a",))

        await asyncio.to_thread(in_a_thread)
        async with ctx.transaction() as tx:
            await tx.execute(bench.insert, ("b",))

    job = write.enqueue()
    bench.work()
    assert (bench.app.job(job.id).state, bench.words()) == ("completed", ["a", "b"])


def test_an_async_tasks_transaction_never_holds_the_event_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, threads = bench.app.store, set[str]()
    opened, finished = store.transaction, store.finish_on

    def note(verb: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            threads.add(threading.current_thread().name)
            return verb(*given)

        return noted

    monkeypatch.setattr(store, "transaction", note(opened))
    monkeypatch.setattr(store, "finish_on", note(finished))

    @bench.app.task
    async def write(ctx: JobContext) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(bench.insert, ("a",))

    job = write.enqueue()
    bench.work()
    assert bench.app.job(job.id).state == "completed"
    assert threads == {"rowlock-transaction"}


def test_a_statement_that_does_not_end_is_broken_off_when_its_run_is_cancelled(
    on_postgres: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_thread, "_GRACE", 0.1)
    app, begun = on_postgres.app, threading.Event()

    @app.task
    async def sleep(ctx: JobContext) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(on_postgres.insert, ("a",))
            begun.set()
            await tx.execute("SELECT pg_sleep(600)")

    job = sleep.enqueue()
    with app.worker().background():
        assert begun.wait(30)
        app.cancel(job.id)
        eventually(lambda: app.job(job.id).state == "cancelled")
    assert on_postgres.words() == []


def test_a_cancel_is_heeded_after_a_statement_but_changes_nothing_about_the_end() -> None:
    async def cancelled_in(verb: str) -> object:
        lane = await transaction_thread.TransactionThread.enter()
        began, go = threading.Event(), threading.Event()

        def work() -> str:
            began.set()
            assert go.wait(30)
            ended.append(verb)
            return "done"

        task = asyncio.ensure_future(lane.run(work, heeds_cancel=verb == "run"))
        await asyncio.to_thread(began.wait, 30)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go.set()
        try:
            return await task
        except asyncio.CancelledError:
            return "cancelled"
        finally:
            lane.leave()
            lane.leave()  # which is nothing more

    ended: list[str] = []
    assert asyncio.run(cancelled_in("run")) == "cancelled"
    assert asyncio.run(cancelled_in("finish")) == "done"
    assert ended == ["run", "finish"]


def test_a_process_ends_although_a_statement_of_a_cancelled_run_does_not() -> None:
    """The first is broken off; the second cannot be, as if a server did not answer to a commit."""
    script = """
import asyncio, atexit, threading

atexit.register(lambda: print(go.is_set()))  # after that of the lanes
from rowlock.execution import transaction_thread as lanes

lanes._GRACE = 0.5
loop, began, go = asyncio.new_event_loop(), threading.Event(), threading.Event()

def statement():
    began.set()
    go.wait()

async def run():
    lane = await lanes.TransactionThread.enter()
    await lane.run(statement, stop=go.set)

async def settle():
    await (await lanes.TransactionThread.enter()).run(threading.Event().wait, heeds_cancel=False)

threading.Thread(target=loop.run_forever, daemon=True).start()
future = asyncio.run_coroutine_threadsafe(run(), loop)
asyncio.run_coroutine_threadsafe(settle(), loop)
began.wait()
future.cancel()
"""
    ended = subprocess.run([sys.executable, "-c", script], check=True, timeout=100, stdout=subprocess.PIPE)
    assert ended.stdout.split() == [b"True"]


def test_what_waits_for_its_turn_gets_it_also_after_errors_and_cancels() -> None:
    async def all_of_them() -> int:
        async def one(n: int) -> None:
            lane = await transaction_thread.TransactionThread.enter()
            try:
                await lane.run(int, "x" if n % 2 else "1")
            finally:
                lane.leave()

        tasks = [asyncio.ensure_future(one(n)) for n in range(100)]
        await asyncio.sleep(0)
        for task in tasks[90:]:
            task.cancel()  # while it waits
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return sum(isinstance(one, ValueError) for one in found)

    assert asyncio.run(asyncio.wait_for(all_of_them(), 30)) == 45


# -- on SQLite: the write lock --------------------------------------------------------------------


def test_the_write_lock_is_taken_by_the_first_statement(on_sqlite: Bench) -> None:
    free: list[bool] = []

    def lock_is_free() -> bool:
        with closing(sqlite3.connect(str(on_sqlite.app.store.url)[10:], timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            return True

    @on_sqlite.app.task
    def write(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            free.append(lock_is_free())
            tx.execute(on_sqlite.insert, ("a",))
            free.append(lock_is_free())

    write.enqueue()
    on_sqlite.work()
    assert free == [True, False]


def test_a_long_hold_of_the_write_lock_is_logged(
    on_sqlite: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_transaction, "_LONG", 0.0)

    @on_sqlite.app.task
    def write(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute(on_sqlite.insert, ("a",))

    write.enqueue()
    with caplog.at_level(logging.WARNING, logger="rowlock.sqlite"):
        on_sqlite.work()
    assert "compute first, then write" in caplog.text


# -- on PostgreSQL: a COMMIT that is not answered ------------------------------------------------


@pytest.mark.parametrize(("fault", "runs"), [("drop_reply_to_commit", 1), ("drop_commit", 2)])
def test_a_connection_lost_at_commit_is_looked_up(on_postgres: Bench, fault: str, runs: int) -> None:
    schema = on_postgres.table.partition(".")[0]
    attempts: list[int] = []
    with (
        Proxy(_port(on_postgres.app)) as proxy,
        closing(Rowlock(_through(proxy, on_postgres.app, schema))) as app,
    ):

        @app.task(retry=ONCE_MORE)
        def write(ctx: JobContext) -> str:
            attempts.append(ctx.attempt)
            with ctx.transaction() as tx:
                tx.execute(on_postgres.insert, (f"attempt {ctx.attempt}",))
            if ctx.attempt == 1:
                getattr(proxy, fault)(after=on_postgres.table)
            return "done"

        job = write.enqueue()
        tally = app.worker(concurrency=1).run(until_empty=True)
        assert proxy.dropped == 1
        assert attempts == list(range(1, runs + 1))
        assert on_postgres.words() == [f"attempt {runs}"]
        assert (app.result(job.id), tally.completed, tally.lost) == ("done", 1, 0)


def _port(app: Rowlock) -> int:
    return int(app.settings.database_url.split(":")[-1].split("/")[0])


def _through(proxy: Proxy, app: Rowlock, schema: str) -> str:
    return schema_url(proxy.url(app.settings.database_url.partition("?")[0]), schema)


# -- joining what the task brings ----------------------------------------------------------------


@pytest.fixture(params=["session", "connection"])
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def alchemy_url(bench: Bench, asynchronous: bool = False) -> str:
    url = bench.app.settings.database_url.partition("?")[0]
    if url.startswith("sqlite"):
        return url.replace("sqlite:", "sqlite+aiosqlite:") if asynchronous else url
    return url.replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
def engine(bench: Bench) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(alchemy_url(bench), poolclass=NullPool)
    yield made
    made.dispose()


def named_insert(bench: Bench) -> sqlalchemy.TextClause:
    return sqlalchemy.text(f"INSERT INTO {bench.table} (word) VALUES (:word)")


def test_a_sqlalchemy_session_commits_with_the_job(
    bench: Bench, engine: sqlalchemy.Engine, shape: str
) -> None:
    sessions: list[Any] = []

    @bench.app.around
    def session(ctx: JobContext) -> Iterator[None]:
        with Session(engine) if shape == "session" else engine.connect() as opened:
            sessions.append(opened)
            yield

    @bench.app.task
    def child() -> None:
        pass

    @bench.app.task(retry=False)
    def write(ctx: JobContext, fail: bool) -> str:
        with ctx.transaction(sessions[-1]) as tx:
            assert tx is sessions[-1]
            tx.execute(named_insert(bench), {"word": "a"})
            child.enqueue()
        if fail:
            raise ValueError
        return "done"

    write.enqueue(fail=True)
    bench.work()
    assert bench.words() == [] and len(bench.app.jobs()) == 1
    job = write.enqueue(fail=False)
    bench.work()
    assert bench.words() == ["a"]
    assert bench.app.result(job.id) == "done"
    assert [one.state for one in bench.app.jobs() if one.task == "child"] == ["completed"]


def test_a_session_that_the_task_closes_is_held_until_the_end(
    bench: Bench, engine: sqlalchemy.Engine, shape: str
) -> None:
    seen: list[Any] = []

    @bench.app.task(retry=False)
    def write(ctx: JobContext, fail: bool) -> str:
        with Session(engine) if shape == "session" else engine.connect() as opened, ctx.transaction(opened):
            opened.execute(named_insert(bench), {"word": "a"})
        seen.append(bench.words())
        sessions.append(opened)
        if fail:
            raise ValueError
        return "done"

    sessions: list[Any] = []
    write.enqueue(fail=True)
    bench.work()
    assert bench.words() == []
    job = write.enqueue(fail=False)
    bench.work()
    assert bench.app.result(job.id) == "done"
    assert (seen, bench.words()) == ([[], []], ["a"])
    for one in sessions:  # closed after all, and as usual from then on
        assert not one.in_transaction()
        assert "close" not in vars(one)


def test_an_async_session_that_the_task_closes_is_held_until_the_end(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext) -> list[str]:
        engine = create_async_engine(alchemy_url(bench, asynchronous=True), poolclass=NullPool)
        async with AsyncSession(engine) as session, ctx.transaction(session):
            await session.execute(named_insert(bench), {"word": "a"})
        return bench.words()

    job = write.enqueue()
    bench.work()
    assert (bench.app.result(job.id), bench.words()) == ([], ["a"])


def test_objects_that_were_added_to_a_session_are_written(bench: Bench, engine: sqlalchemy.Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class Note(Base):
        __tablename__ = "note"
        __table_args__ = {"schema": bench.table.rpartition(".")[0] or None}  # noqa: RUF012
        word: Mapped[str] = mapped_column(primary_key=True)

    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        with Session(engine) as db, ctx.transaction(db):
            with db.begin_nested():  # savepoints are the task's own
                db.add(Note(word="in a savepoint"))
            db.add(Note(word="not flushed"))

    job = write.enqueue()
    bench.work()
    assert bench.app.job(job.id).state == "completed"
    assert bench.words() == ["in a savepoint", "not flushed"]


@pytest.mark.parametrize("end", ["commit", "rollback", "begin"])
def test_a_connection_that_ends_too_early_fails_its_job_once(
    bench: Bench, engine: sqlalchemy.Engine, end: str
) -> None:
    given: list[sqlalchemy.Connection] = []

    @bench.app.task
    def write(ctx: JobContext) -> None:
        with engine.begin() if end == "begin" else engine.connect() as opened, ctx.transaction(opened):
            given.append(opened)
            with opened.begin_nested():  # savepoints are the task's own
                opened.execute(named_insert(bench), {"word": "a"})
            if end != "begin":
                getattr(opened, end)()

    job = write.enqueue()
    bench.work()
    found = bench.app.job(job.id)
    assert (found.state, found.claim, bench.words()) == ("failed", 1, [])
    lines = (
        "    with engine.connect() as connection, ctx.transaction(connection):\n        connection.execute("
    )
    assert lines in (found.error or "")
    assert given[0].closed
    with engine.begin() as other:  # as usual again
        other.execute(named_insert(bench), {"word": "b"})
    assert bench.words() == ["b"]


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ("session", "    async with SessionLocal() as db, ctx.transaction(db):\n        db.add("),
        (
            "begin",
            "    async with engine.connect() as connection, ctx.transaction(connection):\n        await ",
        ),
        ("blocking", "    with SessionLocal() as db:\n        async with ctx.transaction(db):\n"),
    ],
)
def test_what_an_async_task_ends_too_early_fails_its_job_once(
    bench: Bench, engine: sqlalchemy.Engine, shape: str, line: str
) -> None:
    @bench.app.task
    async def write(ctx: JobContext) -> None:
        if shape == "blocking":
            with Session(engine) as db:
                async with ctx.transaction(db):
                    db.execute(named_insert(bench), {"word": "a"})
                    db.commit()
        own = create_async_engine(alchemy_url(bench, asynchronous=True), poolclass=NullPool)
        if shape == "begin":
            async with own.begin() as connection, ctx.transaction(connection):
                await connection.execute(named_insert(bench), {"word": "a"})
        else:
            async with AsyncSession(own) as session, ctx.transaction(session):
                await session.execute(named_insert(bench), {"word": "a"})
                await session.commit()

    job = write.enqueue()
    bench.work()
    found = bench.app.job(job.id)
    assert (found.state, found.claim, bench.words()) == ("failed", 1, [])
    assert line in (found.error or "")


@pytest.mark.parametrize("end", ["commit", "rollback", "begin"])
def test_a_session_that_ends_too_early_fails_its_job_once(
    bench: Bench, engine: sqlalchemy.Engine, end: str
) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> None:
        with Session(engine) as session:
            if end == "begin":  # as sessionmaker.begin(): it commits at the end of its block
                with session.begin(), ctx.transaction(session):
                    session.execute(named_insert(bench), {"word": "a"})
            else:
                with ctx.transaction(session):
                    session.execute(named_insert(bench), {"word": "a"})
                getattr(session, end)()

    job = write.enqueue()
    bench.work()
    found = bench.app.job(job.id)
    assert (found.state, found.claim, bench.words()) == ("failed", 1, [])
    assert "    with SessionLocal() as db, ctx.transaction(db):\n        db.add(" in (found.error or "")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_commit_of_a_psycopg_connections_block_is_refused(on_postgres: Bench, asynchronous: bool) -> None:
    """Else the rows would be there, and the job failed."""
    url = on_postgres.app.settings.database_url.partition("?")[0]

    def write(ctx: JobContext) -> None:
        with psycopg.connect(url) as connection, ctx.transaction(connection):
            connection.execute(on_postgres.insert, ("a",))

    async def awrite(ctx: JobContext) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection, ctx.transaction(connection):
            await connection.execute(on_postgres.insert, ("a",))

    job = on_postgres.app.task(awrite if asynchronous else write).enqueue()
    on_postgres.work()
    found = on_postgres.app.job(job.id)
    assert (found.state, found.claim, on_postgres.words()) == ("failed", 1, [])
    lines = "with ctx.transaction() as tx:\n        tx.execute("
    if asynchronous:
        lines = "async with ctx.transaction() as tx:\n        await tx.execute("
    assert f"    {lines}" in (found.error or "")


@pytest.mark.parametrize("kind", ["psycopg", "session", "connection", "async psycopg", "async session"])
def test_a_connection_of_the_tasks_that_the_server_ends_costs_an_attempt(
    on_postgres: Bench, kind: str
) -> None:
    """Nobody has committed it too early, which would fail the job at once."""
    url = on_postgres.app.settings.database_url.partition("?")[0]
    engine = sqlalchemy.create_engine(alchemy_url(on_postgres), poolclass=NullPool)
    which, brought = "SELECT pg_backend_pid()", []

    def restart(ctx: JobContext, process: int) -> None:
        if ctx.attempt == 1:
            with psycopg.connect(url) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", [process])

    def write(ctx: JobContext) -> None:
        if kind == "psycopg":
            opened = psycopg.connect(url)
            brought.append(opened.close)
            with ctx.transaction(opened):
                opened.execute(on_postgres.insert, (f"attempt {ctx.attempt}",))
                restart(ctx, opened.info.backend_pid)
        else:
            session: Any = Session(engine) if kind == "session" else engine.connect()
            with session, ctx.transaction(session):
                session.execute(named_insert(on_postgres), {"word": f"attempt {ctx.attempt}"})
                restart(ctx, session.execute(sqlalchemy.text(which)).scalar())

    async def awrite(ctx: JobContext) -> None:
        if kind == "async psycopg":
            opened = await psycopg.AsyncConnection.connect(url)
            brought.append(lambda: asyncio.run(opened.close()))
            async with ctx.transaction(opened):
                await opened.execute(on_postgres.insert, (f"attempt {ctx.attempt}",))
                restart(ctx, opened.info.backend_pid)
        else:
            own = create_async_engine(alchemy_url(on_postgres, asynchronous=True), poolclass=NullPool)
            async with AsyncSession(own) as session, ctx.transaction(session):
                await session.execute(named_insert(on_postgres), {"word": f"attempt {ctx.attempt}"})
                restart(ctx, (await session.execute(sqlalchemy.text(which))).scalar() or 0)

    register = on_postgres.app.task(retry=ONCE_MORE)
    job = register(awrite if kind.startswith("async") else write).enqueue()
    on_postgres.work()
    for close in brought:
        close()
    found = on_postgres.app.job(job.id)
    assert (found.state, found.claim, on_postgres.words()) == ("completed", 2, ["attempt 2"])


def test_a_lost_claim_undoes_what_was_written_on_a_session(on_postgres: Bench) -> None:
    engine = sqlalchemy.create_engine(alchemy_url(on_postgres), poolclass=NullPool)

    @on_postgres.app.task
    def write(ctx: JobContext) -> str:
        session = Session(engine)
        with ctx.transaction(session):
            session.execute(named_insert(on_postgres), {"word": f"claim {ctx.claim}"})
            if ctx.claim == 1:
                on_postgres.lose_the_claim()
        return "done"

    write.enqueue()
    tally = on_postgres.work()
    assert on_postgres.words() == ["claim 2"]
    assert (tally.completed, tally.lost) == (1, 1)


def test_an_async_session_commits_with_the_job(bench: Bench) -> None:
    @bench.app.task(retry=False)
    async def write(ctx: JobContext, fail: bool) -> str:
        engine = create_async_engine(alchemy_url(bench, asynchronous=True), poolclass=NullPool)
        session = AsyncSession(engine)
        async with ctx.transaction(session) as tx:
            await tx.execute(named_insert(bench), {"word": "a"})
        if fail:
            raise ValueError
        return "done"

    write.enqueue(fail=True)
    bench.work()
    assert bench.words() == []
    job = write.enqueue(fail=False)
    bench.work()
    assert bench.words() == ["a"]
    assert bench.app.result(job.id) == "done"


def test_djangos_connection_commits_with_the_job(bench: Bench) -> None:
    place = Place(bench.app.settings.database_url.partition("?")[0], bench.table, list)
    cases: list[Any] = []

    @bench.app.around
    def django_connection(ctx: JobContext) -> Iterator[None]:
        with django("proxy")(place) as case:
            cases.append(case)
            yield

    @bench.app.task(retry=False)
    def write(ctx: JobContext, fail: bool) -> str:
        with ctx.transaction(cases[-1].given) as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {bench.table} (word) VALUES (%s)", ["a"])
        if fail:
            raise ValueError
        return "done"

    write.enqueue(fail=True)
    bench.work()
    assert bench.words() == []
    job = write.enqueue(fail=False)
    bench.work()
    assert bench.words() == ["a"]
    assert bench.app.result(job.id) == "done"


def test_a_session_to_another_database_is_refused(bench: Bench, tmp_path: Path) -> None:
    elsewhere = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}", poolclass=NullPool)

    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        session = Session(elsewhere)
        with ctx.transaction(session):
            session.execute(sqlalchemy.text("CREATE TABLE note (word text)"))

    job = write.enqueue()
    bench.work()
    assert "not to the database that holds the queue" in (bench.app.job(job.id).error or "")


# -- what a task must not be able to break --------------------------------------------------------


def test_a_block_inside_a_block_that_fails_takes_the_outer_one_along(bench: Bench) -> None:
    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute(bench.insert, ("outer",))
            try:
                with ctx.transaction():
                    raise ValueError("inner")
            except ValueError:
                pass
            tx.execute(bench.insert, ("after",))  # its transaction is gone

    job = write.enqueue()
    bench.work()
    assert bench.words() == []
    assert bench.app.job(job.id).state == "failed"


def test_what_a_task_does_to_its_session_ends_with_it(on_postgres: Bench) -> None:
    @on_postgres.app.task
    def spoil(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.row_factory = psycopg.rows.dict_row
            tx.execute("SET search_path TO pg_catalog")

    @on_postgres.app.task
    def look(ctx: JobContext) -> list[str]:
        with ctx.transaction() as tx:
            (path,) = tx.execute("SHOW search_path").fetchone()
        return [path]

    spoil.enqueue()
    job = look.enqueue()
    on_postgres.work()
    assert on_postgres.app.result(job.id) != ["pg_catalog"]


def test_a_run_that_was_given_up_lets_go_of_the_write_lock(on_sqlite: Bench) -> None:
    released = threading.Event()

    @on_sqlite.app.task(timeout=0.1, retry=False)
    def hang(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute(on_sqlite.insert, ("a",))
            released.wait(timeout=60)

    job = hang.enqueue()
    worker = Worker(on_sqlite.app, on_sqlite.app.workload(), concurrency=1, timeout_grace=0.1)
    with worker.background():
        eventually(lambda: on_sqlite.app.job(job.id).state == "failed", 50, "the lock was never let go")
        released.set()
    assert on_sqlite.words() == []


def test_a_session_inside_somebody_elses_transaction_is_refused(
    bench: Bench, engine: sqlalchemy.Engine
) -> None:
    connections: list[sqlalchemy.Connection] = []

    @bench.app.around
    def outer(ctx: JobContext) -> Iterator[None]:
        with engine.connect() as connection:
            transaction = connection.begin()
            connections.append(connection)
            yield
            transaction.rollback()

    @bench.app.task(retry=False)
    def write(ctx: JobContext) -> None:
        session = Session(bind=connections[-1])
        with ctx.transaction(session):
            session.execute(named_insert(bench), {"word": "a"})

    job = write.enqueue()
    bench.work()
    found = bench.app.job(job.id)
    assert found.state == "failed" and "inside a transaction of somebody else" in (found.error or "")
    assert bench.words() == []


def test_a_transaction_may_be_opened_in_another_thread_of_the_task(bench: Bench) -> None:
    @bench.app.task
    def write(ctx: JobContext) -> None:
        def work() -> None:
            with ctx.transaction() as tx:
                tx.execute(bench.insert, ("a",))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    write.enqueue()
    tally = bench.work()
    assert (tally.completed, bench.words()) == (1, ["a"])


def test_on_sqlite_a_task_waits_for_the_write_lock_longer_than_the_store(tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    computed, locked = threading.Event(), threading.Event()
    with closing(Rowlock(f"sqlite:///{file}", busy_timeout=0.05)) as app:

        @app.task
        def write(ctx: JobContext) -> str:
            computed.set()
            assert locked.wait(30)
            with ctx.transaction() as tx:
                tx.execute("CREATE TABLE note (word TEXT)")
            return "done"

        job = write.enqueue()
        with app.worker(concurrency=1).background(), closing(sqlite3.connect(file)) as other:
            assert computed.wait(30)
            other.execute("BEGIN IMMEDIATE")
            locked.set()
            patience_of_the_store_is_over = time.monotonic() + 0.5
            eventually(lambda: time.monotonic() > patience_of_the_store_is_over)
            other.rollback()
            assert app.result(job.id, timeout=60) == "done"
        assert (app.job(job.id).claim, app.job(job.id).failures) == (1, 0)
