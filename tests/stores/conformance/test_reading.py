from __future__ import annotations

import pytest

from rowlock.errors import ConfigurationError
from rowlock.job import Ending
from rowlock.stores.sql.store import Store
from tests.stores.steps import add, end, take, worker

NOW = 1_800_000_000.0


def test_a_job_that_is_not_there_is_none(store: Store) -> None:
    assert store.get(1) is None and store.history(1) == [] and store.logs(1) == []


def test_pages_run_through_everything_newest_first(store: Store) -> None:
    ids = add(store, 7)
    pages, cursor = [], None
    while True:
        page = store.find(limit=3, cursor=cursor)
        pages.append([one.id for one in page])
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == [ids[:-4:-1], ids[3:0:-1], ids[:1]]


def test_a_cursor_that_no_page_gave_is_refused(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="cursor='x'"):
        store.find(cursor="x")


def test_jobs_are_found_by_state_queue_and_task(store: Store) -> None:
    who = worker(store)
    for queue, task in (("a", "x"), ("a", "y"), ("b", "x")):
        add(store, queue=queue, task=task, delay=60.0)
        for ending in (None, Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED):
            add(store, queue=queue, task=task)
            claim = take(store, who)[0]
            if ending:
                end(store, claim, ending)
    for queue, task in (("a", "x"), ("a", "y"), ("b", "x")):
        add(store, queue=queue, task=task)
    for state in ["scheduled", "queued", "running", "completed", "failed", "cancelled"]:
        every = store.find(state=state)
        assert len(every) == 3 and {one.state for one in every} == {state}
        assert [one.id for one in every] == sorted((one.id for one in every), reverse=True)
        assert len(store.find(state=state, queue="a")) == 2
        assert len(store.find(state=state, task="x")) == 2
        assert [(one.queue, one.task) for one in store.find(state=state, queue="a", task="y")] == [("a", "y")]
    assert len(store.find(queue="b")) == 6


def test_queues_are_counted_by_state_with_their_oldest_due_job(store: Store) -> None:
    who = worker(store)
    add(store, queue="a", priority=-5, now=NOW)
    add(store, 2, queue="a", priority=5, now=NOW + 10)
    add(store, queue="b", delay=60.0)
    store.set_queue("c", paused=True, strategy="LIFO")
    end(store, take(store, who, queues=("a",))[0])
    a, b, c = store.queues()
    assert (a.name, a.counts["queued"], a.counts["completed"]) == ("a", 2, 1)
    assert a.oldest_due is not None and a.oldest_due.timestamp() == NOW
    assert (b.name, b.counts["scheduled"], b.oldest_due) == ("b", 1, None)
    assert (c.name, c.paused, c.strategy, sum(c.counts.values())) == ("c", True, "LIFO", 0)


def test_the_depth_is_how_many_jobs_wait(store: Store) -> None:
    who = worker(store)
    assert store.depth() == store.depth("a") == 0
    add(store, 3, queue="a")
    add(store, 2, queue="b")
    add(store, delay=60.0, queue="b")
    end(store, take(store, who, queues=("a",))[0])
    take(store, who, queues=("a",))
    store.set_queue("b", paused=True)
    assert (store.depth(), store.depth("a"), store.depth("b"), store.depth("c")) == (3, 1, 2, 0)


def test_the_pulse_says_who_lives_and_how_long_each_queue_has_waited(store: Store) -> None:
    worker(store, "all", now=NOW)
    worker(store, "one", now=NOW, queues=("a", "b"))
    worker(store, "silent", now=NOW - 61)
    store.retire(worker(store, "stopped", now=NOW), now=NOW)
    add(store, queue="a", now=NOW - 90)
    add(store, queue="a", priority=7, now=NOW - 30)
    add(store, queue="b", delay=10.0, now=NOW - 50)
    add(store, queue="b", now=NOW - 5)
    add(store, queue="c", delay=10.0, now=NOW - 5)
    store.set_queue("d", paused=True)
    pulse = store.pulse(now=NOW)
    assert sorted(pulse.workers) == [(), ("a", "b")]
    assert pulse.waiting == {"a": pytest.approx(90), "b": pytest.approx(40)}
    assert pulse.paused == {"d"}
