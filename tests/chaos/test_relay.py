"""Jobs and rows by way of RQ, while Redis is flushed and restarted and workers are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rowlock import Rowlock
from tests.chaos.storm import chosen_seed, chosen_size, say
from tests.relays.nursery import tables
from tests.servers.redis import RedisServer, redis_server

ROOT = Path(__file__).parents[2]


class RelayStorm:
    """Two `--via rq` workers for each kind of work ("jobs", "rows"), one Redis, and what happens to them."""

    def __init__(self, url: str, server: RedisServer, *kinds: str) -> None:
        self.url, self.server, self.kinds = url, server, kinds
        self.seed = chosen_seed()
        self.random = random.Random(self.seed)
        self.rows, self.effects = tables(url)
        say(f"\nthe relay's storm: ROWLOCK_CHAOS_SEED={self.seed}")
        self.app = Rowlock(url, lease=60.0)
        self.app.store.open()
        self.database = psycopg.connect(url.partition("?")[0], autocommit=True)
        self.execute(f"CREATE TABLE {self.rows} (id bigint PRIMARY KEY, status text DEFAULT 'pending')")
        self.execute(f"CREATE TABLE {self.effects} (what text)")
        self.workers: list[tuple[str, int]] = []
        self.kills = self.flushes = self.restarts = 0

    def __enter__(self) -> RelayStorm:
        command = [sys.executable, "-m", "tests.relays.nursery", self.url, self.server.url]
        self._nursery = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for what in self.kinds * 2:
            self.start(what)
        return self

    def __exit__(self, *_: object) -> None:
        for _, pid in self.workers:
            os.kill(pid, signal.SIGKILL)
        assert self._nursery.stdin and self._nursery.stdout
        self._nursery.stdin.close()
        self._nursery.wait()
        self._nursery.stdout.close()
        self.database.close()
        self.app.close()

    def execute(self, statement: str) -> list[Any]:
        cursor = self.database.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def fill(self, jobs: int, rows: int) -> None:
        self.app.store.open()
        for n in range(jobs):
            self.app.enqueue("apply", {"n": n})
        self.execute(f"INSERT INTO {self.rows} (id) SELECT generate_series(1, {rows})")

    def start(self, what: str) -> None:
        assert self._nursery.stdin and self._nursery.stdout
        self._nursery.stdin.write(f"{what}\n")
        self._nursery.stdin.flush()
        self.workers.append((what, int(self._nursery.stdout.readline())))

    def kill_one(self) -> None:
        what, pid = self.workers.pop(self.random.randrange(len(self.workers)))
        os.kill(pid, signal.SIGKILL)
        self.kills += 1
        self.start(what)

    def flush(self) -> None:
        with self.server.client() as client:
            client.flushall()
        self.flushes += 1

    def restart(self) -> None:
        self.server.kill()
        threading.Event().wait(self.random.uniform(0, 0.5))
        self.server.start()
        self.restarts += 1

    def unfinished(self) -> int:
        schema = self.rows.partition(".")[0]
        jobs = f"SELECT count(*) FROM {schema}.rowlock_jobs WHERE state <> 'completed'"
        rows = f"SELECT count(*) FROM {self.rows} WHERE status <> 'completed'"
        return int(self.execute(jobs)[0][0] + self.execute(rows)[0][0])

    def run(self, faults: list[str], every: float, kill_every: float, within: float) -> None:
        """Kill a worker every so often, with the other faults in between, until all is done."""
        began = time.monotonic()
        kill_at, fault_at = began + kill_every, began + every
        while self.unfinished() or faults:
            moment = time.monotonic()
            assert moment - began < within, f"{self.unfinished()} are not finished after {within} s"
            if moment >= kill_at:
                self.kill_one()
                kill_at = moment + kill_every
            if faults and moment >= fault_at:
                getattr(self, faults.pop())()
                fault_at = moment + every
            threading.Event().wait(0.05)

    def verdict(self, jobs: int, rows: int) -> None:
        effects = [what for (what,) in self.execute(f"SELECT what FROM {self.effects}")]
        say(
            f"{jobs} jobs and {rows} rows: {len(set(effects))} effects, {len(effects) - len(set(effects))} "
            f"doubled; {self.kills} kills, {self.flushes} flushes, {self.restarts} restarts"
        )
        expected = {f"job {n}" for n in range(jobs)} | {f"row {n}" for n in range(1, rows + 1)}
        assert sorted(effects) == sorted(expected)


def test_a_flushed_redis_and_killed_workers_lose_nothing_and_double_nothing(postgres_schema: str) -> None:
    with redis_server() as server, RelayStorm(postgres_schema, server, "jobs", "rows") as storm:
        storm.fill(40, 10)
        storm.run(["flush", "restart", "flush"], every=0.7, kill_every=1.0, within=100)
        storm.verdict(40, 10)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "count"), [("jobs", 2_000), ("rows", 500)])
def test_two_workers_get_all_work_done_in_a_storm(kind: str, count: int, postgres_schema: str) -> None:
    """2,000 jobs through two workers, then 500 rows through two others: one process takes jobs or rows.

    In each of the two, Redis is flushed 20 times and restarted 5 times, empty, and a worker is killed with -9
    every second, with its relay.
    """
    jobs, rows = (chosen_size(count), 0) if kind == "jobs" else (0, chosen_size(count))
    with redis_server() as server, RelayStorm(postgres_schema, server, kind) as storm:
        storm.fill(jobs, rows)
        faults = ["flush"] * 20 + ["restart"] * 5
        storm.random.shuffle(faults)
        began = time.monotonic()
        storm.run(faults, every=1.5, kill_every=1.0, within=1500)
        say(f"it took {time.monotonic() - began:.0f} s")
        storm.verdict(jobs, rows)
