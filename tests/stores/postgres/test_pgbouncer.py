"""Through PgBouncer in transaction mode: everything works, and nothing is left in a session of the server."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from rowlock import JobContext, Poller, Rowlock
from rowlock.errors import StoreBusy
from rowlock.job import Ending
from rowlock.stores.address import store_for
from rowlock.stores.postgres import PostgresStore, connections
from tests.eventually import eventually
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.stores.steps import add, end, events, job, new, state, take, worker

STRATEGIES = ["PRIORITY", "FIFO", "LIFO", "WEIGHTED_RANDOM"]
OF_A_SESSION = re.compile(
    r"(\A|;)\s*(LISTEN|PREPARE|SET(?!\s+LOCAL))\b|pg_notify|pg_advisory_lock", re.IGNORECASE
)
POOL = 5  # PgBouncer's sessions with the server, see tests/servers/pgbouncer.py


class Witness(Proxy):
    """Stands before PgBouncer, loses nothing, and notes every statement that is sent."""

    def __init__(self, port: int) -> None:
        self.statements: list[str] = []
        super().__init__(port)

    def fault(self, statement: str, before: list[str] | None) -> None:
        self.statements.append(statement)


@pytest.fixture
def witness(pgbouncer: PgBouncer) -> Iterator[Witness]:
    made = Witness(pgbouncer.port)
    with made:
        yield made


@pytest.fixture
def url(witness: Witness, postgres_as_new: str) -> str:
    return f"{witness.url(postgres_as_new)}&pooler=transaction"


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(store_for(url)) as made:
        assert isinstance(made, PostgresStore)
        made.open()
        yield made


@pytest.fixture
def app(url: str) -> Iterator[Rowlock]:
    with closing(Rowlock(url, poll_interval=0.05)) as made:
        yield made


@pytest.fixture
def place(app: Rowlock, postgres: PostgresServer, postgres_as_new: str) -> str:
    """A user's own table beside the queue."""
    app.store.open()
    name = postgres_as_new.rpartition("schema=")[2] + ".notes"
    postgres.execute(f"CREATE TABLE {name} (note integer)")
    return name


@pytest.fixture(autouse=True)
def nothing_is_left_behind(
    caplog: pytest.LogCaptureFixture, witness: Witness, pgbouncer: PgBouncer, postgres: PostgresServer
) -> Iterator[None]:
    """Whatever a test does here: no warning, no LISTEN, and sessions as they were before."""
    caplog.set_level(logging.WARNING)
    before = sessions(pgbouncer, postgres)
    yield
    assert [record.getMessage() for record in caplog.records if record.name.startswith("rowlock")] == []
    assert [text for text in witness.statements if OF_A_SESSION.search(text)] == []
    assert sessions(pgbouncer, postgres) == before


def sessions(pgbouncer: PgBouncer, postgres: PostgresServer) -> set[tuple[object, ...]]:
    """What is set and kept in the server's sessions: as many transactions at once as there are sessions."""
    told = set()
    with ExitStack() as open_ones:
        for _ in range(POOL):
            client = psycopg.connect(pgbouncer.url(postgres.url), prepare_threshold=None)
            open_ones.enter_context(client)
            told.add(
                client.execute(
                    """
                    SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),
                           current_setting('idle_in_transaction_session_timeout'),
                           current_setting('search_path'), current_setting('plan_cache_mode'),
                           current_setting('enable_seqscan'), current_setting('jit'),
                           (SELECT count(*) FROM pg_prepared_statements),
                           (SELECT count(*) FROM pg_listening_channels())
                    """
                ).fetchone()
            )
    return {row for row in told if row is not None}


def test_the_sessions_begin_with_nothing_set(pgbouncer: PgBouncer, postgres: PostgresServer) -> None:
    nothing = ("0", "0", "0", '"$user", public', "auto", "on", "on", 0, 0)
    assert sessions(pgbouncer, postgres) == {nothing}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_claims_and_finishes(store: PostgresStore, strategy: str) -> None:
    who = worker(store)
    ids = [id for priority in (1, 5, 3) for id in add(store, 4, priority=priority)]
    claims = [claim for _ in range(3) for claim in take(store, who, 4, strategy=strategy)]
    orders = {
        "PRIORITY": ids[4:8] + ids[8:] + ids[:4],
        "FIFO": ids,
        "LIFO": ids[::-1],
    }
    got = [claim.id for claim in claims]
    assert got == orders.get(strategy, got) and sorted(got) == ids
    assert end(store, claims[0], Ending.RETRY, delay=60.0)
    assert end(store, claims[1], Ending.FAILED, error="no")
    assert end(store, claims[2], Ending.RELEASED)
    assert all(end(store, claim, result="1") for claim in claims[3:])
    assert not end(store, claims[3])
    found = Counter(state(store, id) for id in ids)
    assert found == {"completed": 9, "failed": 1, "queued": 1, "scheduled": 1}


@pytest.mark.parametrize("count", [1, 2, 20, 21, 3000])
def test_any_number_of_jobs_is_enqueued_at_once(store: PostgresStore, count: int) -> None:
    ids = add(store, count, args='{"n": 1}')
    assert len(set(ids)) == count
    assert sorted(found.id for found in store.find(limit=5000)) == ids


def test_a_unique_key_holds_one_job(store: PostgresStore) -> None:
    first, second = (store.insert([new(unique_key="k", unique_until="finished")])[0] for _ in range(2))
    assert (first.is_new, second.is_new, second.id) == (True, False, first.id)
    many = store.insert([new(unique_key=f"k{n % 10}", unique_until="finished") for n in range(40)])
    assert len({one.id for one in many}) == 10


