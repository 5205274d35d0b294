"""Jobs and rows by way of a real RQ and a real Redis: what is kept there, and what comes back."""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rq import Queue
from rq.command import send_shutdown_command
from rq.registry import clean_registries
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend

from rowlock import Rowlock, Status, resident
from rowlock.errors import ConfigurationError
from rowlock.relays import base, rq
from rowlock.relays.redis_connection import connect
from rowlock.relays.rq import run
from rowlock.relays.rq_target import FUNCTION, RqTarget, check_version
from rowlock.relays.via import Relays, ViaRq
from tests.eventually import eventually
from tests.relays.fleet import Fleet, relaying
from tests.servers.redis import RedisServer
from tests.stores.steps import new


class Gate:
    """A run that a test holds for as long as it likes; also counts how often its model was loaded."""

    def __init__(self) -> None:
        self.began, self.open = threading.Event(), threading.Event()
        self.loaded: list[int] = []
        self.runs: list[int] = []

    def load(self) -> str:
        self.loaded.append(os.getpid())
        return "model"


@pytest.fixture
def gate(app: Rowlock) -> Gate:
    """An app with a task that needs a model, and one that waits."""
    made = Gate()
    model = resident(made.load)

    @app.task
    def segment(n: int, model: str = model) -> str:
        made.runs.append(n)
        return model

    @app.task
    def wait(model: str = model) -> str:
        made.began.set()
        assert made.open.wait(100)
        return model

    return made


