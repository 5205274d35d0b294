"""`rowlock worker --via rq`, `rowlock consume --via rq`, `rowlock relay`, and the `rq worker` of a team."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rowlock import Rowlock
from tests.cli.commands import CommandLine, environment_with
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer, redis_server

LAB = """
import os
from pathlib import Path

from rowlock import Rowlock, Status, resident

app = Rowlock("sqlite:///jobs.db", poll_interval=0.1, lease=2.0)


def load():
    with open("loaded", "a") as file:
        print(os.getpid(), file=file)
    return "model"


@app.task
def segment(n: int, model: str = resident(load)) -> str:
    return model


@app.task(queue="gpu")
def wait_for_the_go() -> None:
    Path("started").touch()
    while not Path("go").exists():
        pass


@app.consumer("images", table="images", status=Status("status"))
def images(image, model: str = resident(load)) -> None:
    pass
"""


@pytest.fixture
def lab(rowlock: CommandLine) -> Rowlock:
    """A folder with lab.py and its queue, as seen from here."""
    rowlock.write("lab.py", LAB)
    queue = Rowlock(f"sqlite:///{rowlock.folder / 'jobs.db'}")
    queue.store.open()
    with sqlite3.connect(rowlock.folder / "jobs.db") as connection:
        connection.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'pending')")
        connection.execute("INSERT INTO images (id) VALUES (1), (2)")
    return queue


def with_long_lease(rowlock: CommandLine) -> None:
    """For what a machine may be too busy for within two seconds."""
    rowlock.write("lab.py", LAB.replace("lease=2.0", "lease=60.0"))


@contextmanager
def rq_worker(
    rowlock: CommandLine, redis: RedisServer, *options: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """RQ's own command, as a team starts it; what it says is in rq.txt."""
    how = ("--worker-class", "rowlock.relays.rq.RowlockWorker", "--url", redis.url)
    with (rowlock.folder / "rq.txt").open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("rq")), "worker", *how, *options],
            cwd=rowlock.folder,
            env=environment_with({"ROWLOCK_APP": "lab:app", **environment}),
            stdout=said,
            stderr=said,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in rq_said(rowlock)


def rq_said(rowlock: CommandLine) -> str:
    return (rowlock.folder / "rq.txt").read_text(encoding="utf-8")


