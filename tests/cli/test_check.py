"""`rowlock check`, as a probe calls it: what is wrong in one line each, and the exit code."""

from __future__ import annotations

import re
import sqlite3
import time
from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.job import ClaimRequest
from rowlock.stores.sql.store import Store
from tests.cli.commands import CommandLine
from tests.servers.folders import free_port
from tests.stores.steps import add, end, take, worker

WELL, WRONG, USAGE, UNREACHABLE = 0, 1, 2, 3


@pytest.fixture
def store(shop: Rowlock) -> Store:
    shop.store.open()
    return shop.store


@pytest.fixture
def check(rowlock: CommandLine, store: Store) -> Any:
    """Calls `rowlock check` on the shop's queue, and returns what it says."""

    def call(*words: object, code: int) -> str:
        ended = rowlock.here("check", "-d", "jobs.db", *words, code=code)
        assert ended.err == ""
        return ended.out

    return call


def ago(seconds: float) -> float:
    return time.time() - seconds


def test_all_is_well_while_nothing_waits_or_somebody_works(check: Any, store: Store) -> None:
    assert check(code=WELL) == "all is well: 0 workers are alive, no job waits\n"
    worker(store, "w")
    add(store, now=ago(30))
    said = check("--max-age", 3600, code=WELL)
    assert said.startswith("all is well: 1 worker is alive, the oldest due job has waited for ")


def test_a_relay_alone_does_not_work(check: Any, store: Store, rowlock: CommandLine) -> None:
    add(store, queue="mail", now=ago(5))
    relay = worker(store, "relay")
    store.tell(relay, {"relay": "RQ"})
    store.hand_over(relay, ClaimRequest(count=1))
    said = "no worker is alive and jobs wait in mail (long); start one: rowlock worker module:app\n"
    assert ageless(check(code=WRONG)) == said
    listed = rowlock.here("workers", "-d", "jobs.db").out
    assert "relay is a relay: what it has claimed waits in RQ for a worker" in listed
    assert "no worker has begun it" in rowlock.here("job", "1", "-d", "jobs.db").out
    doctor = rowlock.here("doctor", "-d", "jobs.db", code=None).out
    assert "no worker is alive; 1 job" in doctor
    worker(store, "rq", queues=("mail",))
    assert check(code=WELL).startswith("all is well: 1 worker is alive")
    assert "1 alive, beside 1 relay\n" in rowlock.here("doctor", "-d", "jobs.db", code=None).out


def test_jobs_that_wait_while_nobody_lives_are_wrong_at_once(check: Any, store: Store) -> None:
    add(store, queue="mail", now=ago(5))
    said = "no worker is alive and jobs wait in mail (long); start one: rowlock worker module:app\n"
    assert ageless(check(code=WRONG)) == said
    worker(store, "silent", lease=60.0, now=ago(61))
    gone = worker(store, "gone")
    store.retire(gone)
    assert ageless(check(code=WRONG)) == said
    worker(store, "alive")
    assert check(code=WELL).startswith("all is well: 1 worker is alive")


def ageless(said: str) -> str:
    """How long exactly it was depends on how long the test takes."""
    return re.sub(r"\(\d+ s\)", "(long)", said)


def test_a_queue_that_no_living_worker_serves_is_named(check: Any, store: Store) -> None:
    worker(store, "w", queues=("mail",))
    add(store, queue="mail")
    assert check(code=WELL)
    add(store, queue="gpu")
    assert check(code=WRONG) == (
        "no living worker serves gpu, where jobs wait; start a worker for it, or one for all queues\n"
    )


def test_jobs_that_wait_for_too_long_are_wrong_though_somebody_lives(check: Any, store: Store) -> None:
    worker(store, "w")
    add(store, queue="mail", now=ago(90))
    add(store, queue="mail", priority=5)
    add(store, queue="gpu", now=ago(30))
    said = check("--max-age", 80, code=WRONG)
    assert ageless(said).startswith("jobs have waited for more than 80 s in mail (long); add workers")
    assert said.count("\n") == 1
    assert check("--max-age", 3600, code=WELL)
    assert "gpu (long), mail (long)" in ageless(check("--max-age", 0, code=WRONG))