def test_a_job_goes_through_rq_and_leaves_nothing_there(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    with fleet.working() as worker:
        jobs = [app.enqueue("segment", {"n": n}) for n in range(3)]
        assert [app.result(job, timeout=50) for job in jobs] == ["model"] * 3
        assert app.job(jobs[0]).claimed_by == worker.id
    assert gate.runs == [0, 1, 2] and len(gate.loaded) == 1
    assert fleet.hashes() == fleet.waiting() == fleet.popped() == []


def test_rq_carries_ids_only_under_names_of_this_database(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    job, install = app.enqueue("segment", {"n": 1}), fleet.names.install
    fleet.relay().run_once()
    assert fleet.waiting() == [f"rowlock-{install}-job-{job.id}-1"]
    found = fleet.pop()
    assert json.loads(found.data) == [FUNCTION, None, [install, "job", str(job.id), 1], {}]
    assert (found.timeout, found.result_ttl, found.failure_ttl, found.retries_left) == (-1, 0, 0, None)
    assert fleet.redis.ttl(f"rq:job:{found.id}") > 0


def test_rows_of_a_consumer_go_through_rq(app: Rowlock, fleet: Fleet) -> None:
    _create_orders(app, *range(3))
    app.consumer("orders", table="orders", status=Status("status"))(lambda order: order.id)
    with fleet.working("consumer:orders"):
        eventually(lambda: _orders(app) == ["completed"] * 3, timeout=50)
    assert fleet.hashes() == []
    assert "consumer-orders" in fleet.queue("consumer:orders").name


def test_a_row_whose_key_is_the_empty_text_goes_through_rq(
    app: Rowlock, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    _create_orders(app, "", "0", key="TEXT")
    app.consumer("orders", table="orders", status=Status("status"))(lambda order: order.id)
    with fleet.working("consumer:orders"):
        eventually(lambda: _orders(app) == ["completed"] * 2, timeout=50)
    assert fleet.hashes() == [] and "refused" not in caplog.text


def test_a_batch_of_rows_is_one_rq_job(app: Rowlock, fleet: Fleet) -> None:
    _create_orders(app, *range(5))
    sizes: list[int] = []
    app.consumer("orders", table="orders", status=Status("status"), batch=3)(
        lambda orders: sizes.append(len(orders))
    )
    fleet.relay("consumer:orders").run_once()
    assert len(fleet.waiting("consumer:orders")) == 2
    with fleet.worker("consumer:orders"):
        eventually(lambda: _orders(app) == ["completed"] * 5, timeout=50)
    assert sizes == [3, 2]


def test_a_worker_without_named_queues_finds_them(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    with fleet.working():
        job = app.enqueue("segment", {"n": 1}, queue="made up just now")
        assert app.result(job, timeout=50) == "model"


@pytest.mark.parametrize("name", ["consumer-orders", "consumer:orders", "queue-consumer-orders"])
def test_jobs_of_a_queue_that_is_called_like_a_consumers_are_run(
    app: Rowlock, fleet: Fleet, gate: Gate, name: str
) -> None:
    _create_orders(app, 1)
    app.consumer("orders", table="orders", status=Status("status"))(lambda order: order.id)
    job = app.enqueue("segment", {"n": 1}, queue=name)
    relay, rows = fleet.relay(), fleet.relay("consumer:orders")
    relay.run_once()
    rows.run_once()
    assert len(fleet.waiting("consumer:orders")) == 1  # the row, and not the job
    with fleet.worker():
        assert app.result(job, timeout=50) == "model"
    assert _orders(app) == ["running"] and app.job(job).claim == 1


def test_a_queue_that_is_called_like_a_consumers_may_be_named(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    job = app.enqueue("segment", {"n": 1}, queue="consumer-orders")
    with fleet.working("consumer-orders"):
        assert app.result(job, timeout=50) == "model"


def test_a_worker_of_several_queues_leaves_nothing_behind(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    with fleet.working("a", "b", "default"):
        jobs = [app.enqueue("segment", {"n": 1}, queue=name) for name in ("a", "b", "default")]
        assert [app.result(job, timeout=50) for job in jobs] == ["model"] * 3
    assert fleet.hashes() == []


@pytest.mark.parametrize("queues", [("default",), ("default", "other")])
def test_a_job_that_was_popped_by_a_worker_that_died_comes_back(
    app: Rowlock, fleet: Fleet, gate: Gate, queues: tuple[str, ...]
) -> None:
    """With one queue RQ keeps a popped id in a list, with two it keeps nothing but the hash."""
    relay, job = fleet.relay(), app.enqueue("segment", {"n": 1})
    relay.run_once()
    assert fleet.pop(queues) is not None
    assert len(fleet.popped()) == (len(queues) == 1) and len(fleet.hashes()) == 1
    relay.look()
    assert app.job(job).state == "running"
    relay.look()
    assert (app.job(job).state, app.job(job).failures) == ("queued", 0)
    assert fleet.popped() == fleet.hashes() == []


def test_ids_that_a_dead_relay_left_behind_hold_nobody_up(
    tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Rowlock(f"sqlite:///{tmp_path / 'jobs.db'}", poll_interval=60)
    add = app.task(lambda n: n, name="add")
    jobs = [add.enqueue(n) for n in range(5)]
    with closing(app), closing(Fleet(app, redis)) as fleet:
        with monkeypatch.context() as killed:
            killed.setattr(RqTarget, "remove", lambda target, claims: None)
            dead = fleet.relay()
            dead.run_once()
            dead.close()
        fleet.relay().run_once()
        assert len(fleet.waiting()) == 10
        with fleet.worker():
            assert [app.result(job, timeout=50) for job in jobs] == list(range(5))


def test_what_a_flush_took_away_comes_back_within_a_lease(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    jobs = [app.enqueue("segment", {"n": n}) for n in range(3)]
    with relaying(fleet.relay()):
        eventually(lambda: len(fleet.waiting()) == 3)
        fleet.redis.flushall()
        with fleet.worker():
            assert [app.result(job, timeout=50) for job in jobs] == ["model"] * 3
    assert sorted(gate.runs) == [0, 1, 2]
    assert all(app.job(job).failures == 0 for job in jobs)


def test_an_idle_worker_goes_on_after_a_flush(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    with fleet.working():
        assert app.result(app.enqueue("segment", {"n": 1}), timeout=50) == "model"
        fleet.redis.flushall()
        assert app.result(app.enqueue("segment", {"n": 2}), timeout=50) == "model"


def test_a_redis_that_is_gone_for_long_in_the_middle_of_a_run_costs_nothing(
    app: Rowlock,
    fleet: Fleet,
    gate: Gate,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Same process, model loaded once, outcome written; it is said once, and work goes on when it is back."""
    for module in (base, rq):
        monkeypatch.setattr(module, "_BACKOFF_MOST", 0.02)  # instead of a minute with 30 tries
    relay = fleet.relay()
    with caplog.at_level(logging.INFO, "rowlock.relay"), fleet.worker() as worker, relaying(relay):
        running = app.enqueue("wait")
        assert gate.began.wait(100)
        redis.kill()
        waiting = app.enqueue("segment", {"n": 1})
        gate.open.set()
        assert app.result(running, timeout=50) == "model"
        eventually(lambda: relay._failing > 30)
        assert app.job(waiting).state == "queued"
        redis.start()
        assert app.result(waiting, timeout=50) == "model"
        assert app.job(waiting).claimed_by == worker.id
    assert gate.loaded == [os.getpid()]
    assert app.job(running).claim == 1
    outage = ("cannot be reached", "can be used again")
    said = [one.levelname for one in caplog.records if any(words in one.message for words in outage)]
    assert said == ["ERROR", "INFO"], caplog.messages


def test_a_long_run_is_nobody_elses_business(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    """RQ calls a run dead after 420 s without a beat; here that time is made to have passed."""
    with fleet.working():
        job = app.enqueue("wait")
        assert gate.began.wait(100)
        eventually(lambda: fleet.hashes() == [])  # there is nothing of the run that RQ could judge
        for key in fleet.redis.keys("rq:wip:*"):
            for member in fleet.redis.zrange(key, 0, -1):
                fleet.redis.zadd(key, {member: time.time() - 500})
        clean_registries(fleet.queue())
        fleet.queue().intermediate_queue.cleanup(None, fleet.queue())  # type: ignore[arg-type]
        gate.open.set()
        assert app.result(job, timeout=50) == "model"
    assert app.job(job).claim == 1 and app.job(job).failures == 0


def test_rq_sees_the_worker_also_after_a_flush(
    app: Rowlock, fleet: Fleet, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowlock.relays.rq._BEAT_SECONDS", 0.05)
    with fleet.working():
        job = app.enqueue("wait")
        assert gate.began.wait(100)
        fleet.redis.flushall()
        (key,) = eventually(lambda: fleet.redis.smembers("rq:workers"))
        eventually(lambda: fleet.redis.hget(key, "state") == "busy")
        assert fleet.redis.ttl(key) > 0
        gate.open.set()
        app.result(job, timeout=50)
    assert fleet.redis.smembers("rq:workers") == set()


# -- nothing that Redis says is trusted ------------------------------------------------------------


def forged(fleet: Fleet, data: bytes, id: str = "forged", **members: str) -> None:
    key = f"rq:job:{id}"
    fleet.redis.hset(key, mapping={"data": data, "status": "queued", "created_at": "x", **members})
    fleet.redis.hset(key, "created_at", "2026-01-01T00:00:00.000000Z")
    fleet.redis.rpush(fleet.queue().key, id)


def named(fleet: Fleet, *arguments: Any) -> bytes:
    return json.dumps([FUNCTION, None, list(arguments), {}]).encode()


def test_what_was_forged_is_refused_and_the_rest_is_worked_on(
    app: Rowlock, fleet: Fleet, gate: Gate, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mark, install = tmp_path / "forged", fleet.names.install
    forged(fleet, json.dumps(["os.mkdir", None, [str(mark)], {}]).encode())
    forged(fleet, pickle.dumps((print, None, (), {})), "pickled")
    forged(fleet, b"{", "broken")
    forged(fleet, named(fleet, "another database", "job", "1", 1), "foreign")
    forged(fleet, named(fleet, install, "job", "1; DROP TABLE", 1), "no-number")
    forged(fleet, named(fleet, install, "job", "1", -1), f"rowlock-{install}-job-1--1")
    forged(fleet, named(fleet, install, "job", "1", 2**31), f"rowlock-{install}-job-1-{2**31}")
    forged(fleet, named(fleet, install, "consumer:orders", "1", 1), f"rowlock-{install}-row-1")
    forged(fleet, named(fleet, install, "job", "1", 1), "with-another-id")
    forged(fleet, named(fleet, install, "job", "77", 1), f"rowlock-{install}-job-77-1")  # no such claim
    forged(fleet, b"x", "bad-status", status="no status of RQ's")
    forged(fleet, b"x", "bad-number", timeout="x", result_ttl="x")
    with caplog.at_level(logging.INFO, "rowlock"), fleet.working():
        job = app.enqueue("segment", {"n": 1})
        assert app.result(job, timeout=50) == "model"
    assert not mark.exists() and gate.runs == [1]
    assert fleet.hashes() == fleet.waiting() == fleet.popped() == []
    refused = [record for record in caplog.records if "refused" in record.message]
    assert len(refused) == 11 and not [record for record in caplog.records if record.exc_info]


def test_an_id_in_the_list_of_another_queue_is_not_begun_there(
    app: Rowlock, fleet: Fleet, gate: Gate
) -> None:
    elsewhere, here = app.enqueue("segment", {"n": 1}, queue="gpu"), app.enqueue("segment", {"n": 2})
    relay = fleet.relay()
    relay.run_once()
    fleet.redis.lpush(fleet.queue().key, *fleet.waiting("gpu"))
    with fleet.worker("default"):
        assert app.result(here, timeout=50) == "model"
    assert gate.runs == [2] and app.job(elsewhere).started_at is None
    with fleet.worker("gpu"), relaying(relay):  # its hash is gone: it is sent again
        assert app.result(elsewhere, timeout=50) == "model"
    assert app.job(elsewhere).failures == 0


def test_callbacks_that_redis_names_are_never_called(
    app: Rowlock, fleet: Fleet, gate: Gate, tmp_path: Any
) -> None:
    job = app.enqueue("segment", {"n": 1})
    fleet.relay().run_once()
    (id,) = fleet.waiting()
    for event in ("success", "failure", "stopped"):
        fleet.redis.hset(f"rq:job:{id}", f"{event}_callback_name", "os.abort")
    fleet.redis.zadd(f"rq:wip:{fleet.queue().name}", {f"{id}:1": time.time() - 500})
    with fleet.worker():
        assert app.result(job, timeout=50) == "model"


def test_a_suspended_worker_takes_nothing_until_it_is_resumed(
    app: Rowlock, fleet: Fleet, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    suspend(fleet.redis)
    with caplog.at_level(logging.INFO, "rowlock.relay"), fleet.working():
        job = app.enqueue("segment", {"n": 1})
        eventually(lambda: "suspended" in caplog.text and fleet.waiting())
        assert app.job(job).started_at is None
        resume(fleet.redis)
        assert app.result(job, timeout=50) == "model"


def test_an_id_that_is_no_text_does_not_stay(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    with fleet.working():
        fleet.redis.rpush(f"{fleet.queue().key}:intermediate", b"\xff")
        fleet.redis.rpush(fleet.queue().key, b"\xfe")
        assert app.result(app.enqueue("segment", {"n": 1}), timeout=50) == "model"
        raw = connect(fleet.server.url)
        eventually(lambda: raw.lrange(f"{fleet.queue().key}:intermediate", 0, -1) == [])
        raw.close()


def test_a_command_by_pub_sub_does_not_reach_the_worker(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    with fleet.working():
        job = app.enqueue("wait")
        assert gate.began.wait(100)
        (key,) = eventually(lambda: fleet.redis.smembers("rq:workers"))
        name = key.removeprefix("rq:worker:")
        send_shutdown_command(fleet.redis, name)
        assert fleet.redis.pubsub_numsub(f"rq:pubsub:{name}")[0][1] == 0
        gate.open.set()
        assert app.result(job, timeout=50) == "model"
        assert app.result(app.enqueue("segment", {"n": 1}), timeout=50) == "model"


def test_the_function_that_rq_is_given_runs_nothing(fleet: Fleet) -> None:
    with pytest.raises(RuntimeError, match="RowlockWorker"):
        run(fleet.names.install, "job", "1", 1)


def test_two_databases_share_a_redis(app: Rowlock, fleet: Fleet, gate: Gate, tmp_path: Any) -> None:
    other = Rowlock(f"sqlite:///{tmp_path / 'other.db'}", lease=2.0)
    ran: list[int] = []
    other.task(name="segment")(lambda n: ran.append(n) or None)
    theirs = Fleet(other, fleet.server)
    jobs = [one.enqueue("segment", {"n": 7}) for one in (app, other)]
    with fleet.working(), theirs.working():
        assert app.result(jobs[0], timeout=50) == "model"
        assert other.result(jobs[1], timeout=50) is None
    assert gate.runs == ran == [7]
    theirs.close()
    other.close()


def test_the_teams_own_rq_jobs_are_never_popped(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    own = Queue("default", connection=fleet.queue().connection, serializer=JSONSerializer)
    own.enqueue("os.getpid")
    with fleet.working():
        assert app.result(app.enqueue("segment", {"n": 1}), timeout=50) == "model"
    assert len(own) == 1


def test_an_rq_that_is_too_old_is_told(fleet: Fleet) -> None:
    with pytest.raises(ConfigurationError, match=r"RQ 1\.16\.2 is too old: the relay needs 2\."):
        check_version("1.16.2")
    check_version()


# -- starts that find something else ---------------------------------------------------------------


def test_a_cancel_an_expiry_and_a_pause_are_seen_at_the_start(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    cancelled = app.enqueue("segment", {"n": 1})
    late = app.enqueue("segment", {"n": 2}, expires=0.2)
    paused = app.enqueue("segment", {"n": 3}, queue="later")
    relay = fleet.relay()
    relay.run_once()
    app.cancel(cancelled)
    app.pause("later")
    eventually(lambda: time.time() > late.created_at.timestamp() + 0.3)
    with fleet.worker("default", "later"):
        eventually(lambda: app.job(cancelled).state == "cancelled", timeout=50)
        eventually(lambda: app.job(late).state == "failed", timeout=50)
        eventually(lambda: app.job(paused).state == "queued", timeout=50)
    assert app.job(late).error_kind == "expired" and gate.runs == []


def test_a_worker_that_is_stopped_puts_back_what_it_popped(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    with fleet.worker() as worker:
        app.enqueue("wait")
        relay = fleet.relay()
        relay.run_once()
        assert gate.began.wait(100)
        waiting = app.enqueue("segment", {"n": 1})
        relay.run_once()
        worker.stop()
        gate.open.set()
    assert app.job(waiting).started_at is None and len(fleet.waiting()) == 1


def test_a_task_that_the_worker_does_not_know_waits(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    """As in the middle of a deploy: it must not be handed over and given back all the time."""
    newer = Rowlock(app.settings.database_url, lease=2.0)
    newer.task(name="new")(lambda: None)
    with fleet.worker(), relaying(Fleet(newer, fleet.server).relay()):
        job = newer.enqueue("new")
        eventually(lambda: app.job(job.id).state == "scheduled", timeout=50)
    newer.close()


def test_a_worker_behind_a_relay_leaves_maintenance_to_it(app: Rowlock, fleet: Fleet, gate: Gate) -> None:
    args = '{"n": 1}'
    (late,) = app.store.insert([new("segment", args=args, delay=1.0)], now=time.time() - 100)
    with fleet.worker() as worker:
        worker.polls.maintenance.take()
        assert app.job(late.id).state == "scheduled"
        with relaying(fleet.relay()):
            assert app.result(late.id, timeout=50) == "model"


def _create_orders(app: Rowlock, *ids: Any, key: str = "INTEGER") -> None:
    app.store.open()
    with app.store.database.write() as tx:
        tx.connection.execute(f"CREATE TABLE orders (id {key} PRIMARY KEY, status TEXT DEFAULT 'pending')")
        tx.connection.executemany("INSERT INTO orders (id) VALUES (?)", [(id,) for id in ids])


def _orders(app: Rowlock) -> list[str]:
    with app.store.database.read() as db:
        return [row[0] for row in db.connection.execute("SELECT status FROM orders ORDER BY id")]


# -- a relay that fails -----------------------------------------------------------------------------


def test_a_worker_ends_with_its_relay(app: Rowlock, redis: RedisServer, monkeypatch: Any, gate: Gate) -> None:
    monkeypatch.setenv("REDIS_URL", redis.url)
    via = ViaRq(app, [], grace=1.0)
    monkeypatch.setattr(via.relay, "run_once", _fails)
    with via.worker.background():
        eventually(lambda: via.worker.ended == "finished", timeout=5)
    with pytest.raises(ConfigurationError, match="the table is gone"), via.ending():
        pass


def test_a_relay_that_fails_ends_the_others_in_good_order(
    app: Rowlock, redis: RedisServer, monkeypatch: Any, gate: Gate
) -> None:
    monkeypatch.setenv("REDIS_URL", redis.url)
    job = app.enqueue("segment", {"n": 1})
    relays = Relays(app, ["default"])
    other = Relays(app, ["other"]).relays[0]
    relays.relays.insert(0, other)

    def fails() -> None:
        eventually(lambda: app.job(job).state == "running")
        _fails()

    monkeypatch.setattr(other, "run_once", fails)
    with pytest.raises(ConfigurationError, match="the table is gone"):
        relays.run()
    assert app.job(job).state == "queued" and not any(one.alive for one in app.store.workers())


def _fails() -> None:
    raise ConfigurationError("the table is gone")
