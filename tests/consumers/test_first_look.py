"""The first look at a consumer's table, while other threads need it or another consumer's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rowlock.consumers import maintenance
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.table import Table
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab


class SlowLooks:
    """Lets each look at the table of "birdnet" wait until it may go on."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def table(self, database: Any, consumer: Consumer) -> Table:
        if consumer.name == "birdnet":
            self.begun.release()
            assert self.may_go_on.wait(60)
        return Table(database, consumer)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowLooks:
    made = SlowLooks()
    monkeypatch.setattr(maintenance, "Table", made.table)
    return made


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def source(lab: Lab, name: str) -> Any:
    app = lab.app()
    app.consumer(name, table=lab.table, state="analysis_state")(nothing)
    return app.consumer_source(name)


def test_a_slow_look_at_one_table_does_not_hold_up_another_consumer(
    lab: Lab, slow: SlowLooks, threads: ThreadPoolExecutor
) -> None:
    lab.create()
    birdnet, batdetect = source(lab, "birdnet"), source(lab, "batdetect")
    first = threads.submit(lambda: birdnet.claiming)
    assert slow.begun.acquire(timeout=60)
    try:
        threads.submit(lambda: batdetect.claiming).result(10)
    finally:
        slow.may_go_on.set()
    first.result(60)


def test_threads_that_need_a_table_at_once_look_at_it_once(
    lab: Lab, slow: SlowLooks, threads: ThreadPoolExecutor
) -> None:
    lab.create()
    birdnet = source(lab, "birdnet")
    both = [threads.submit(lambda: (birdnet.table, birdnet.claiming)) for _ in range(2)]
    assert slow.begun.acquire(timeout=60)
    looked_twice = slow.begun.acquire(timeout=0.2)
    slow.may_go_on.set()
    assert both[0].result(60) == both[1].result(60) and not looked_twice
