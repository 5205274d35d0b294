"""A server that crashes and comes back under load: nothing acknowledged is lost, and workers go on alone."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from rowlock import JobContext, Rowlock
from rowlock.errors import OutcomeUnknown, StoreError
from rowlock.task import Task
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.account import account

# On two busy cores a server took 8 s to recover, and three crashes a minute.
pytestmark = pytest.mark.timeout(400)
A_BATCH = 30  # more than the store writes in one statement, so that it is a COPY
log = logging.getLogger(__name__)


@pytest.fixture
def app(own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture) -> Iterator[Rowlock]:
    caplog.set_level(logging.DEBUG, logger="rowlock")  # shown if the test fails
    with closing(Rowlock(own_postgres.url, poll_interval=0.5)) as made:
        yield made


def grows(*lists: list[Any], by: int) -> None:
    """Wait until each of these has so many more."""
    before = [len(one) for one in lists]
    eventually(
        lambda: all(len(one) >= count + by for one, count in zip(lists, before, strict=True)),
        100,
        f"it does not go on: {before}",
    )


class Load:
    """Threads that each enqueue again and again until told to stop, and keep what was acknowledged."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.refused = 0
        self.unknown = 0
        self._stop = threading.Event()
        self._failures: list[Exception] = []

    @contextmanager
    def by(self, *enqueue: Callable[[], list[int]]) -> Iterator[None]:
        threads = [threading.Thread(target=self._produce, args=[one]) for one in enqueue]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(timeout=100)
        assert not any(thread.is_alive() for thread in threads), "a producer hangs"
        assert self._failures == []

    def _produce(self, enqueue: Callable[[], list[int]]) -> None:
        while not self._stop.is_set():
            try:
                self.ids += enqueue()
                self._stop.wait(0.002)
            except OutcomeUnknown:
                self.unknown += 1
            except StoreError:
                self.refused += 1
                self._stop.wait(0.02)
            except Exception as error:  # anything else would be a bug: the test shows it
                self._failures.append(error)
                return


@contextmanager
def told_if_it_fails(server: PostgresServer, load: Load, runs: list[tuple[int, int]]) -> Iterator[None]:
    """What breaks once in a hundred runs, and only under load, has to say all that is known at once."""
    try:
        yield
    except BaseException:
        log.error(  # noqa: TRY400 - pytest shows the exception
            "%d acknowledged, %d refused, %d unknown, %d runs\n%s",
            *(len(load.ids), load.refused, load.unknown, len(runs), account(server, load.ids, runs)),
        )
        raise


def states(server: PostgresServer) -> dict[int, str]:
    """All jobs by id, asked without the connections under test."""
    return dict(server.execute("SELECT id, state FROM rowlock_jobs"))


def all_done(server: PostgresServer) -> None:
    eventually(
        lambda: set(states(server).values()) == {"completed"},
        100,
        "the worker did not get through what was left",
    )


def noting(app: Rowlock, runs: list[tuple[int, int]]) -> Task[[int], None]:
    """A task that notes under which claim it ran."""

    @app.task
    def note(ctx: JobContext, number: int) -> None:
        runs.append((ctx.id, ctx.claim))

    return note


@pytest.mark.parametrize("crashes", [3, pytest.param(10, marks=pytest.mark.chaos)])
def test_crashes_of_the_server_lose_nothing_and_run_nothing_twice(
    app: Rowlock, own_postgres: PostgresServer, crashes: int
) -> None:
    runs: list[tuple[int, int]] = []
    note = noting(app, runs)
    load = Load()

    def one() -> list[int]:
        return [note.enqueue(1).id]

    with told_if_it_fails(own_postgres, load, runs):
        with app.worker(concurrency=4).background():
            with load.by(one, one):
                for _ in range(crashes):
                    grows(load.ids, runs, by=20)
                    own_postgres.restart("immediate")
            last = note.enqueue(2)
            eventually(lambda: last.id in [id for id, _ in runs], 100, "the worker does not go on")
            all_done(own_postgres)
        found = states(own_postgres)
        assert [id for id in load.ids if found.get(id) != "completed"] == []
        assert len(set(load.ids)) == len(load.ids)
        assert [run for run, times in Counter(runs).items() if times > 1] == []
        assert {id for id, _ in runs} >= set(load.ids)
        # A job that nobody was told of may be there only if it was said that nobody knows.
        assert len(found) - len(load.ids) - 1 <= load.unknown


def test_a_batch_is_whole_or_not_there_when_the_server_crashes(
    app: Rowlock, own_postgres: PostgresServer
) -> None:
    note = noting(app, [])
    load = Load()
    numbers = iter(range(1_000_000))
    batches: dict[int, list[int]] = {}

    def batch() -> list[int]:
        number = next(numbers)
        batches[number] = []
        batches[number] = note.enqueue_many([{"number": number}] * A_BATCH)
        return batches[number]

    app.store.open()
    with load.by(batch):
        for _ in range(3):
            grows(load.ids, by=10 * A_BATCH)
            own_postgres.restart("immediate")
    rows = own_postgres.execute("SELECT CAST(args ->> 'number' AS int), id FROM rowlock_jobs ORDER BY id")
    found: dict[int, list[int]] = {}
    for number, id in rows:
        found.setdefault(number, []).append(id)
    assert {number for number, ids in found.items() if len(ids) != A_BATCH} == set()
    assert {number for number, ids in batches.items() if ids and ids != found.get(number)} == set()
    not_told = [number for number in found if not batches[number]]
    assert len(not_told) <= load.unknown


@pytest.mark.parametrize("strategy", ["PRIORITY", "WEIGHTED_RANDOM"])
def test_a_worker_that_starts_while_the_server_is_down_begins_when_it_is_up(
    app: Rowlock, own_postgres: PostgresServer, strategy: str
) -> None:
    runs: list[tuple[int, int]] = []
    note = noting(app, runs)
    ids = [note.enqueue(number).id for number in range(5)]
    own_postgres.stop("immediate")
    app.close()
    worker = app.worker(concurrency=4, strategy=strategy)
    with worker.background():
        eventually(lambda: worker.cycle.backoff.failing >= 2, message="it did not try")
        with pytest.raises(StoreError):
            note.enqueue(6)
        own_postgres.start()
        assert [app.result(id, timeout=100) for id in ids] == [None] * 5
        later = note.enqueue(7)
        assert app.result(later.id, timeout=100) is None
    assert sorted(runs) == [(id, 1) for id in [*ids, later.id]]


def test_a_restart_in_good_order_under_load_loses_nothing(app: Rowlock, own_postgres: PostgresServer) -> None:
    """`fast` tells every client; a worker that sleeps hears it from its listener."""
    runs: list[tuple[int, int]] = []
    note = noting(app, runs)
    load = Load()
    with app.worker(concurrency=2).background():
        with load.by(lambda: [note.enqueue(1).id]):
            for _ in range(2):
                grows(load.ids, by=20)
                own_postgres.restart("fast")
            grows(load.ids, runs, by=20)
        all_done(own_postgres)
    found = states(own_postgres)
    assert [id for id in load.ids if found.get(id) != "completed"] == []
    assert [run for run, times in Counter(runs).items() if times > 1] == []
