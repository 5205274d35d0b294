"""Threads and processes claiming from one queue: no job twice, none lost."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from rowlock.stores.address import store_for
from rowlock.stores.sql.store import Store
from rowlock.strategies import names
from tests.stores.draining import drain, drain_in_processes
from tests.stores.steps import add, end, take, worker

JOBS = 300


@pytest.mark.no_cover  # what it runs is measured elsewhere, and here it would take twice as long
@pytest.mark.parametrize("jobs", [120, pytest.param(1200, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("strategy", names())
def test_threads_share_a_queue_without_a_clash(store: Store, strategy: str, jobs: int) -> None:
    ids = add(store, jobs // 2) + add(store, jobs // 2, priority=3)
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: done.extend(drain(store, f"w{n}", strategy))) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ids
    assert {found.claim for found in store.find(limit=jobs)} == {1}


def test_processes_share_a_queue_without_a_clash(url: str) -> None:
    store = store_for(url)
    ids = add(store, JOBS)
    done = drain_in_processes(url, ["p0", "p1", "p2"])
    assert sorted(id for part in done for id in part) == ids
    assert Counter(found.state for found in store.find(limit=JOBS)) == {"completed": JOBS}
    assert {found.claim for found in store.find(limit=JOBS)} == {1}
    store.close()


@pytest.mark.file_mode
def test_processes_that_create_the_queue_at_the_same_moment_agree(new_url: str) -> None:
    drain_in_processes(new_url, ["p0", "p1", "p2", "p3"])
    store = store_for(new_url)
    assert len(store.workers()) == 4
    store.close()


def test_one_claim_ended_by_two_threads_is_accepted_once(store: Store) -> None:
    who = worker(store)
    for _ in range(20):
        add(store)
        claim = take(store, who)[0]
        barrier = threading.Barrier(2)
        accepted: list[bool] = []

        def finish(claim=claim, barrier=barrier, accepted=accepted) -> None:  # type: ignore[no-untyped-def]
            barrier.wait()
            accepted.append(end(store, claim))

        threads = [threading.Thread(target=finish) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(accepted) == [False, True]
