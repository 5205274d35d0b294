"""The statements that every job goes through: answers and errors, whatever the connection went through."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from enum import Enum

import psycopg
import pytest

from rowlock import Rowlock
from rowlock.job import ClaimRequest
from rowlock.stores.address import store_for
from rowlock.stores.postgres import PostgresStore
from rowlock.stores.postgres.connections import Connection, Unanswered
from rowlock.stores.postgres.prepared import Row, Value
from rowlock.stores.postgres.session import PostgresSession
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer
from tests.stores.steps import add, new, take, worker

ECHO = "SELECT %(a)s::text, %(b)s::bigint + 1, %(a)s || '%%'"


def ask(connection: Connection, statement: str, **values: Value) -> list[Row]:
    return PostgresSession(connection, {}, None).ask(statement, values)


class Queues(str, Enum):
    MAIL = "mail"


class Levels(int, Enum):
    HIGH = 5


@pytest.fixture
def store(postgres_as_new: str) -> Iterator[PostgresStore]:
    with closing(store_for(postgres_as_new)) as made:
        assert isinstance(made, PostgresStore)
        made.open()
        yield made


@pytest.fixture
def connection(store: PostgresStore) -> Iterator[Connection]:
    with store.database.connections.borrowed() as made:
        yield made


@pytest.mark.parametrize("text", ["", "ä'\"\\{}%s %(a)s $1", "x" * 3_000_000], ids=["none", "odd", "long"])
def test_values_arrive_as_they_are(connection: Connection, text: str) -> None:
    assert ask(connection, ECHO, a=text, b=41) == [(text.encode(), b"42", f"{text}%".encode())]


def test_nothing_is_null(connection: Connection) -> None:
    assert ask(connection, ECHO, a=None, b=None) == [(None, None, None)]


def test_a_member_of_an_enum_is_its_value(connection: Connection, store: PostgresStore) -> None:
    assert ask(connection, ECHO, a=Queues.MAIL, b=Levels.HIGH) == [(b"mail", b"6", b"mail%")]
    who = worker(store)
    (id,) = add(store, queue=Queues.MAIL, priority=Levels.HIGH)
    assert [(claim.id, claim.queue, claim.priority) for claim in take(store, who, queues=(Queues.MAIL,))] == [
        (id, "mail", 5)
    ]


def test_text_that_would_be_cut_off_is_refused(connection: Connection) -> None:
    with pytest.raises(psycopg.DataError, match="NUL"):
        ask(connection, ECHO, a="before\0after", b=1)


def test_it_is_prepared_once_and_again_if_the_server_forgot_it(connection: Connection) -> None:
    def known() -> int:
        return int(connection.own_cursor.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0])

    before = known()
    for number in range(3):
        ask(connection, ECHO, a="", b=number)
    assert known() == before + 1
    connection.own_cursor.execute("DEALLOCATE ALL")
    assert ask(connection, ECHO, a="", b=1) == [(b"", b"2", b"%")]


def test_it_is_run_if_its_preparation_was_not_written_down(connection: Connection) -> None:
    """As after a Ctrl-C between the two."""
    ask(connection, ECHO, a="", b=1)
    connection.prepared.clear()
    assert ask(connection, ECHO, a="", b=1) == [(b"", b"2", b"%")]


def test_jobs_go_in_and_out_after_a_rollback(store: PostgresStore) -> None:
    """psycopg lets the server forget all statements then."""
    who = worker(store)
    ids = []
    for _ in range(2):
        ids += add(store)
        assert [claim.id for claim in take(store, who)] == ids[-1:]
        with (
            store.database.connections.borrowed() as connection
        ):  # the only one, so that it comes back next time
            for _ in range(4):  # prepared by psycopg, too
                connection.own_cursor.execute("SELECT %s", [1])
            connection.own_cursor.execute("BEGIN")
            connection.own_cursor.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT 1 / %(b)s::int", "22012"),
        ("SELECT * FROM not_there", "42P01"),
        ("SELECT %(b)s::int, ", "42601"),
    ],
)
def test_what_the_server_refuses_is_raised_as_psycopg_raises_it(
    connection: Connection, sql: str, state: str
) -> None:
    with pytest.raises(psycopg.Error) as told:
        ask(connection, sql, b=0)
    assert told.value.sqlstate == state
    assert connection.is_idle()
    assert ask(connection, ECHO, a="", b=1) == [(b"", b"2", b"%")]


def test_a_server_that_does_not_answer_is_given_up_on(connection: Connection) -> None:
    connection.answer_timeout = 0.1
    with pytest.raises(Unanswered):
        ask(connection, "SELECT pg_sleep(60)")
    assert connection.closed


def test_an_ended_connection_is_told(connection: Connection, store: PostgresStore) -> None:
    pid = connection.info.backend_pid
    with store.database.connections.borrowed() as other:
        other.own_cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises(psycopg.errors.AdminShutdown):  # not only that the line is dead
        ask(connection, ECHO, a="", b=1)
    assert connection.closed


def test_a_server_that_talks_and_does_not_answer_is_given_up_on(connection: Connection) -> None:
    connection.own_cursor.execute(
        "CREATE FUNCTION pg_temp.talk() RETURNS void LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..300 LOOP "
        "RAISE NOTICE 'still here'; PERFORM pg_sleep(0.02); END LOOP; END $$"
    )
    connection.answer_timeout = 0.2
    with pytest.raises(Unanswered):
        ask(connection, "SELECT pg_temp.talk()")
    assert connection.closed


def test_an_interrupted_enqueue_is_not_done_later(store: PostgresStore, postgres_as_new: str) -> None:
    """The server would go on without anybody who listens."""
    add(store)
    patient = store_for(postgres_as_new, busy_timeout=200.0)  # so that it is not the wait that ends by itself
    main = threading.main_thread().ident
    assert main is not None
    with store.database.connections.borrowed() as blocker, store.database.connections.borrowed() as watcher:
        jobs = f"{store.database.address.schema}.rowlock_jobs"
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"

        def is_waiting() -> bool:
            return bool(watcher.own_cursor.execute(waiting, [jobs]).fetchone()[0])

        def interrupt() -> None:
            eventually(is_waiting)
            signal.pthread_kill(main, signal.SIGINT)

        blocker.own_cursor.execute(f"BEGIN; LOCK TABLE {jobs} IN SHARE MODE")
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            add(patient)
        interrupter.join()
        eventually(lambda: not is_waiting(), timeout=25, message="the server still waits to write the job")
        blocker.own_cursor.execute("COMMIT")
        assert watcher.own_cursor.execute(f"SELECT count(*) FROM {jobs}").fetchone() == (1,)
    patient.close()


def test_a_statement_that_was_interrupted_before_the_wait_for_it_is_not_done_later(
    store: PostgresStore,
) -> None:
    add(store)
    jobs = f"{store.database.address.schema}.rowlock_jobs"
    connections = store.database.connections
    with connections.borrowed() as blocker, connections.borrowed() as watcher:
        blocker.own_cursor.execute(f"BEGIN; LOCK TABLE {jobs} IN SHARE MODE")
        with connections.borrowed() as connection:
            at_work = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
            process = connection.info.backend_pid
            connection.pgconn.send_query(f"SET lock_timeout = 0; DELETE FROM {jobs}".encode())
            eventually(lambda: watcher.own_cursor.execute(at_work, [process]).fetchone()[0])
        eventually(lambda: not watcher.own_cursor.execute(at_work, [process]).fetchone()[0], timeout=20)
        blocker.own_cursor.execute("COMMIT")
        assert watcher.own_cursor.execute(f"SELECT count(*) FROM {jobs}").fetchone() == (1,)


def test_times_keep_their_microseconds_where_numbers_are_written_short(
    store: PostgresStore, postgres_as_new: str
) -> None:
    separator = "&" if "?" in postgres_as_new else "?"
    short = f"{postgres_as_new}{separator}options=-c%20extra_float_digits%3D-5"
    with closing(store_for(short)) as same:
        (made,) = same.insert([new()])
        (claim,) = take(same, worker(same))
    with store.database.connections.borrowed() as connection:
        query = f"SELECT date_part('epoch', created_at) FROM {store.database.address.schema}.rowlock_jobs"
        (stored,) = connection.own_cursor.execute(query).fetchone()
    assert (made.now, claim.created) == (stored, stored)


@pytest.mark.parametrize("count", [1, 3])
def test_queues_are_named_to_the_letter(store: PostgresStore, count: int) -> None:
    who = worker(store)
    (id,) = add(store, queue="a.b-c_d")
    want = ClaimRequest(count=count, queues=("a.b-c_d", "other"))
    assert [claim.id for claim in store.exchange(who, (), want).claims] == [id]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_keeps_its_letters_in_a_database_with_another_encoding(
    postgres: PostgresServer, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    postgres.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    app = Rowlock(f"{postgres.url.rpartition('/')[0]}/{name}")

    @app.task
    def greet(name: str) -> str:
        return f"grüß {name}"

    try:
        jobs = [greet.enqueue("Zoë").id, *greet.enqueue_many([{"name": "Zoë"}] * 30)]
        app.worker().run(until_empty=True)
        assert {app.result(id) for id in jobs} == {"grüß Zoë"}
        assert {app.job(id).args["name"] for id in jobs} == {"Zoë"}
    finally:
        app.close()
        postgres.execute(f"DROP DATABASE {name}")
