"""The façade: asking, waiting, operating; and what it must not do when it is made or forked."""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock import ConfigurationError, InvalidPayload, JobNotFound, Rowlock, State, WrongState
from rowlock.codec import decode, encode
from rowlock.insights import doctor
from rowlock.stores.address import store_for
from rowlock.stores.sql.store import Store


def test_nothing_is_opened_when_an_app_is_made(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")
    app.task(name="work")(lambda: None)
    app.worker()
    app.close()
    assert list(tmp_path.iterdir()) == []


def test_importing_rowlock_stays_light() -> None:
    """The heavy rooms are imported when they are first needed."""
    heavy = ["pydantic", "asyncio", "typer", "rich", "sqlite3"]
    code = (
        "import sys; before = set(sys.modules); import rowlock; "
        f"print([name for name in {heavy} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_job_that_is_not_there_is_said_so(app: Rowlock) -> None:
    for call in (app.job, app.cancel, app.retry, app.result):
        with pytest.raises(JobNotFound, match="there is no job 7"):
            call(7)
    for far in (10**30, -1, 0):
        with pytest.raises(JobNotFound, match="there is no job"):
            app.job(far)
    for bad in ("7", True, None):
        with pytest.raises(TypeError, match="whole number"):
            app.job(bad)  # type: ignore[arg-type]


def test_result_waits_and_then_gives_up(app: Rowlock) -> None:
    job = app.enqueue("work")
    with pytest.raises(TimeoutError, match=f"job {job.id} .work. is still queued after 0.05 s"):
        app.result(job.id, timeout=0.05)


def test_whatever_takes_a_jobs_id_takes_the_job(app: Rowlock) -> None:
    app.task(name="work")(lambda: 5)
    job = app.enqueue("work", delay=60)
    assert app.job(job) == app.job(job.id)
    assert app.cancel(job).state == "cancelled"
    assert app.retry(job).state == "queued"
    with pytest.raises(TimeoutError, match=r"job 1 \(work\) is still queued after 0 s"):
        app.result(job, timeout=0)
    app.worker(concurrency=1).run(until_empty=True)
    assert app.result(job) == 5 == asyncio.run(app.aresult(job))
    assert [one.event for one in app.history(job)] == ["cancelled", "retried"]
    assert app.logs(job) == []


# What registers or makes something, and what the rooms below ask of their app; every other method is a verb.
NO_VERBS = {
    *("task", "around", "consumer", "ingest", "janitor", "load_tasks"),
    *("worker", "poller", "consuming", "consumer_source", "workload", "connection"),
    "watch",  # for both kinds of callers
    *("destination", "call_task"),
}


def test_every_verb_of_the_app_has_a_twin_for_async_callers() -> None:
    methods = {name: one for name, one in inspect.getmembers(Rowlock, inspect.isfunction) if name[0] != "_"}
    twins = {name for name, method in methods.items() if inspect.iscoroutinefunction(method)}
    verbs = methods.keys() - twins - NO_VERBS
    assert verbs >= {"enqueue", "job", "jobs", "result", "cancel", "retry", "pause", "resume", "stats"}
    assert twins == {f"a{verb}" for verb in verbs}
    for verb in verbs:
        twin = methods[f"a{verb}"]
        assert twin.__name__ == f"a{verb}" and f"`{verb}` for async callers" in (twin.__doc__ or "")
        assert inspect.signature(twin) == inspect.signature(methods[verb])


def test_async_callers_ask_and_operate_without_holding_up_their_loop(app: Rowlock) -> None:
    async def operate() -> None:
        job = await app.aenqueue("work", {"n": 1}, queue="gpu")
        assert (await app.acancel(job)).state == "cancelled"
        assert (await app.aretry(job)).state == "queued"
        await app.apause("gpu")
        assert (await app.astats())["queues"]["gpu"]["paused"]
        assert await app.ajobs(queue="gpu", limit=1) == [await app.ajob(job)]
        assert len(await app.ahistory(job)) == 2
        await app.aclose()

    asyncio.run(operate())


def test_a_consumer_that_is_awaited_stops_when_it_is_cancelled(app: Rowlock, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, state TEXT DEFAULT '{}')")
        connection.execute("INSERT INTO rows DEFAULT VALUES")
        connection.commit()
    begun = threading.Event()
    app.consumer("look", table="rows", state="state")(lambda ctx, row: begun.set())

    async def consume() -> None:
        task = asyncio.create_task(app.aconsume("look"))
        assert await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(consume())  # which ends only when the worker's thread has
    assert app.stats()["workers"] == 0


def test_jobs_are_filtered_and_paged(app: Rowlock) -> None:
    for number in range(5):
        app.enqueue("work", queue=f"q{number % 2}")
    page = app.jobs(queue="q0", limit=2)
    assert [job.id for job in page] == [5, 3] and page.cursor is not None
    rest = app.jobs(queue="q0", limit=2, cursor=page.cursor)
    assert [job.id for job in rest] == [1] and rest.cursor is None
    assert len(app.jobs(state=State.QUEUED)) == len(app.jobs(state="queued")) == 5
    with pytest.raises(ConfigurationError, match="state='done': must be one of scheduled, queued"):
        app.jobs(state="done")
    for limit in (0, 10_001, "5"):
        with pytest.raises(ConfigurationError, match="limit="):
            app.jobs(limit=limit)  # type: ignore[arg-type]


def test_cancel_and_retry_return_the_job_as_it_is_then(app: Rowlock) -> None:
    job = app.enqueue("work")
    assert app.cancel(job.id).state == "cancelled"
    assert app.cancel(job.id).state == "cancelled"
    assert app.retry(job.id).state == "queued"
    with pytest.raises(WrongState, match="nothing to retry"):
        app.retry(job.id)


def test_stats_count_by_state_and_queue(app: Rowlock) -> None:
    app.task(name="work")(lambda: 1)
    app.enqueue("work")
    app.worker().run(until_empty=True)
    app.enqueue("work", queue="gpu", delay=60)
    app.pause("gpu")
    stats = app.stats()
    assert (stats["completed"], stats["scheduled"], stats["queued"], stats["workers"]) == (1, 1, 0, 0)
    assert stats["queues"]["gpu"]["paused"] and stats["queues"]["gpu"]["scheduled"] == 1


def test_the_depth_counts_what_waits_in_all_queues_or_in_one(app: Rowlock) -> None:
    app.task(name="work")(lambda: 1)
    app.enqueue("work")
    app.worker().run(until_empty=True)
    for queue in ("default", "gpu", "gpu"):
        app.enqueue("work", queue=queue)
    app.enqueue("work", queue="gpu", delay=60)
    assert (app.depth(), app.depth("gpu"), app.depth(queue="unknown")) == (3, 2, 0)
    assert asyncio.run(app.adepth("gpu")) == 2
    with pytest.raises(ConfigurationError, match="queue="):
        app.depth(5)  # type: ignore[arg-type]


def test_an_app_can_be_used_again_after_close(app: Rowlock) -> None:
    app.enqueue("work")
    app.close()
    app.close()
    assert len(app.jobs()) == 1


def test_a_queue_name_is_checked_before_it_is_paused(app: Rowlock) -> None:
    for bad in ("", "a\x00b", 5):
        with pytest.raises(ConfigurationError, match="queue="):
            app.pause(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown strategy"):
        app.set_strategy("gpu", "NEWEST")


def test_the_doctor_finds_a_healthy_queue_healthy(app: Rowlock) -> None:
    app.task(name="work")(lambda: 1)
    app.enqueue("work")
    with app.worker().background():
        app.result(1, timeout=60)
        findings = doctor(app.store)
    assert {one.level for one in findings} <= {"ok", "note"}, findings
    assert {one.check for one in findings} >= {
        "opens",
        "schema",
        "journal mode",
        "durability",
        "clock",
        "workers",
    }


def test_the_doctor_names_what_is_wrong_and_what_to_do(app: Rowlock) -> None:
    import time

    from tests.stores.steps import add, take, worker

    store = app.store
    past = time.time() - 3600
    add(store, 2, queue="old", now=past)
    add(store, queue="future", now=time.time() + 500)
    store.set_queue("gpu", paused=True)
    silent = worker(store, "silent", lease=1.0, now=past)
    take(store, silent, queues=("old",), now=past)
    found = {one.check: one for one in doctor(store)}
    assert (found["workers"].level, found["stuck jobs"].level) == ("warning", "warning")
    assert "silent" in found["stuck jobs"].message
    assert found["overdue jobs"].level == "warning"
    assert re.search(r"old \(36\d\d s\)", found["overdue jobs"].message)
    assert found["clock"].level == "warning" and "set back" in found["clock"].message
    assert found["paused queues"].advice == "rowlock resume gpu"
    assert all(one.advice for one in found.values() if one.level != "ok")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), inner)
    ),
    max_leaves=20,
)


@given(json_values)
@settings(max_examples=100, deadline=None)
def test_json_values_come_back_as_they_went(value: Any) -> None:
    assert decode(encode(value, "value", 10**9)) == value


@given(st.recursive(st.sampled_from([1.0, float("nan"), b"x", "a\x00"]), st.lists, max_leaves=8))
@settings(max_examples=200, deadline=None)
def test_what_json_cannot_hold_is_found_at_any_depth(value: Any) -> None:
    def fine(part: Any) -> bool:
        return all(map(fine, part)) if isinstance(part, list) else part == 1.0

    if fine(value):
        assert decode(encode(value, "value", 10**6)) == value
    else:
        with pytest.raises(InvalidPayload, match="value"):
            encode(value, "value", 10**6)


def test_threads_that_use_an_app_first_together_share_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def slowly(*where: Any, **how: Any) -> Store:
        both.wait(timeout=60)
        return store_for(*where, **how)

    app = Rowlock(f"sqlite:///{tmp_path / 'jobs.db'}")
    monkeypatch.setattr("rowlock.stores.address.store_for", slowly)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: app.store, range(2))
    assert one is other is app.store
