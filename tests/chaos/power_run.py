"""One program that uses a queue until its power is cut: run as a process, it records every step.

    python -m tests.chaos.power_run DATABASE SEED STEPS SYNCHRONOUS LIBRARY RECORD

The workload is drawn from the seed, on one thread, so that the same seed gives the same record. The library
is apsw, on a file system that records; old-apsw, the same with rowlock's own checkpoints; or sqlite3,
Python's own, and then whoever traces this process has the record of the files.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tests.chaos import other_sqlite
from tests.chaos.disk import Record
from tests.chaos.glimpse import glimpse
from tests.chaos.recording_vfs import RecordingVfs

if TYPE_CHECKING:
    from rowlock.job import Claim, Outcome

NOW = 1_800_000_000.0


class Program:
    """A producer and a worker with connections of their own, doing one small thing after the other."""

    def __init__(self, database: str, chance: random.Random, record: Record) -> None:
        from rowlock.stores.sqlite import SqliteStore

        self.record = record
        self.chance = chance
        self.now = NOW
        self.producer = SqliteStore(database)
        self.worker = SqliteStore(database)
        self.me = ""
        self.held: list[Claim] = []
        self.step = 0
        self.steps: list[tuple[int, Callable[[], Any]]] = [
            (30, self.enqueue),
            (15, self.enqueue_many),
            (35, self.exchange),
            (10, self.transaction),
            (5, self.promote),
            (3, self.prune),
            (6, self.checkpoint),
            (2, self.reopen),
        ]

    def run(self, steps: int) -> None:
        """Begin, then do so many steps drawn by weight."""
        self.do(self.begin)
        self.do(self.make_table)
        self.do(self.register)
        weights, calls = zip(*self.steps, strict=True)
        for call in self.chance.choices(calls, weights, k=steps):
            self.now += 1.0
            self.do(call)

    def do(self, call: Callable[[], Any]) -> None:
        """One step: at most one transaction, acknowledged when it returns."""
        self.record.add("begin", self.step)
        told = call()
        # Written down before anything else happens: from here on it has to survive.
        self.record.add("done", self.step, call.__name__, told or {})
        with self.producer.database.connections.borrowed() as connection:
            self.record.add("seen", self.step, glimpse(connection))
        self.step += 1

    # -- the steps; what they return was acknowledged ------------------------------------------------

    def begin(self) -> None:
        self.producer.open()

    def make_table(self) -> None:
        with self.producer.database.write(self.now) as tx:
            tx.connection.execute("CREATE TABLE IF NOT EXISTS effects (job INTEGER PRIMARY KEY, note TEXT)")

    def register(self) -> None:
        from tests.stores.steps import worker

        self.me = worker(self.worker, "w", now=self.now)
        # Those of the last life are lost with its power; here it is enough that they stay where they are.

    def enqueue(self) -> dict[str, Any]:
        return self._insert(1)

    def enqueue_many(self) -> dict[str, Any]:
        return self._insert(self.chance.randint(2, 40))

    def _insert(self, count: int) -> dict[str, Any]:
        from tests.stores.steps import new

        size = self.chance.choice((0, 0, 50, 400, 6000))
        jobs = [new(args=f'"{self.step}:{n}:{"x" * size}"', queue=f"q{n % 3}") for n in range(count)]
        return {"enqueued": [one.id for one in self.producer.insert(jobs, self.now)]}

    def exchange(self) -> dict[str, Any]:
        from rowlock.job import ClaimRequest, Ending

        self.chance.shuffle(self.held)
        ended, self.held = self.held[: (some := self.chance.randint(0, 4))], self.held[some:]
        endings = (Ending.COMPLETED, Ending.COMPLETED, Ending.COMPLETED, Ending.RETRY, Ending.RELEASED)
        outcomes = [self._outcome(claim, self.chance.choice(endings)) for claim in ended]
        want = ClaimRequest(count=self.chance.randint(1, 6), strategy="FIFO")
        got = self.worker.exchange(self.me, outcomes, want, now=self.now)
        assert not got.lost
        self.held += got.claims
        return {
            "completed": [one.id for one in outcomes if one.ending is Ending.COMPLETED],
            "claimed": [[one.id, one.claim] for one in got.claims],
        }

    def transaction(self) -> dict[str, Any]:
        """A row of the task's own and its completion, in one commit."""
        from rowlock.job import Ending

        if not self.held:
            return {}
        claim = self.held.pop()
        tx = self.worker.transaction(None)
        tx.connection.execute(
            "INSERT INTO effects VALUES (?, ?)", (claim.id, "y" * self.chance.randint(0, 5000))
        )
        assert self.worker.finish_on(tx, self.me, self._outcome(claim, Ending.COMPLETED), None)
        tx.commit()
        tx.close()
        return {"completed": [claim.id]}

    def _outcome(self, claim: Claim, ending: Any) -> Outcome:
        from tests.stores.steps import outcome

        return outcome(claim, ending, result=f'"{claim.id} is done"', delay=0.0)

    def promote(self) -> None:
        self.worker.promote(1000, self.now + 60)

    def prune(self) -> None:
        from rowlock.stores.base import Retention

        self.worker.prune(Retention(20.0, 20.0), 0, 50, self.now)

    def checkpoint(self) -> None:
        store = self.chance.choice((self.producer, self.worker))
        how = self.chance.choice(("PASSIVE", "RESTART", "TRUNCATE"))
        with store.database.connections.borrowed() as connection:
            store.database.checkpoints.make(connection)
            if _is_safe():
                connection.execute(f"PRAGMA wal_checkpoint({how})").fetchall()

    def reopen(self) -> None:
        """Both close: the last one empties the log and deletes it."""
        self.worker.close()
        self.producer.close()


def _is_safe() -> bool:
    from rowlock.stores.sqlite import connections

    return connections.SAFE_AUTOCHECKPOINT


def main(database: str, seed: str, steps: str, synchronous: str, library: str, target: str) -> None:
    """Run the program and write the record, as MessagePack."""
    record = _Marked(f"{target}.marks") if library == "sqlite3" else Record()
    vfs = RecordingVfs(record, int(seed))  # known to SQLite for as long as it has a name here
    if library != "sqlite3":
        _use_apsw(vfs.name, synchronous, old=library == "old-apsw")
    from rowlock.stores.sqlite import connections, wal_checkpoints

    wal_checkpoints._WRITES = 8  # so that the log starts over often, and is cut
    connections._LARGEST_LOG = 128 * 1024
    Program(database, random.Random(int(seed)), record).run(int(steps))
    with open(target, "wb") as file:
        file.write(msgspec.msgpack.encode(record.operations))
    os._exit(0)  # the power is gone: nothing is closed in good order


class _Marked(Record):
    """Leaves a mark for the tracer, so that what is said has its place among the writes."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._marks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def add(self, word: str, *rest: Any) -> None:
        os.write(self._marks, str(len(self.operations)).encode())
        super().add(word, *rest)


def _use_apsw(vfs: str, synchronous: str, old: bool) -> None:
    other_sqlite.VFS = vfs
    other_sqlite.PRAGMAS = "PRAGMA wal_autocheckpoint = 30"
    other_sqlite.REWRITE = lambda sql: sql.replace("synchronous = FULL", f"synchronous = {synchronous}")
    if old:  # as a SQLite whose automatic checkpoints are not safe
        other_sqlite.sqlite_version_info = (3, 40, 1)
    other_sqlite.take_the_place_of_sqlite3()


if __name__ == "__main__":
    main(*sys.argv[1:])
