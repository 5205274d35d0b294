"""After a crash the server gives lost transactions' numbers, and lost ids, a second time.

So the number alone does not tell whether a COMMIT without an answer was done: what it wrote does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from rowlock import JobContext, Rowlock
from rowlock.errors import OutcomeUnknown, StoreError
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.address import store_for
from rowlock.stores.sql.store import Store
from tests.chaos.database import effects_table, make_effects, rows
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer, fresh_schema, own_server, wheel_binaries
from tests.servers.proxy import Proxy
from tests.stores.steps import add, end, job, new, outcome, state, take, worker

RECOVERS = "automatic recovery in progress"


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """One that may crash; each test has its own schema there."""
    with own_server(wheel_binaries(), like=postgres) as made:
        yield made


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with fresh_schema(server) as made:
        yield made


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(store_for(url)) as made:
        made.open()
        yield made


@pytest.fixture
def shaky(proxy: Proxy, store: Store, url: str) -> Iterator[Store]:
    with closing(store_for(proxy.url(url))) as made:
        made.open()
        yield made


@pytest.fixture
def crash(server: PostgresServer, store: Store) -> Callable[[], None]:
    """The server crashes, comes back, and others are quick to commit under the numbers that were lost."""

    def crash() -> None:
        store.close()
        server.restart("immediate")
        for _ in range(20):
            server.execute("SELECT pg_current_xact_id()")

    return crash


def takes_connections(server: PostgresServer) -> bool:
    try:
        return bool(server.execute("SELECT 1"))
    except psycopg.OperationalError:
        return False


def test_a_batch_is_not_acknowledged_by_the_commit_of_another(
    shaky: Store, store: Store, proxy: Proxy, crash: Callable[[], None]
) -> None:
    for count in (3, 50):
        proxy.drop_commit(meanwhile=crash)
        with pytest.raises(StoreError, match="cannot be reached"):
            shaky.insert([new() for _ in range(count)])
        assert store.find() == []


def test_a_batch_is_not_acknowledged_by_another_that_got_its_ids(
    shaky: Store, store: Store, proxy: Proxy, crash: Callable[[], None]
) -> None:

    def crash_and_enqueue() -> None:
        crash()
        add(store, 100)

    proxy.drop_commit(meanwhile=crash_and_enqueue)
    with pytest.raises(StoreError, match="cannot be reached"):
        shaky.insert([new(task="lost") for _ in range(50)])
    assert {found.task for found in store.find(limit=200)} == {"work"}


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.FAILED, Ending.RELEASED])
def test_an_outcome_is_not_believed_to_be_written_by_the_commit_of_another(
    shaky: Store, store: Store, proxy: Proxy, crash: Callable[[], None], ending: Ending
) -> None:
    who = worker(store)
    add(store, 2)
    claims = take(store, who, 2)
    proxy.drop_commit(meanwhile=crash)
    outcomes = [outcome(claim, ending, delay=9.0) for claim in claims]
    with pytest.raises(StoreError, match="cannot be reached"):
        shaky.exchange(who, outcomes)
    assert [state(store, claim.id) for claim in claims] == ["running"] * 2
    assert shaky.exchange(who, outcomes, resent=True).lost == []
    assert "running" not in [state(store, claim.id) for claim in claims]


def test_an_operator_is_told_that_it_is_not_known(
    shaky: Store, store: Store, proxy: Proxy, crash: Callable[[], None]
) -> None:
    (id,) = add(store)
    # Committed it is, but after the crash the number may as well be that of another transaction.
    proxy.drop_reply_to_commit(meanwhile=crash)
    with pytest.raises(OutcomeUnknown):
        shaky.cancel(id)
    assert state(store, id) == "cancelled"


def test_an_operator_is_told_so_too_if_the_server_recovers_without_a_restart(
    shaky: Store, store: Store, proxy: Proxy, server: PostgresServer
) -> None:
    """As when the kernel kills one of its processes for want of memory."""

    def lose_a_process() -> None:
        store.close()
        said = server.log.read_text().count(RECOVERS)
        with closing(psycopg.connect(server.url)) as one:
            os.kill(one.info.backend_pid, signal.SIGKILL)
        eventually(lambda: server.log.read_text().count(RECOVERS) > said, 60)
        eventually(lambda: takes_connections(server), 60)
        for _ in range(20):
            server.execute("SELECT pg_current_xact_id()")

    (id,) = add(store)
    proxy.drop_commit(meanwhile=lose_a_process)
    with pytest.raises(OutcomeUnknown):
        shaky.cancel(id)
    assert state(store, id) == "queued"


def test_what_was_committed_before_the_crash_is_acknowledged(
    shaky: Store, store: Store, proxy: Proxy
) -> None:
    who = worker(store)
    (id,) = add(store)
    (claim,) = take(store, who)
    proxy.drop_reply_to_commit()
    made = shaky.insert([new() for _ in range(50)])
    proxy.drop_reply_to_commit()
    assert end(shaky, claim, Ending.FAILED)
    assert proxy.dropped == 2
    assert {found.id for found in store.find(limit=100)} == {id, *(one.id for one in made)}
    assert job(store, id).state == "failed"


def test_a_tasks_rows_are_not_believed_to_be_there_by_the_commit_of_another(
    url: str, proxy: Proxy, server: PostgresServer, crash: Callable[[], None]
) -> None:
    make_effects(url)
    with closing(Rowlock(proxy.url(url), poll_interval=0.1)) as app:

        @app.task
        def apply(ctx: JobContext) -> None:
            with ctx.transaction() as tx:
                tx.execute(f"INSERT INTO {effects_table(url)} VALUES ({ctx.id}, {ctx.claim})")
            if ctx.claim == 1:
                proxy.drop_commit(meanwhile=crash, after=effects_table(url))

        job = apply.enqueue()
        with app.worker(concurrency=1).background(), closing(Rowlock(url)) as other:
            eventually(lambda: proxy.dropped == 1, 100)
            other.result(job.id, timeout=100)  # not by connections of the app, which the crash has cut
            claim = other.job(job.id).claim
    assert claim > 1
    assert rows(url, "SELECT job, claim FROM effects") == [(job.id, claim)]


def test_claims_are_not_believed_because_an_outcome_was_written_earlier(
    shaky: Store, store: Store, proxy: Proxy, crash: Callable[[], None]
) -> None:
    who = worker(store)
    add(store, 3)
    (first,) = take(store, who)
    done = outcome(first, Ending.COMPLETED)
    assert store.exchange(who, [done]).lost == []  # and the answer was lost: it is given again
    proxy.drop_commit(meanwhile=crash)
    with pytest.raises(StoreError, match="cannot be reached"):
        shaky.exchange(who, [done], ClaimRequest(count=2), resent=True)
    assert store.held(who) == []