def test_only_the_named_queues_are_looked_at_and_paused_ones_may_wait(check: Any, store: Store) -> None:
    worker(store, "w")
    add(store, queue="mail", now=ago(90))
    add(store, queue="gpu", now=ago(80))
    add(store, queue="fast")
    assert check("--queue", "fast", "-q", "none", code=WELL)
    said = check("-q", "gpu", "-q", "mail", "-q", "fast", code=WRONG)
    assert "gpu (long), mail (long)" in ageless(said)
    store.set_queue("mail", paused=True)
    assert "in gpu (long);" in ageless(check(code=WRONG))
    store.set_queue("gpu", paused=True)
    assert check(code=WELL)


def test_what_is_due_and_was_not_promoted_waits_too(check: Any, store: Store) -> None:
    add(store, delay=10.0, now=ago(50))
    add(store, delay=3600.0, queue="later")
    said = ageless(check(code=WRONG))
    assert said.startswith("no worker is alive and jobs wait in default (long);")


def test_what_runs_or_has_finished_does_not_wait(check: Any, store: Store) -> None:
    who = worker(store, "w")
    add(store, 2, now=ago(90))
    end(store, take(store, who)[0])
    take(store, who)
    assert check(code=WELL).endswith("no job waits\n")


def test_scripts_get_json(rowlock: CommandLine, store: Store) -> None:
    worker(store, "w")
    add(store, queue="mail", now=ago(90))
    told = rowlock.here("check", "-d", "jobs.db", "--json", code=WRONG).json
    assert (told["healthy"], told["workers"]) == (False, 1)
    assert told["waiting"]["mail"] == pytest.approx(90, abs=10)
    (finding,) = told["findings"]
    assert finding["check"] == "age" and finding["advice"]
    told = rowlock.here("check", "-d", "jobs.db", "--json", "--max-age", "1000", code=WELL).json
    assert (told["healthy"], told["findings"]) == (True, [])


def test_a_database_that_cannot_be_asked_has_a_code_of_its_own_and_nothing_is_created(
    rowlock: CommandLine,
) -> None:
    assert rowlock.refused_here("check", code=UNREACHABLE).startswith("no queue at rowlock.db; name it with")
    assert rowlock.refused_here("check", code=UNREACHABLE, ROWLOCK_APP="gone:app").endswith("without the app")
    nobody = f"postgresql://127.0.0.1:{free_port()}/shop"
    assert "cannot be reached" in rowlock.refused_here("check", "-d", nobody, code=UNREACHABLE)
    assert "mysql" in rowlock.refused_here("check", "-d", "mysql://host/db", code=UNREACHABLE)
    assert rowlock.files() == set()
    rowlock.write("letter.txt", "Dear database, " * 100)
    assert "is not a SQLite" in rowlock.refused_here("check", "-d", "letter.txt", code=UNREACHABLE)
    sqlite3.connect(rowlock.folder / "mine.db").close()
    assert "tables are not" in rowlock.refused_here("check", "-d", "mine.db", code=UNREACHABLE)


def test_a_wrong_command_line_has_the_usual_code(rowlock: CommandLine) -> None:
    for words in (["--max-age", "-1"], ["--max-age", "soon"], ["--max-age"], ["mail"], ["-d", ""]):
        assert rowlock.refused_here("check", *words, code=USAGE)


def test_a_server_is_asked_the_same_way(rowlock: CommandLine, postgres_schema: str) -> None:
    assert "run `rowlock init`" in rowlock.refused_here("check", "-d", postgres_schema, code=UNREACHABLE)
    queue = Rowlock(postgres_schema)
    queue.enqueue("add")
    said = rowlock.here("check", "-d", postgres_schema, code=WRONG).out
    assert ageless(said).startswith("no worker is alive and jobs wait in default (long);")
    worker(queue.store, "w", queues=("default",))
    assert rowlock("check", "-d", postgres_schema, code=WELL).out.startswith("all is well: 1 worker is alive")
    queue.close()
