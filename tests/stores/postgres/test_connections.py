"""The store's connections: replaced when lost, never waited for without end, left alone by a forked child."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import ExitStack, closing, contextmanager
from hashlib import md5

import psycopg
import pytest

from rowlock import Rowlock
from rowlock.errors import ConfigurationError, StoreBusy, StoreError, StoreUnreachable
from rowlock.job import Ending
from rowlock.stores.address import store_for
from rowlock.stores.postgres import PostgresStore, connections, listener, lost_answers
from rowlock.stores.postgres.dialect import CHANNEL
from rowlock.stores.postgres.url import parse
from tests.eventually import eventually
from tests.forks import end_child
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.stores.steps import add, end, job, new, state, take, worker

A_WHILE = 60.0  # seconds; the end of a wait that should never be so long


def postgres_store(url: str, busy_timeout: float = 5.0) -> PostgresStore:
    made = store_for(url, busy_timeout=busy_timeout)
    assert isinstance(made, PostgresStore)
    return made


@pytest.fixture
def store(postgres_schema: str) -> Iterator[PostgresStore]:
    """Its connections go by a name of their own, so that they can be told from those of other tests."""
    schema = postgres_schema.rpartition("=")[2]
    with closing(postgres_store(f"{postgres_schema}&application_name={schema[:40]}")) as made:
        made.open()
        yield made


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as made:
        yield made


@pytest.fixture
def careful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is looked at before every use, as after a pause."""
    monkeypatch.setattr(connections, "_FRESH", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements are given up after a second: half for the server to end them, half for us."""
    monkeypatch.setattr(connections, "_STATEMENT_TIMEOUT", 0.5)
    monkeypatch.setattr(lost_answers, "_LOOK_UP_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_GRACE", 0.5)


def backends(server: PostgresServer, store: PostgresStore) -> list[int]:
    """The server's processes for this store."""
    rows = server.execute(
        f"SELECT pid FROM pg_stat_activity WHERE application_name LIKE '{store.database.address.name} %'"
    )
    return [pid for (pid,) in rows]


def terminate(server: PostgresServer, store: PostgresStore) -> int:
    """End the store's idle connections from the other side, and wait until they are gone."""
    ended = backends(server, store)
    for pid in ended:
        server.execute(f"SELECT pg_terminate_backend({pid})")
    eventually(lambda: backends(server, store) == [])
    return len(ended)


@contextmanager
def table_locked(server: PostgresServer, store: PostgresStore) -> Iterator[None]:
    with psycopg.connect(server.url) as somebody:
        somebody.execute(
            f"LOCK TABLE {store.database.address.schema}.rowlock_jobs IN ACCESS EXCLUSIVE MODE".encode()
        )
        yield


# -- lost while idle -----------------------------------------------------------------------------


def test_a_connection_that_the_server_closed_is_replaced_without_a_word(
    postgres: PostgresServer, store: PostgresStore, careful: None
) -> None:
    who = worker(store)
    assert terminate(postgres, store) >= 1
    (id,) = add(store)
    assert terminate(postgres, store) >= 1
    assert state(store, id) == "queued"
    terminate(postgres, store)
    assert len(add(store, 2)) == 2
    terminate(postgres, store)
    assert len(add(store, 50)) == 50
    terminate(postgres, store)
    (claim,) = take(store, who, strategy="FIFO")
    assert claim.id == id
    terminate(postgres, store)
    assert end(store, claim)
    terminate(postgres, store)
    assert store.beat(who, "FIFO")


def test_a_program_with_very_many_open_files_can_look_at_its_connections(
    store: PostgresStore, careful: None
) -> None:
    """`select` knows no number above 1023."""
    if os.sysconf("SC_OPEN_MAX") < 1500:
        pytest.skip("this user may not open that many files")
    store.database.connections.close()
    with ExitStack() as opened:
        for _ in range(1100):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        ids = [*add(store), *add(store)]
        with store.database.connections.borrowed() as connection:
            assert connection.fileno() > 1023
    assert [found.id for found in store.find()] == ids[::-1]


def test_an_enqueue_is_made_although_the_connection_was_lost_a_moment_ago(
    postgres: PostgresServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at a connection that was just in use: the loss is found out by the statement itself."""
    monkeypatch.setattr(connections, "_FRESH", 3600.0)
    (id,) = add(store)
    assert terminate(postgres, store) >= 1
    (other,) = add(store)
    assert [found.id for found in store.find()] == [other, id]


def test_several_connections_that_were_closed_are_all_replaced(
    postgres: PostgresServer, store: PostgresStore, careful: None
) -> None:
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(store.database.connections.borrowed())
    assert terminate(postgres, store) >= 4
    with ThreadPoolExecutor(4) as threads:
        ids = [made for (made,) in threads.map(lambda _: add(store), range(8))]
    assert len(set(ids)) == 8


def test_a_task_transaction_begins_on_a_connection_that_is_there(
    postgres: PostgresServer, store: PostgresStore, careful: None
) -> None:
    terminate(postgres, store)
    with closing(store.transaction(10.0)) as own:
        assert own.connection.execute("SELECT 1").fetchone() == (1,)
        own.commit()


# -- too many, too long --------------------------------------------------------------------------


def test_more_threads_than_connections_are_told_which_option_helps(postgres_schema: str) -> None:
    with closing(postgres_store(f"{postgres_schema}&pool_size=2", busy_timeout=0.3)) as store:
        store.open()
        with store.database.connections.borrowed(), store.database.connections.borrowed():
            for _ in range(2):
                with pytest.raises(StoreBusy, match=r"all 2 connections .* \?pool_size="):
                    add(store)
        assert len(add(store)) == 1


def test_a_thread_waits_for_a_connection_that_comes_back_in_time(postgres_schema: str) -> None:
    with (
        closing(postgres_store(f"{postgres_schema}&pool_size=2", busy_timeout=A_WHILE)) as store,
        ThreadPoolExecutor(1) as thread,
    ):
        store.open()
        with ExitStack() as held:
            held.enter_context(store.database.connections.borrowed())
            with store.database.connections.borrowed():
                waiting = thread.submit(add, store)
                with pytest.raises(StillWaiting):
                    waiting.result(timeout=0.2)
            assert len(waiting.result(timeout=A_WHILE)) == 1


@pytest.mark.parametrize("verb", ["insert", "insert many", "claim", "get", "promote"])
def test_a_lock_of_somebody_else_is_given_up_on(
    postgres: PostgresServer, postgres_schema: str, verb: str
) -> None:
    with closing(postgres_store(postgres_schema, busy_timeout=0.3)) as store:
        store.open()
        who = worker(store)
        (id,) = add(store)
        verbs: dict[str, Callable[[], object]] = {
            "insert": lambda: store.insert([new()]),
            "insert many": lambda: store.insert([new() for _ in range(50)]),
            "claim": lambda: take(store, who),
            "get": lambda: store.get(id),
            "promote": lambda: store.promote(10),
        }
        with table_locked(postgres, store), pytest.raises(StoreBusy, match="stayed locked"):
            verbs[verb]()
        assert state(store, id) == "queued"
        assert [claim.id for claim in take(store, who)] == [id]


def test_a_statement_that_takes_too_long_is_ended_by_the_server(
    postgres_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_STATEMENT_TIMEOUT", 2.0)
    monkeypatch.setattr(connections, "_GRACE", A_WHILE)  # on a busy machine the server may be late
    with closing(postgres_store(postgres_queue)) as store:
        with (
            store.database.explaining(),
            store.database.connections.borrowed() as connection,
            pytest.raises(psycopg.Error) as told,
        ):
            connection.own_cursor.execute("SELECT pg_sleep(60)")
        assert told.value.sqlstate == "57014"
        assert len(add(store)) == 1


# -- a network that has gone silent --------------------------------------------------------------


@pytest.mark.parametrize("verb", ["insert", "insert many", "claim", "get", "beat", "transaction"])
def test_a_silent_server_is_given_up_on(
    postgres_queue: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    with closing(postgres_store(f"{proxy.url(postgres_queue)}&connect_timeout=2")) as store:
        store.open()
        who = worker(store)
        (id,) = add(store)
        verbs: dict[str, Callable[[], object]] = {
            "insert": lambda: store.insert([new()]),
            "insert many": lambda: store.insert([new() for _ in range(50)]),
            "claim": lambda: take(store, who),
            "get": lambda: store.get(id),
            "beat": lambda: store.beat(who, "FIFO"),
            "transaction": lambda: store.transaction(1.0),
        }
        # Given up after a second; only those that are open now, for afterwards the machine may be busy.
        monkeypatch.setattr(lost_answers, "_LOOK_UP_SECONDS", 0.5)
        for connection in store.database.connections._idle:
            connection.answer_timeout = 1.0
        with ThreadPoolExecutor(1) as thread:
            proxy.freeze()
            try:
                with pytest.raises((StoreUnreachable, StoreBusy)):
                    thread.submit(verbs[verb]).result(timeout=A_WHILE)
            finally:
                proxy.cut()
                proxy.thaw()
        assert job(store, id).task == "work"
        assert len(add(store)) == 1


def test_a_task_may_take_longer_than_the_stores_own_statements(postgres_schema: str, impatient: None) -> None:
    with closing(postgres_store(postgres_schema)) as store, closing(store.transaction(20.0)) as own:
        own.connection.execute("SELECT pg_sleep(1.5)")
        own.commit()


# -- the listener --------------------------------------------------------------------------------


class Ear:
    """A listener as a poller has one, and what it rang."""

    def __init__(self, store: PostgresStore, who: str) -> None:
        self.rung = 0
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.wake = store.wake(lambda: who, self._ring)

    def _ring(self) -> None:
        self.rung += 1
        self.bell.put(None)

    def close(self) -> None:
        self.wake.close()


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_ASK_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(listener, "_ANSWER_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(listener, "_BACKOFF_MOST", 0.2)


def hears(ear: Ear, store: PostgresStore, who: str) -> bool:
    """True if the ear hears of a job that somebody enqueues now."""
    store.database.sleepers.fall_asleep(who)
    before = ear.rung
    add(store)
    return eventually(lambda: ear.rung > before, A_WHILE, "it did not hear of the job")


def test_a_listener_notices_silence_and_listens_again(
    proxy: Proxy, store: PostgresStore, postgres_schema: str, attentive: None, impatient: None
) -> None:
    who = worker(store, f"sleeper of {store.database.address.schema}")
    with (
        closing(postgres_store(f"{proxy.url(postgres_schema)}&connect_timeout=2")) as far,
        closing(Ear(far, who)) as ear,
    ):
        eventually(lambda: ear.wake.alive)
        assert hears(ear, store, who)
        proxy.freeze()
        eventually(lambda: not ear.wake.alive, A_WHILE, "it did not notice that nobody answers")
        proxy.cut()
        proxy.thaw()
        eventually(lambda: ear.wake.alive, A_WHILE, "it does not listen again")
        assert hears(ear, store, who)


def test_a_listener_whose_connection_is_closed_listens_again(
    postgres: PostgresServer, store: PostgresStore, attentive: None, careful: None
) -> None:
    who = worker(store, f"sleeper of {store.database.address.schema}")
    with closing(Ear(store, who)) as ear:
        eventually(lambda: ear.wake.alive)
        rung = ear.rung
        for pid in backends(postgres, store):
            postgres.execute(f"SELECT pg_terminate_backend({pid})")
        # It rings by itself when it listens again: something may have come meanwhile.
        eventually(lambda: ear.wake.alive and ear.rung > rung, A_WHILE)
        assert hears(ear, store, who)


def test_a_listener_that_is_closed_is_gone_at_once(postgres: PostgresServer, store: PostgresStore) -> None:
    who = worker(store)
    ear = Ear(store, who)
    eventually(lambda: ear.wake.alive)
    listening = f"%LISTEN%{md5(who.encode(), usedforsecurity=False).hexdigest()}%"
    mine = f"application_name LIKE '{store.database.address.name} %' AND query LIKE '{listening}'"
    assert CHANNEL in postgres.execute(f"SELECT query FROM pg_stat_activity WHERE {mine}")[0][0]
    ear.close()
    assert not ear.wake.alive
    assert "rowlock-listen" not in [thread.name for thread in threading.enumerate()]
    eventually(lambda: postgres.execute(f"SELECT pid FROM pg_stat_activity WHERE {mine}") == [])


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_connections_of_its_own(postgres: PostgresServer, store: PostgresStore) -> None:
    who = worker(store)
    add(store)
    before = set(backends(postgres, store))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            (made,) = add(store, task="child")
            (claim,) = take(store, who)
            code = 0 if store.get(made) and end(store, claim, Ending.COMPLETED) else 2
            store.close()
        finally:
            end_child(code)
    # The parent uses its own at the same time: two who share one would get each other's answers.
    ids = [made for _ in range(50) for made in add(store, task="parent")]
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert before <= set(backends(postgres, store)), "the child closed a connection of its parent"
    assert {job(store, id).task for id in ids} == {"parent"}
    assert len(store.find(task="child")) == 1
    assert len(store.find(state="completed")) == 1
    (again,) = take(store, who)
    assert end(store, again)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_connections(postgres_schema: str) -> None:
    with closing(postgres_store(f"{postgres_schema}&pool_size=2", busy_timeout=A_WHILE)) as store:
        store.open()
        with store.database.connections.borrowed(), store.database.connections.borrowed():
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    add(store, task="child")
                    code = 0
                finally:
                    end_child(code)
            _, status = os.waitpid(child, 0)  # it would never get one of these two
        assert os.waitstatus_to_exitcode(status) == 0
        assert [found.task for found in store.find()] == ["child"]


# -- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    ["", "Jobs", "1st", "a-b", 'a"b', "a b", "a;drop table x", "a.b", "pg'", "ä", "x" * 64, "a%00b", "a%0A"],
)
def test_a_schema_that_is_no_plain_name_is_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        store_for(f"postgresql://user@localhost/db?schema={schema}")


@pytest.mark.parametrize("size", ["0", "1", "-3", "x", "1001", "2.5", ""])
def test_a_pool_size_that_cannot_work_is_refused(size: str) -> None:
    with pytest.raises(ConfigurationError, match="pool_size"):
        store_for(f"postgresql://user@localhost/db?pool_size={size}")


PASSWORD = "s3cret-Pa55"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://rowlock:{PASSWORD}@127.0.0.1:1/db",
        f"postgresql://rowlock@127.0.0.1:1/db?password={PASSWORD}",
        f"postgresql://rowlock:{PASSWORD}@127.0.0.1:1/db?schema=jobs&pooler=transaction",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    with closing(postgres_store(url)) as store:
        with pytest.raises(StoreUnreachable) as told:
            store.open()
        cause = told.value.__cause__
        app = Rowlock(url)
        with pytest.raises(StoreError) as enqueued:
            app.enqueue("work")
        shown = [str(told.value), repr(told.value), str(cause), str(store.url), repr(store.database.address)]
        shown += [repr(store), repr(app), str(enqueued.value)]
    assert [text for text in shown if PASSWORD in text] == []


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://rowlock:{PASSWORD}@host:port/db",
        f"postgresql://rowlock:{PASSWORD}/x@host/db",
        f"postgresql://rowlock:{PASSWORD}@x@host/db",
        f"postgresql://rowlock:{PASSWORD}#@host/db",
        f"postgresql://rowlock:%zz{PASSWORD}@host/db",
        f"postgresql://rowlock:{PASSWORD}@host/db?schema=A-B",
        f"postgresql://rowlock:{PASSWORD}@host/db?pool_size=none",
        f"postgresql://rowlock:{PASSWORD}@host/db?no_such_option=1",
        f"postgresql://rowlock:{PASSWORD}@host/db?pooler=session",
    ],
)
def test_a_url_that_is_refused_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        parse(url)
    error: BaseException | None = told.value
    while error is not None:
        assert PASSWORD not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_refused_password_is_not_shown(own_postgres: PostgresServer) -> None:
    settings = own_postgres.data / "pg_hba.conf"
    settings.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
    own_postgres.restart("fast")
    url = own_postgres.url.replace("rowlock@", f"rowlock:{PASSWORD}@")
    with closing(postgres_store(url)) as store, pytest.raises(StoreError, match="password") as told:
        store.open()
    assert PASSWORD not in f"{told.value} {told.value.__cause__}"


def test_a_worker_that_froze_in_a_transaction_is_rescued_all_the_same(
    store: PostgresStore, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock of its own row, which the server takes away after a lease: so it is with a beat."""
    monkeypatch.setattr(connections, "_LEAST_IDLE", 2.0)
    frozen = worker(store, "frozen", lease=2.0)
    (id,) = add(store)
    take(store, frozen)
    with closing(postgres_store(postgres_schema)) as other:
        with pytest.raises(StoreBusy, match="stood still"), store.database.write() as tx:  # noqa: PT012
            tx.run("beat", worker=frozen, strategy="FIFO")
            me = worker(other, "rescuer")
            assert eventually(lambda: other.rescue(me, careful_age=60.0).workers) == [frozen]
            assert job(other, id).state == "queued"
            tx.run("beat", worker=frozen, strategy="FIFO")
        assert store.beat(frozen, "FIFO") is False


def test_a_connection_that_was_in_use_when_a_worker_came_gets_its_limit(store: PostgresStore) -> None:
    """A process that is frozen in a transaction would hold its locks for longer than the lease."""
    given_out = store.database.connections
    with given_out.borrowed() as old:
        given_out.limit_idle(7.0)
    with given_out.borrowed() as new_one:
        shown = new_one.own_cursor.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert (new_one is old, shown) == (False, ("7s",))
