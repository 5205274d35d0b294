"""The command line over PostgreSQL: what it says if all is well, and a sentence for each fault."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from rowlock import Rowlock, __version__
from tests.cli.commands import CommandLine
from tests.eventually import eventually
from tests.servers.folders import free_port
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer, own_server, wheel_binaries

SECRET = "s3cr3t"
TASKS = """
import os

from rowlock import Rowlock

app = Rowlock(os.environ["QUEUE"], poll_interval=0.1)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.consumer("reader", table="pages", state="state")
def read(page):
    pass
"""


def as_user(url: str, user: str, password: str = "") -> str:
    return url.replace("//rowlock@", f"//{user}:{password}@" if password else f"//{user}@")


def tables(url: str) -> list[tuple[str, str, str]]:
    schema = url.rpartition("schema=")[2]
    with psycopg.connect(url.partition("?")[0]) as connection:
        return connection.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = %s ORDER BY 1, 2",
            [schema],
        ).fetchall()


def connections(server: PostgresServer, count: int) -> list[psycopg.Connection]:
    return [psycopg.connect(as_user(server.url, "app", SECRET)) for _ in range(count)]


def psql(server: PostgresServer, script: str) -> None:
    command = [server.binaries / "psql", "--quiet", "--set", "ON_ERROR_STOP=1", server.url]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.fixture(scope="module")
def strict(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server that asks everybody but its administrator for a password, and takes few connections."""
    with own_server(wheel_binaries(), like=postgres) as server:
        (server.data / "pg_hba.conf").write_text(
            "host all rowlock 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write("max_connections = 12\nsuperuser_reserved_connections = 1\n")
        server.restart("fast")
        server.execute(f"CREATE ROLE app LOGIN PASSWORD '{SECRET}'")
        server.execute("GRANT ALL ON SCHEMA public TO app; GRANT CREATE ON DATABASE rowlock TO app")
        yield server


@pytest.fixture
def limited(postgres: PostgresServer, postgres_schema: str) -> Iterator[str]:
    """The URL of an empty schema for a user who may connect, and nothing else."""
    role = f"limited_{postgres_schema.rpartition('_')[2]}"
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    yield as_user(postgres_schema, role)
    postgres.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# -- when all is well ----------------------------------------------------------------------------


def test_init_says_what_it_did_and_reading_creates_nothing(
    rowlock: CommandLine, postgres_schema: str
) -> None:
    for words in (["jobs"], ["queues"], ["workers"], ["doctor"], ["pause", "q"], ["cancel", "1"]):
        complaint = rowlock.refused_here(*words, "-d", postgres_schema)
        assert complaint == (
            f"no queue at {postgres_schema}: run `rowlock init`, "
            "or name another with --database or ROWLOCK_DATABASE_URL"
        )
    assert "run `rowlock init`" in rowlock.refused_here("upgrade", "-d", postgres_schema)
    assert tables(postgres_schema) == []
    created = rowlock("init", "-d", postgres_schema).out
    assert created == f"created a queue at {postgres_schema} (schema version 1)\n"
    assert "already (schema version 1)" in rowlock.here("init", "-d", postgres_schema).out
    assert rowlock.here("upgrade", "-d", postgres_schema).out.endswith(": already at version 1\n")
    assert rowlock.files() == set()


def test_what_init_sql_prints_makes_the_same_tables_and_needs_no_server(
    rowlock: CommandLine, postgres: PostgresServer, postgres_schema: str
) -> None:
    nowhere = f"postgresql://rowlock:{SECRET}@127.0.0.1:{free_port()}/shop"
    assert rowlock.here("init", "--sql", "-d", nowhere).out.startswith(
        "-- rowlock's tables for PostgreSQL, schema v"
    )
    other = f"{postgres_schema}_too"
    name = other.rpartition("=")[2]
    try:
        psql(postgres, rowlock("init", "--sql", "-d", f"{nowhere}?schema={name}").out)
        rowlock.here("init", "-d", postgres_schema)
        assert tables(other) == tables(postgres_schema) != []
        assert rowlock.here("enqueue", "add", "-d", other).out == "1\n"
    finally:
        postgres.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def test_init_sql_for_a_file_prints_and_creates_nothing(rowlock: CommandLine) -> None:
    assert "CREATE TABLE rowlock_jobs" in rowlock.here("init", "--sql", "-d", "jobs.db").out
    assert rowlock.files() == set()


def test_two_workers_are_listed_with_where_they_are(rowlock: CommandLine, postgres_schema: str) -> None:
    rowlock.write("tasks.py", TASKS)
    queues = {"one": [], "two": ["gpu"]}
    with (
        rowlock.start("worker", "tasks:app", "--name", "one", QUEUE=postgres_schema) as one,
        rowlock.start("worker", "tasks:app", "--name", "two", "-q", "gpu", QUEUE=postgres_schema) as two,
    ):
        store = Rowlock(postgres_schema).store
        eventually(lambda: sum(worker.alive for worker in store.workers()) == 2)
        listed = rowlock.here("workers", "--json", "-d", postgres_schema).json
        table = rowlock("workers", "-d", postgres_schema).out
        for name, process in (("one", one), ("two", two)):
            (record,) = [record for record in listed if record["id"] == name]
            pid, host = process.process.pid, socket.gethostname()
            assert (record["pid"], record["host"], record["version"]) == (pid, host, __version__)
            assert (record["queues"], record["status"]) == (queues[name], "alive")
            (line,) = [line for line in table.splitlines() if line.startswith(name)]
            assert re.search(rf"alive.* s ago +{re.escape(host)} +{pid} +{re.escape(__version__)}", line)
        for process in (one, two):
            process.signal("SIGTERM")
            assert process.ends()[0] == 0
        store.close()


def test_backup_refuses_and_names_pg_dump(rowlock: CommandLine, postgres_schema: str) -> None:
    rowlock.here("init", "-d", postgres_schema)
    assert "pg_dump" in rowlock.refused_here("backup", "copy.sql", "-d", postgres_schema)
    assert rowlock.files() == set()


# -- what is wrong with the way there ------------------------------------------------------------


def test_a_server_that_is_down_is_told_in_one_line(rowlock: CommandLine) -> None:
    there = f"127.0.0.1:{free_port()}/shop"
    for words in (["jobs"], ["init"], ["enqueue", "add"], ["doctor"]):
        complaint = rowlock.refused_here(*words, "-d", f"postgresql://app:{SECRET}@{there}")
        assert complaint.startswith(f"postgresql://app@{there} cannot be reached: connection to server at")
        assert complaint.endswith("Connection refused")


def test_a_wrong_password_has_its_own_sentence_for_commands_and_workers(
    rowlock: CommandLine, strict: PostgresServer
) -> None:
    rowlock.write("tasks.py", TASKS)
    for password in ("wr0ng", ""):
        url = as_user(strict.url, "app", password)
        refusals = [
            rowlock.refused_here("jobs", "-d", url, PGPASSFILE="none"),
            rowlock.refused_here("worker", "tasks:app", QUEUE=url, PGPASSFILE="none"),
        ]
        for complaint in refusals:
            assert complaint.startswith(f"{as_user(strict.url, 'app')} refused the password: check it in ")
            assert "wr0ng" not in complaint


def test_a_missing_database_and_a_missing_user_have_their_own_sentences(
    rowlock: CommandLine, postgres: PostgresServer
) -> None:
    rowlock.write("tasks.py", TASKS)
    missing = postgres.url.removesuffix("/rowlock") + "/nowhere"
    sentence = f"there is no such database at {missing}: create it (`createdb`), or check the URL"
    for words in (["jobs", "-d", missing], ["init", "-d", missing], ["worker", "tasks:app"]):
        assert rowlock.refused_here(*words, QUEUE=missing).startswith(sentence)
    stranger = as_user(postgres.url, "stranger")
    assert rowlock.refused_here("jobs", "-d", stranger).startswith(f"{stranger} refused the user: ")


def test_a_pooler_that_was_not_named_is_recognised(
    rowlock: CommandLine, pgbouncer: PgBouncer, postgres: PostgresServer
) -> None:
    url = pgbouncer.url(postgres.url)
    assert "add ?pooler=transaction to the URL" in rowlock.refused_here("jobs", "-d", url)
    assert "no queue at" in rowlock.refused_here("jobs", "-d", f"{url}?pooler=transaction&schema=none")


def test_too_many_clients_is_told_and_a_worker_waits_for_its_turn(
    rowlock: CommandLine, strict: PostgresServer
) -> None:
    rowlock.write("tasks.py", TASKS)
    url = as_user(strict.url, "app", SECRET) + "?schema=crowded"
    rowlock.here("init", "-d", url)
    crowd = connections(strict, 11)
    try:
        complaint = rowlock.refused_here("jobs", "-d", url)
        assert complaint.startswith(
            f"{as_user(strict.url, 'app')}?schema=crowded has too many clients: raise max"
        )
        with rowlock.start("worker", "tasks:app", "--until-empty", QUEUE=url) as worker:
            worker.says("has too many clients")
            for connection in crowd:
                connection.close()
            code, out = worker.ends()
        assert code == 0 and "ended: nothing to do" in out
    finally:
        for connection in crowd:
            connection.close()


# -- what is wrong inside ------------------------------------------------------------------------


def test_without_the_right_to_create_tables_an_administrator_can_do_it(
    rowlock: CommandLine, postgres: PostgresServer, limited: str
) -> None:
    rowlock.write("tasks.py", TASKS)
    role = urlsplit(limited).username
    advice = f"at {limited}: let an administrator run what `rowlock init --sql` prints"
    lacks = f"the user lacks a right {advice}"
    assert rowlock.refused_here("init", "-d", limited).startswith(f"no schema for this user {advice}")
    elsewhere = limited.partition("?")[0]
    assert rowlock.refused_here("init", "-d", elsewhere).startswith(lacks.replace(limited, elsewhere))
    script = rowlock.here("init", "--sql", "-d", limited).out
    psql(postgres, script)
    assert rowlock.refused_here("jobs", "-d", limited).startswith(lacks)
    # The rights that the script names in its comments are enough for everything.
    grants = re.findall(r"--     (GRANT (?:.*\n--  )*?.* TO app;)", script)
    assert len(grants) == 4
    psql(postgres, "\n".join(grants).replace("--", "").replace("TO app;", f"TO {role};"))
    assert rowlock.here("enqueue", "add", "a=1", "b=2", "-d", limited).out == "1\n"
    assert "1 completed" in rowlock("worker", "tasks:app", "--until-empty", QUEUE=limited).out
    assert rowlock.here("doctor", "-d", limited).out.endswith("\nall is well\n")
    assert rowlock.here("retry", "1", "-d", limited).code == 0


def test_a_schema_made_by_an_administrator_is_enough_to_create_the_tables_in(
    rowlock: CommandLine, postgres: PostgresServer, limited: str
) -> None:
    schema = limited.rpartition("=")[2]
    postgres.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {urlsplit(limited).username}")
    assert rowlock.here("init", "-d", limited).out.startswith("created a queue at ")


def test_tables_that_this_code_is_too_old_for_are_left_alone(
    rowlock: CommandLine, postgres: PostgresServer, postgres_schema: str
) -> None:
    rowlock.write("tasks.py", TASKS)
    rowlock.here("init", "-d", postgres_schema)
    meta = f"{postgres_schema.rpartition('=')[2]}.rowlock_meta"
    postgres.execute(f"UPDATE {meta} SET value = '9' WHERE key = 'version'")
    rowlock.here("jobs", "-d", postgres_schema)  # newer tables that know this code still
    postgres.execute(f"UPDATE {meta} SET value = '8' WHERE key = 'compatible_from'")
    for words in (["jobs"], ["doctor"], ["init"], ["enqueue", "add"]):
        assert rowlock.refused_here(*words, "-d", postgres_schema) == (
            f"the queue in {postgres_schema} has schema 9 and needs code that knows schema 8; "
            "this rowlock knows 1: install a newer rowlock"
        )
    assert "install a newer rowlock" in rowlock.refused("worker", "tasks:app", QUEUE=postgres_schema)


# -- a worker and its server ---------------------------------------------------------------------


def test_a_worker_waits_for_its_server_and_goes_on_after_a_restart(
    rowlock: CommandLine, own_postgres: PostgresServer
) -> None:
    rowlock.write("tasks.py", TASKS)
    own_postgres.stop()
    with rowlock.start("worker", "tasks:app", QUEUE=own_postgres.url) as worker:
        worker.says("cannot be reached")
        own_postgres.start()
        app = Rowlock(own_postgres.url)
        assert app.result(app.enqueue("add", {"a": 1, "b": 2}).id, timeout=60) == 3
        assert worker.err.count("cannot be reached") == 1
        own_postgres.restart()
        assert app.result(app.enqueue("add", {"a": 3, "b": 4}).id, timeout=60) == 7
        app.close()
        worker.signal("SIGTERM")
        code, out = worker.ends()
    assert code == 0 and "2 completed" in out and "Traceback" not in worker.err


def test_a_worker_that_waits_for_its_server_ends_when_told_to(rowlock: CommandLine) -> None:
    rowlock.write("tasks.py", TASKS)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        url = f"postgresql://rowlock@127.0.0.1:{silent.getsockname()[1]}/shop"
        with rowlock.start("worker", "tasks:app", QUEUE=url) as worker:
            connection, _ = silent.accept()
            with connection:  # which says nothing
                worker.signal("SIGTERM")
                code, _ = worker.ends(within=5)
    assert code == 0 and "told to stop before the database could be used" in worker.err
    url = f"postgresql://rowlock@127.0.0.1:{free_port()}/shop"
    for words in (["worker", "tasks:app"], ["consume", "tasks:app", "reader"]):
        with rowlock.start(*words, QUEUE=url) as worker:
            worker.says("the worker waits and goes on trying")
            worker.signal("SIGTERM")
            assert worker.ends(within=5)[0] == 0


def test_a_worker_waits_for_a_server_whose_disk_is_full(
    rowlock: CommandLine, postgres: PostgresServer, postgres_schema: str
) -> None:
    rowlock.write("tasks.py", TASKS)
    rowlock.here("init", "-d", postgres_schema)
    schema = postgres_schema.rpartition("=")[2]
    postgres.execute(
        f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE disk_full; END $$"
    )
    postgres.execute(
        f"CREATE TRIGGER no_room BEFORE INSERT ON {schema}.rowlock_workers "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.full()"
    )
    with rowlock.start("worker", "tasks:app", "--until-empty", QUEUE=postgres_schema) as worker:
        worker.says("is full; nothing was written, free some space")
        postgres.execute(f"DROP TRIGGER no_room ON {schema}.rowlock_workers")
        code, out = worker.ends()
    assert code == 0 and "ended: nothing to do" in out
    assert worker.err.count("goes on trying") == 1


def test_a_consumer_waits_for_a_table_that_somebody_else_has_locked(
    rowlock: CommandLine, postgres: PostgresServer, postgres_schema: str
) -> None:
    pages = f"{postgres_schema.rpartition('=')[2]}.pages"
    rowlock.write("tasks.py", TASKS.replace("pages", pages))
    rowlock.here("init", "-d", postgres_schema)
    postgres.execute(f"CREATE TABLE {pages} (id int PRIMARY KEY, state jsonb)")
    consume = ("consume", "tasks:app", "reader", "--until-empty")
    with psycopg.connect(postgres.url) as migration:
        migration.execute(f"ALTER TABLE {pages} ADD COLUMN more text")
        with rowlock.start(*consume, QUEUE=postgres_schema, ROWLOCK_BUSY_TIMEOUT="0.1") as worker:
            worker.says("stayed locked; the call can simply be made again")
            migration.commit()
            code, out = worker.ends()
    assert code == 0 and "ended: nothing to do" in out
    assert worker.err.count("goes on trying") == 1


# -- the doctor ----------------------------------------------------------------------------------


def found(rowlock: CommandLine, url: str, check: str) -> tuple[str, str]:
    """How one look of the doctor ended: its level and its message."""
    findings = rowlock.here("doctor", "--json", "-d", url, code=None).json["findings"]
    (one,) = [one for one in findings if one["check"] == check]
    return one["level"], one["message"]


def test_the_doctor_knows_the_server_and_warns_of_weak_commits(
    rowlock: CommandLine, postgres: PostgresServer, postgres_schema: str
) -> None:
    rowlock.here("init", "-d", postgres_schema)
    assert rowlock("doctor", "-d", postgres_schema).out.endswith("\nall is well\n")
    assert found(rowlock, postgres_schema, "version")[1].startswith(f"PostgreSQL {postgres.version}")
    for setting in ("off", "local"):
        url = f"{postgres_schema}&options=-c%20synchronous_commit%3D{setting}"
        level, message = found(rowlock, url, "durability")
        assert level == "warning" and message.startswith(f"synchronous_commit={setting}: ")


def test_the_doctor_counts_connections(rowlock: CommandLine, strict: PostgresServer) -> None:
    url = as_user(strict.url, "app", SECRET) + "?schema=counted"
    rowlock.here("init", "-d", url)
    assert found(rowlock, url, "connections") == ("ok", "1 of 12 connections are in use")
    crowd = connections(strict, 9)
    try:
        level, message = found(rowlock, url, "connections")
        assert level == "warning" and message.startswith("10 of 12 connections are in use; ")
    finally:
        for connection in crowd:
            connection.close()


def test_the_doctor_and_enqueue_know_a_standby(rowlock: CommandLine, own_postgres: PostgresServer) -> None:
    rowlock.here("init", "-d", own_postgres.url)
    own_postgres.stop()
    (own_postgres.data / "standby.signal").touch()
    own_postgres.start()
    assert found(rowlock, own_postgres.url, "primary")[0] == "error"
    assert "is read-only (a standby?)" in rowlock.refused_here("enqueue", "add", "-d", own_postgres.url)


# -- passwords -----------------------------------------------------------------------------------


def test_no_command_shows_the_password(rowlock: CommandLine, strict: PostgresServer) -> None:
    rowlock.write("tasks.py", TASKS)
    url = as_user(strict.url, "app", SECRET) + "?schema=secret"
    commands: list[list[object]] = [
        ["init"], ["init"], ["init", "--sql"], ["enqueue", "add", "a=1", "b=2"],
        ["enqueue", "add", "a=1", "b=2"], ["jobs", "--limit", 1], ["job", 1], ["watch", 1, "--timeout", 0],
        ["cancel", 1], ["retry", 1], ["queues"], ["pause", "q"], ["resume", "q"], ["workers"], ["upgrade"],
        ["backup", "x"], ["doctor"], ["doctor", "--json"],
    ]  # fmt: skip
    said = ""
    for words in commands:
        ended = rowlock.here(*words, "-d", url, code=None)
        said += ended.out + ended.err
    ended = rowlock.here("worker", "tasks:app", "--until-empty", "--log-level", "debug", QUEUE=url)
    said += ended.out + ended.err
    assert "more: " in said and "2 completed" in said and "Traceback" not in said
    assert SECRET not in said
    more = rowlock.here("jobs", "-n", 1, "-d", f"{url}&password={SECRET}&connect_timeout=5").err
    assert f"{as_user(strict.url, 'app')}?schema=secret&connect_timeout=5" in more and SECRET not in more


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET}@host:99999/db",
        f"postgresql://app:{SECRET}@[::1/db",
        f"postgresql://app:a/{SECRET}@host/db",
        f"postgresql://app:1?{SECRET}@host/db",
        f"postgresql://app:a#{SECRET}@host/db",
        f"postgresql://app:a@{SECRET}@host/db",
        f"postgresql://app:a%zz{SECRET}@host/db",
        f"postgresql://app:{SECRET}@host/db?sslmod=require",
        f"postgresql://app:{SECRET}@host/db?schema=No%20Name",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(rowlock: CommandLine, url: str) -> None:
    complaint = rowlock.refused_here("jobs", "-d", url)
    assert SECRET not in complaint
    assert "URL" in complaint or "schema='No Name'" in complaint


