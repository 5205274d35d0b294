"""Right and wrong calls, as users write them; type checkers refuse exactly the lines marked wrong."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rowlock import HistoryEntry, Job, JobContext, JobList, LogEntry, Poller, Retry, Rowlock, State, Task

app = Rowlock("sqlite:///jobs.db", include=["shop.tasks"])


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(queue="gpu", priority=5, timeout=600, expires=3600, aliases=["old"], retry=Retry(max_attempts=3))
def segment(ctx: JobContext, image_ids: list[int], model: str = "small") -> dict[str, int]:
    ctx.progress(1, len(image_ids), "first")
    ctx.log("segmented", image_id=1)
    ctx.check_cancelled()
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO masks DEFAULT VALUES")
    return {"masks": 12}


@app.task(retry=False)
async def fetch(url: str) -> bytes:
    return url.encode()


# -- calls that are right ----------------------------------------------------------------------------

three: int = add(1, 2)
job: Job = add.enqueue(1, b=2)
ids: list[int] = add.enqueue_many([{"a": 1, "b": 2}, (1, 2)])
configured: Job = add.configure(priority=9, delay=30, queue="fast", unique_key="k").enqueue(1, 2)
add.configure(run_at=datetime.now(timezone.utc) + timedelta(hours=1), expires=timedelta(days=1))
masks: dict[str, int] = segment([1, 2])
segment.enqueue([1, 2], model="large")
segment.configure(meta={"tenant": "x"}).enqueue(image_ids=[1])
fetch.enqueue("x")
task: Task[[int, int], int] = add
state: State = app.job(job.id).state
app.jobs(state="failed", queue="gpu", limit=50, cursor=None)
result: Any = app.result(job.id, timeout=10)
same: Job = app.retry(app.cancel(app.job(job)))
history: list[HistoryEntry] = app.history(job)
logs: list[LogEntry] = app.logs(job)
plain: dict[str, Any] = job.to_dict()
watched: list[Job] = list(app.watch(job))


async def follow() -> list[Job]:
    return [job async for job in app.watch(1)]


app.worker(queues=["gpu"], strategy="PRIORITY", concurrency=4, pool="thread").run(until_empty=True)
app.consume("birds", until_empty=True, pool="process", concurrency=2)
app.ingest("microphones", table="recordings", folder="recorder", path=["raw", "processed"]).run_once()
app.janitor("old", table="recordings", folder="recorder", max_age=lambda: "30d", order_by="time").run_once()
Poller(app, worker_id=None, strategy="FIFO").poll_once(lambda claim: claim.args)


def transactional(connection: sqlite3.Connection, session: Session) -> None:
    on_mine: Job = add.using(connection).enqueue(1, 2)
    on_session: Job = add.configure(priority=1).using(session).enqueue(1, b=on_mine.id)
    many: list[int] = add.using(session).enqueue_many([(1, 2)])
    assert on_session.id in many


async def transactional_and_asynchronous(session: AsyncSession, server: psycopg.AsyncConnection[Any]) -> None:
    one: Job = await add.using(session).enqueue(1, 2)
    two: Job = await add.using(server).aenqueue(1, 2)
    ids: list[int] = await add.using(server).enqueue_many([(one.id, two.id)])
    await add.using(session).enqueue("one", 2)  # wrong
    assert ids


async def asynchronous() -> None:
    made: Job = await add.aenqueue(1, 2)
    await app.aresult(made.id)
    found: Job = await app.aretry(await app.acancel(made))
    page: JobList = await app.ajobs(state="failed", queue="gpu", limit=50)
    named: Job = await app.aenqueue("add", {"a": 1, "b": 2}, queue=found.queue)
    await app.apause("gpu")
    await app.ajobs(colour="red")  # wrong
    await app.ajob("one")  # wrong
    number: int = await app.ajob(1)  # wrong
    assert page == [named, number]
    text: bytes = await fetch("x")
    assert text


# -- calls that are wrong ----------------------------------------------------------------------------

add.enqueue(1)  # wrong
add.enqueue("one", 2)  # wrong
add.enqueue(1, 2, 3)  # wrong
add.enqueue(1, c=2)  # wrong
add("one", 2)  # wrong
add.configure(priority=9).enqueue("one", 2)  # wrong
add.configure(colour="red")  # wrong
add.configure(priority="high")  # wrong
segment.enqueue()  # wrong
segment.enqueue([1], model=5)  # wrong
segment.enqueue("images")  # wrong
text: str = add(1, 2)  # wrong
app.task(colour="red")  # wrong
app.task(priority="high")  # wrong
job.state = State.FAILED  # wrong
app.worker(concurrency="four")  # wrong
app.worker(colour="red")  # wrong
app.consumer("birds", table="recordings", colour="red")  # wrong
app.enqueue("add", {"a": 1}, colour="red")  # wrong
app.consume("birds", queues=["gpu"])  # wrong
app.ingest("microphones", table="recordings")  # wrong
app.ingest("microphones", table="recordings", folder="recorder", settle="long")  # wrong
app.janitor("old", table="recordings", folder="recorder", colour="red")  # wrong
app.result("one")  # wrong
app.cancel("one")  # wrong
Rowlock(5)  # wrong