def test_what_is_scheduled_is_promoted_when_it_is_due(store: PostgresStore) -> None:
    (id,) = add(store, delay=3600.0)
    assert store.promote(10) == 0
    assert store.next_needed("nobody") == pytest.approx(3600.0, abs=60.0)
    assert store.promote(10, now=job(store, id).run_at.timestamp() + 1.0) == 1
    assert state(store, id) == "queued"


def test_the_claims_of_a_silent_worker_are_rescued(store: PostgresStore) -> None:
    begun = 1_800_000_000.0
    dead = worker(store, "dead", lease=10.0, now=begun)
    (id,) = add(store, now=begun)
    (claim,) = take(store, dead, now=begun)
    alive = worker(store, "alive", now=begun + 100.0)
    assert store.rescue(alive, careful_age=10.0, now=begun + 101.0).requeued == 1
    assert not end(store, claim)
    assert (state(store, id), events(store, id)) == ("queued", ["rescued"])


def test_three_producers_and_a_worker_share_the_pooler(app: Rowlock, url: str) -> None:
    ran: Counter[int] = Counter()

    @app.task
    def work(number: int) -> int:
        ran[number] += 1
        return number

    ids: list[int] = []

    def produce(first: int) -> None:
        ids.extend(work.enqueue(number).id for number in range(first, first + 50))

    producers = [threading.Thread(target=produce, args=[first]) for first in (0, 50, 100)]
    with app.worker(concurrency=4).background():
        for thread in producers:
            thread.start()
        ids += work.enqueue_many([{"number": number} for number in range(150, 200)])
        for thread in producers:
            thread.join(timeout=60)
        assert len(ids) == 200
        eventually(lambda: len(app.jobs(state="completed", limit=500)) == 200, 60, "it did not get through")
    assert sorted(app.job(id).result for id in ids) == list(range(200))
    assert ran == dict.fromkeys(range(200), 1)


def test_a_job_is_enqueued_in_the_transaction_of_a_client_of_the_pooler(
    app: Rowlock, pgbouncer: PgBouncer, postgres: PostgresServer, place: str
) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    with psycopg.connect(pgbouncer.url(postgres.url), prepare_threshold=None) as mine:
        mine.execute(f"INSERT INTO {place} VALUES (1)".encode())
        kept = work.using(mine).enqueue(1)
        many = work.using(mine).enqueue_many([{"number": number} for number in range(2, 40)])
        assert app.jobs() == []
        mine.commit()
        mine.execute(f"INSERT INTO {place} VALUES (2)".encode())
        work.using(mine).enqueue(40)
        mine.rollback()
    assert postgres.execute(f"SELECT note FROM {place}") == [(1,)]
    assert sorted(found.id for found in app.jobs(limit=100)) == [kept.id, *many]


def test_a_task_commits_its_rows_with_its_completion(
    app: Rowlock, postgres: PostgresServer, place: str
) -> None:
    @app.task(retry=False)
    def note(ctx: JobContext, number: int) -> int:
        with ctx.transaction() as mine:
            mine.execute(f"INSERT INTO {place} VALUES (%s)", [number])
            if number < 0:
                mine.execute("SELECT 1 / 0")
            follow.enqueue(number)
        return number

    @app.task
    def follow(number: int) -> None:
        pass

    ids = note.enqueue_many([{"number": number} for number in range(20)])
    app.worker(concurrency=4).run(until_empty=True)
    assert [app.job(id).result for id in ids] == list(range(20))
    assert sorted(postgres.execute(f"SELECT note FROM {place}")) == [(number,) for number in range(20)]
    assert len(app.jobs(task="follow", state="completed", limit=100)) == 20


@pytest.mark.parametrize("verb", ["insert many", "insert", "claim", "get"])
def test_a_lock_of_somebody_else_is_given_up_on(
    postgres: PostgresServer, url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A session keeps no limits behind a pooler: whatever is sent has to bring them along."""
    monkeypatch.setattr(connections, "_STATEMENT_TIMEOUT", 2.0)
    monkeypatch.setattr(connections, "_GRACE", 0.5)
    who = worker(store)
    (id,) = add(store)
    with (
        closing(store_for(url, busy_timeout=0.3)) as hasty,
        psycopg.connect(postgres.url) as somebody,
    ):
        hasty.open()
        verbs: dict[str, Callable[[], object]] = {
            "insert many": lambda: hasty.insert([new() for _ in range(50)]),
            "insert": lambda: hasty.insert([new()]),
            "claim": lambda: take(hasty, who),
            "get": lambda: hasty.get(id),
        }
        somebody.execute(
            f"LOCK TABLE {store.database.address.schema}.rowlock_jobs IN ACCESS EXCLUSIVE MODE".encode()
        )
        with pytest.raises(StoreBusy, match="stayed locked"):
            verbs[verb]()
        somebody.rollback()
        assert len(add(hasty, 50)) == 50


def test_the_stores_connections_prepare_nothing(store: PostgresStore) -> None:
    for _ in range(10):
        add(store)
    with store.database.connections.borrowed() as connection:
        assert connection.prepare_threshold is None


def test_polling_does_not_become_rare(app: Rowlock) -> None:
    """Nobody can be told of a job here, so that every wait is as long as it is set."""
    with closing(Poller(app, poll_interval=0.05, max_idle_polls=2)) as poller:
        for _ in range(30):
            assert poller.claim() is None
        assert poller.consecutive_empty == 30
        assert 0.0 <= poller.idle_wait() <= 0.05
        assert poller._polls.wake is not None and not poller._polls.wake.alive