def test_urls_of_sockets_and_of_several_hosts_are_libpqs_own(
    rowlock: CommandLine, postgres: PostgresServer, postgres_schema: str
) -> None:
    rowlock.here("init", "-d", postgres_schema)
    schema = postgres_schema.rpartition("?")[2]
    folder: Path = postgres.folder
    by_socket = f"postgresql:///rowlock?user=rowlock&host={folder}&port={postgres.port}&{schema}"
    several = f"postgresql://rowlock@127.0.0.1:{free_port()},127.0.0.1:{postgres.port}/rowlock?{schema}"
    for url in (by_socket, several):
        assert rowlock.here("jobs", "--json", "-d", url).json["jobs"] == []


def test_a_user_who_does_not_own_the_tables_may_copy_them_but_not_move_them(
    rowlock: CommandLine, postgres: PostgresServer, postgres_schema: str, limited: str
) -> None:
    app = Rowlock(postgres_schema)
    app.enqueue("add")
    app.close()
    schema, role = postgres_schema.rpartition("schema=")[2], f"limited_{postgres_schema.rpartition('_')[2]}"
    postgres.execute(
        f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}; "
        f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
    )
    assert "copy as the owner of its tables, or with --keep" in rowlock.refused_here(
        "copy", limited, "new.db"
    )
    assert rowlock.files() == set()
    assert rowlock.here("copy", limited, "new.db", "--keep").out.startswith("copied 1 job from")