def loaded(rowlock: CommandLine) -> int:
    path = rowlock.folder / "loaded"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_worker_via_rq_works_until_nothing_is_left(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    jobs = [lab.enqueue("segment", {"n": n}) for n in range(3)]
    ended = rowlock("worker", "lab:app", "--via", "rq", "--until-empty", REDIS_URL=redis.url)
    assert "by way of rq at redis://" in ended.out and "3 completed" in ended.out
    assert [lab.job(job).result for job in jobs] == ["model"] * 3
    assert loaded(rowlock) == 1
    assert not any(one.alive for one in lab.store.workers())
    with redis.client() as client:
        assert client.keys("rq:job:*") == []


def test_a_consumer_via_rq_works_until_no_row_is_left(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    rowlock("consume", "lab:app", "images", "--via", "rq", "--burst", REDIS_URL=redis.url)
    with sqlite3.connect(rowlock.folder / "jobs.db") as connection:
        assert connection.execute("SELECT status FROM images").fetchall() == [("completed",)] * 2
    assert loaded(rowlock) == 1


def test_a_relay_alone_serves_workers_that_rq_starts(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    with_long_lease(rowlock)  # between the pop and the start a relay must not take it back
    job = lab.enqueue("segment", {"n": 1})
    relay = ("relay", "lab:app", "--target", "rq", "--queue", "default")
    with (
        rq_worker(rowlock, redis, "--max-jobs", "1", "--with-scheduler") as worker,
        rowlock.start(*relay, REDIS_URL=redis.url) as started,
    ):
        assert lab.result(job, timeout=60) == "model"
        started.signal("SIGTERM")
        code, out = started.ends()
        assert code == 0 and "1 handed over, 0 taken back" in out
        assert worker.wait(60) == 0
    assert "--with-scheduler is not used" in rq_said(rowlock)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_signals_and_exit_codes_are_those_of_a_worker(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    """RQ's own handlers would wait without limit, and raise inside the job the second time."""
    job = lab.enqueue("wait_for_the_go", queue="gpu")
    command = ("worker", "lab:app", "--via", "rq", "--grace", "0.2", "--queue", "gpu")
    with rowlock.start(*command, REDIS_URL=redis.url) as worker:
        eventually((rowlock.folder / "started").exists, timeout=60)
        worker.signal("SIGTERM")
        code, _ = worker.ends()
    assert code == 3 and "the grace of 0.2 s is over" in worker.err
    assert (lab.job(job).state, lab.job(job).failures) == ("queued", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_signals_are_handled_until_the_process_is_gone(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    with_long_lease(rowlock)  # all are alive together, also while they keep each other from beating
    chosen = {"REDIS_URL": redis.url, "ROWLOCK_APP": "lab:app"}
    with (
        rowlock.start("worker", **chosen) as plain,
        rowlock.start("worker", "--via", "rq", **chosen) as via,
        rowlock.start("relay", **chosen) as relay,
        rq_worker(rowlock, redis) as of_rq,
    ):
        ours = (plain, via, relay)
        processes = [of_rq, *(one.process for one in ours)]
        # One of each, one more of the second, and one more relay for the consumer.
        eventually(lambda: sum(one.alive for one in lab.store.workers()) == 6, timeout=100)

        def ended() -> bool:
            for process in processes:
                process.terminate()
            return all(process.poll() is not None for process in processes)

        eventually(ended, timeout=60)
        codes = {of_rq.returncode, *(one.ends()[0] for one in ours)}
    assert codes <= {0, 143}


def test_what_does_not_go_with_it_is_refused(rowlock: CommandLine, lab: Rowlock) -> None:
    via = ("worker", "lab:app", "--via")
    assert "one run at a time" in rowlock.refused_here(*via, "rq", "--concurrency", 2, code=2)
    assert "--pool process does not go with --via rq" in rowlock.refused_here(
        *via, "rq", "--pool", "process", code=2
    )
    assert "must be one of rq" in rowlock.refused_here(*via, "celery", code=2)
    assert "must be one of rq" in rowlock.refused_here("relay", "lab:app", "--target", "sqs", code=2)


def test_redis_that_cannot_be_used_ends_it_at_once_with_the_reason(
    rowlock: CommandLine, lab: Rowlock
) -> None:
    commands = (("worker", "lab:app", "--via", "rq"), ("relay", "lab:app"))
    for command in commands:
        said = rowlock.refused_here(*command, REDIS_URL="redis://127.0.0.1:1")
        assert said.startswith("Redis at redis://127.0.0.1:1 cannot be reached: ")
    for name in ("REDIS_URL", "ROWLOCK_REDIS_URL"):
        assert rowlock.refused_here(*commands[0], **{name: "nonsense"}).startswith(f"{name}='nonsense'")
    said = rowlock.refused_here(*commands[0], REDIS_URL="redis://:se/cret@127.0.0.1:1")
    assert said.startswith("REDIS_URL='redis://:***@127.0.0.1:1': it cannot be read") and "'se'" not in said
    with redis_server("--requirepass", "secret") as server:
        assert "it wants a password" in rowlock.refused_here(*commands[0], REDIS_URL=server.url)
        wrong = server.url.replace("://", "://:wrong@")
        said = rowlock.refused_here(*commands[0], REDIS_URL=wrong)
        assert "it refuses the password" in said and "wrong" not in said.partition("password")[0]
    with redis_server("--maxmemory", "1", "--maxmemory-policy", "noeviction") as server:
        assert "it is out of memory" in rowlock.refused_here(*commands[0], REDIS_URL=server.url)
    with redis_server("--replicaof", "127.0.0.1", "1") as server:
        assert "it is a read-only replica" in rowlock.refused_here(*commands[0], REDIS_URL=server.url)
        with rq_worker(rowlock, server) as worker:
            assert worker.wait(30) == 1
        assert "it is a read-only replica" in rq_said(rowlock) and loaded(rowlock) == 0


def test_a_database_that_is_down_is_waited_for_and_told_once(
    rowlock: CommandLine, redis: RedisServer, own_postgres: PostgresServer
) -> None:
    """At the start, and later."""
    rowlock.write("lab.py", LAB.replace("sqlite:///jobs.db", own_postgres.url))
    app = Rowlock(own_postgres.url)
    own_postgres.stop()
    with (
        rowlock.start("relay", "lab:app", "-q", "default", REDIS_URL=redis.url) as relay,
        rq_worker(rowlock, redis, "default"),
    ):

        def told(words: str) -> list[int]:
            return [said.count(words) for said in (relay.err, rq_said(rowlock))]

        waits = "the worker waits and goes on trying"
        eventually(lambda: 0 not in told(waits), timeout=60)
        own_postgres.start()
        assert app.result(app.enqueue("segment", {"n": 1}), timeout=60) == "model"
        own_postgres.restart()
        assert app.result(app.enqueue("segment", {"n": 2}), timeout=60) == "model"
        assert told(waits) == [1, 1] and told("Traceback") == [0, 0]
        relay.signal("SIGTERM")
        assert relay.ends()[0] == 0
    app.close()


def test_an_outage_is_told_once_for_a_worker_and_its_relay(
    rowlock: CommandLine, redis: RedisServer, own_postgres: PostgresServer
) -> None:
    rowlock.write("lab.py", LAB.replace("sqlite:///jobs.db", own_postgres.url))
    app = Rowlock(own_postgres.url)
    with rowlock.start("worker", "lab:app", "--via", "rq", REDIS_URL=redis.url) as worker:

        def told(words: str) -> int:
            return worker.err.count(words)

        def works_again(n: int) -> None:
            eventually(lambda: told("can be used again") == n, timeout=60)
            assert app.result(app.enqueue("segment", {"n": n}), timeout=60) == "model"

        works_again(0)
        redis.kill()
        eventually(lambda: told("Redis at") > 0, timeout=60)
        redis.start()
        works_again(1)
        own_postgres.stop()
        eventually(lambda: told("the store cannot be used") and told("the heartbeat cannot"), timeout=60)
        own_postgres.start()
        works_again(2)
        worker.signal("SIGTERM")
        assert worker.ends()[0] == 0
    assert (told("ERROR"), told("the heartbeat cannot"), told("can be used again")) == (2, 1, 2), worker.err
    app.close()


def test_rows_that_can_never_be_overdue_are_told(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    command = ("consume", "lab:app", "images", "--via", "rq", "--until-empty")
    ended = rowlock(*command, REDIS_URL=redis.url, FAILED_JOB_TIMEOUT_SECONDS="60")
    assert "rows of images are never overdue" in ended.err


def test_a_consumer_without_its_table_is_told_at_the_start(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    """And not by a thread that dies, beside a worker that waits for work for ever."""
    with sqlite3.connect(rowlock.folder / "jobs.db") as connection:
        connection.execute("DROP TABLE images")
    told = "consumer 'images': there is no table images in this database"
    for command in (("consume", "lab:app", "images", "--via", "rq", "--until-empty"), ("relay", "lab:app")):
        assert rowlock.refused_here(*command, REDIS_URL=redis.url).startswith(told)
    with rq_worker(rowlock, redis, "consumer:images") as worker:
        assert worker.wait(30) == 1
    assert told in rq_said(rowlock)
    assert lab.store.workers() == [] and loaded(rowlock) == 0


def test_rq_s_own_command_says_which_app_it_lacks(rowlock: CommandLine, redis: RedisServer) -> None:
    with rq_worker(rowlock, redis, ROWLOCK_APP="") as worker:
        assert worker.wait(60) == 1
    assert "ROWLOCK_APP=module:app" in rq_said(rowlock)
    with rq_worker(rowlock, redis, ROWLOCK_APP="shop:app") as worker:
        assert worker.wait(30) == 1
    assert "ROWLOCK_APP='shop:app' cannot be imported: ModuleNotFoundError" in rq_said(rowlock)
    assert os.listdir(rowlock.folder) == ["rq.txt"]


def test_the_doctor_shows_settings_with_their_sources_and_looks_at_redis(
    rowlock: CommandLine, lab: Rowlock, redis: RedisServer
) -> None:
    chosen = {"ROWLOCK_APP": "lab:app", "ROWLOCK_PROFILE": "dev", "REDIS_URL": redis.url}
    found = {
        one["check"]: one for one in rowlock.here("doctor", "--json", code=None, **chosen).json["findings"]
    }
    said = found["settings"]["message"]
    assert f"redis_url {redis.url} (REDIS_URL)" in said and "lease 2 s (argument)" in said
    assert "failed_after never, in a relay 120 s (profile dev)" in said and "concurrency 4 (default)" in said
    assert (found["Redis"]["level"], found["Redis eviction"]["level"]) == ("ok", "ok")
    assert "nothing was handed over so far" in found["Redis queues"]["message"]


def test_the_doctor_says_what_is_wrong_with_redis(rowlock: CommandLine, lab: Rowlock) -> None:
    def findings(**chosen: str) -> dict[str, str]:
        asked = rowlock.here("doctor", "--json", "-d", "jobs.db", code=None, **chosen)
        return {one["check"]: f"{one['level']}: {one['message']}" for one in asked.json["findings"]}

    assert "Redis" not in findings()
    assert findings(REDIS_URL="redis://127.0.0.1:1")["Redis"].startswith(
        "error: Redis at redis://127.0.0.1:1 cannot"
    )
    with redis_server("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        assert findings(REDIS_URL=server.url)["Redis eviction"].startswith("warning: it drops keys")


def test_a_queue_in_duckdb_is_refused_whether_redis_is_there_or_not(rowlock: CommandLine) -> None:
    rowlock.write("duck.py", "from rowlock import Rowlock\napp = Rowlock('duckdb:///data.duckdb')\n")
    for command in (("relay", "duck:app"), ("worker", "duck:app", "--via", "rq")):
        refused = rowlock.here(*command, code=1, REDIS_URL="redis://127.0.0.1:1")
        assert "the relay is not for a queue in DuckDB" in refused.err
