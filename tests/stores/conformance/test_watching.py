"""`app.watch` on every store: what it gives, when it ends, and how often the database is asked."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator, Mapping

import pytest

from rowlock import Job, JobNotFound, Poller, Progress, Rowlock, StoreError
from rowlock.job import Report
from rowlock.worker.poller import ManualClaim
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy


@pytest.fixture
def app(url: str) -> Iterator[Rowlock]:
    made = Rowlock(url)
    yield made
    eventually(lambda: not watching())
    made.close()


@pytest.fixture
def poller(app: Rowlock) -> Iterator[Poller]:
    made = app.poller()
    yield made
    made.stop()


def watching() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "rowlock-watch"]


def claimed(poller: Poller) -> ManualClaim:
    claim = poller.claim()
    assert claim is not None
    return claim


def advance(app: Rowlock, claim: ManualClaim, done: float) -> None:
    app.store.report([Report(id=claim.id, claim=claim.claim, progress=Progress(done, 10.0, "frames"))])


def test_the_job_comes_at_once_and_with_each_change_until_it_has_ended(app: Rowlock, poller: Poller) -> None:
    watch = app.watch(app.enqueue("cut"))
    assert next(watch).state == "queued"
    claim = claimed(poller)
    assert next(watch).state == "running"
    for done in (1.0, 7.0):
        advance(app, claim, done)
        assert next(watch).progress == Progress(done, 10.0, "frames")
    app.enqueue("cut")  # whatever else is written is no change of this job
    assert watch.wait(0.2) is None
    claim.complete({"cuts": 3})
    assert (last := next(watch)).state == "completed" and last.result == {"cuts": 3}
    assert list(watch) == []
    assert [job.state for job in app.watch(last.id)] == ["completed"]


def test_the_same_with_async_for(app: Rowlock, poller: Poller) -> None:
    async def follow() -> list[str]:
        claims: list[ManualClaim] = []
        job, seen = await app.aenqueue("cut"), []
        async for one in app.watch(job.id):
            seen.append(str(one.state))
            if one.state == "queued":
                claims.append(await asyncio.to_thread(claimed, poller))
            elif one.state == "running":
                await asyncio.to_thread(claims[0].complete)
        return seen

    assert asyncio.run(asyncio.wait_for(follow(), 60)) == ["queued", "running", "completed"]


def test_an_id_that_no_job_has_is_refused_at_once(app: Rowlock) -> None:
    with pytest.raises(JobNotFound, match="there is no job 4711"):
        app.watch(4711)
    with pytest.raises(TypeError, match="whole number"):
        app.watch("4711")  # type: ignore[arg-type]

    async def follow() -> None:
        async for _ in app.watch(4711):
            raise AssertionError

    with pytest.raises(JobNotFound, match="there is no job 4711"):
        asyncio.run(follow())


def test_one_thread_looks_once_for_all_who_watch(
    app: Rowlock, poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[set[int]] = []
    look = app.store.changed

    def counted(seen: Mapping[int, Job | None]) -> dict[int, Job | None]:
        looks.append(set(seen))
        return look(seen)

    jobs = [app.enqueue("cut").id for _ in range(3)]
    monkeypatch.setattr(app.store, "changed", counted)
    watches = [app.watch(id) for id in jobs for _ in range(5)]
    assert [next(watch).state for watch in watches] == ["queued"] * 15
    assert watching() == ["rowlock-watch"]
    looks.clear()
    app.cancel(jobs[0])
    assert [next(watch).state for watch in watches[:5]] == ["cancelled"] * 5
    assert looks[0] == set(jobs)
    eventually(lambda: looks[-1] == set(jobs[1:]))  # who has ended is not looked at any more
    assert not any(watch.wait(0) for watch in watches[5:])
    for watch in watches:
        watch.close()


def test_who_stops_watching_frees_the_thread(app: Rowlock) -> None:
    job = app.enqueue("cut")
    with app.watch(job) as closed:
        assert watching() and next(closed).id == job.id
    assert closed.wait() is None and list(closed) == []
    eventually(lambda: not watching())

    for one in app.watch(job):  # nobody holds the iterator after the break
        assert one.id == job.id
        break
    gc.collect()
    eventually(lambda: not watching())

    forgotten = app.watch(job)
    blocked = threading.Thread(target=lambda: list(forgotten))
    blocked.start()
    forgotten.close()  # from another thread: it ends the wait
    blocked.join(30)
    assert not blocked.is_alive()


def test_who_is_slow_misses_what_was_between_but_never_the_end(app: Rowlock, poller: Poller) -> None:
    watch, other = app.watch(job := app.enqueue("cut")), app.watch(job)
    claim = claimed(poller)
    advance(app, claim, 3.0)
    app.cancel(job)
    claim.release()
    assert list(other)[-1].state == "cancelled"
    assert list(watch)[-1].state == "cancelled"


def test_a_job_that_is_pruned_meanwhile_ends_it_with_an_error(app: Rowlock) -> None:
    watch = app.watch(job := app.enqueue("cut"))
    assert next(watch).state == "queued"
    with app.store.database.write() as tx:  # type: ignore[attr-defined]  # at once, so that no final state is seen
        tx.rows("cancel", id=job.id)
        tx.rows("prune_jobs", ids=f"[{job.id}]", keep_completed=0, keep_failed=0)
    with pytest.raises(JobNotFound, match="was pruned or deleted while it was watched"):
        next(watch)
    assert list(watch) == []


def test_a_database_that_is_away_for_a_while_ends_no_watch(
    postgres: PostgresServer, postgres_queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(postgres.port) as proxy:
        far, near = Rowlock(proxy.url(postgres_queue)), Rowlock(postgres_queue)
        watch = far.watch(job := near.enqueue("cut"))
        assert next(watch).state == "queued"
        proxy.drop_reply_to("rowlock_progress", times=3)
        near.cancel(job)
        assert [one.state for one in watch] == ["cancelled"]
        assert proxy.dropped and "watched jobs cannot be looked at, this goes on trying" in caplog.text
        proxy.drop_reply_to("rowlock_progress", times=3)
        with pytest.raises(StoreError):  # but who begins to watch is told at once
            far.watch(job)
        eventually(lambda: not watching())
        far.close()
        near.close()
