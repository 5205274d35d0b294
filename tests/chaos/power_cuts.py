"""Cuts the power of recorded runs at random moments, and judges what is found on the disk.

The judge uses Python's own sqlite3, in this process; what made the record ran in another.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rowlock.stores.sqlite import SqliteStore
from tests.chaos import strace
from tests.chaos.disk import Disk, Operation
from tests.chaos.glimpse import Glimpse, glimpse
from tests.stores.steps import add, take, worker

DATABASE = "queue.db"
_LIVES = 4  # runs on what the last one has left, before a new file: jobs pile up in it


@dataclass
class Verdict:
    """What many cuts came to."""

    cuts: int = 0
    acknowledged: int = 0  # enqueues and completions that had been acknowledged, over all cuts
    lost: int = 0  # those of them that were gone
    damaged: int = 0  # files that SQLite calls damaged
    half: int = 0  # files that show neither the last acknowledged state nor the one being written
    stories: list[str] = field(default_factory=list)

    def note(self, story: str) -> None:
        if len(self.stories) < 10:
            self.stories.append(story)

    def __str__(self) -> str:
        told = "".join(f"\n  {story}" for story in self.stories)
        return (
            f"{self.cuts} cuts, {self.acknowledged} acknowledged: {self.lost} lost, "
            f"{self.damaged} damaged files, {self.half} half-written ones{told}"
        )


@dataclass
class Moment:
    """How things stood when the power was cut."""

    image: dict[str, bytes]
    before: Glimpse  # what had been acknowledged must be there
    after: Glimpse | None  # what the step under way would make of it
    enqueued: set[str]
    completed: set[str]
    where: str


def cut_the_power(
    folder: Path,
    seed: int,
    *,
    runs: int,
    cuts: int,
    steps: int = 150,
    synchronous: str = "FULL",
    libraries: Sequence[str] = ("old-apsw", "apsw"),
) -> Verdict:
    """Run the program again and again on what the last cut has left, with `cuts` cuts in each run."""
    chance = random.Random(seed)
    verdict = Verdict()
    files: dict[str, bytes] = {}
    for number in range(runs):
        if number % _LIVES == 0:
            files = {}
        library = libraries[number % len(libraries)]
        home = folder / f"run-{number}"
        home.mkdir()
        operations = _record(home, files, chance.randrange(2**32), steps, synchronous, library)
        for moment in _moments(files, operations, chance, cuts):
            moment.where = f"run {number}, {moment.where}"
            _judge(home / "image", moment, verdict)
            survivor = moment.image
        if verdict.damaged:
            break  # nobody can go on from there
        files = survivor
    print(verdict)  # noqa: T201 - pytest shows it when the test fails
    return verdict


def _record(
    home: Path, files: dict[str, bytes], seed: int, steps: int, synchronous: str, library: str
) -> list[Operation]:
    _write(home, files)
    record = home / "record"
    words = [str(home / DATABASE), str(seed), str(steps), synchronous, library, str(record)]
    command = [sys.executable, "-m", "tests.chaos.power_run", *words]
    if library == "sqlite3":
        command = strace.command(home / "trace", home, [DATABASE, "record.marks"]) + command
    subprocess.run(command, check=True, timeout=100)
    operations: list[Operation] = msgspec.msgpack.decode(record.read_bytes())
    if library == "sqlite3":
        return list(strace.operations(home / "trace", home, known=files, said=operations))
    return operations


def _moments(
    files: dict[str, bytes], operations: list[Operation], chance: random.Random, cuts: int
) -> Iterator[Moment]:
    """Replay the record up to each of so many random places, in order."""
    dones = [index for index, operation in enumerate(operations) if operation[0] == "done"]
    places = sorted(
        # Just after an answer is where a promise is the easiest to break.
        chance.choice(dones) + 1 if chance.random() < 0.3 else chance.randint(0, len(operations) - 1)
        for _ in range(cuts)
    )
    seen: dict[int, Glimpse] = {one[1]: one[2] for one in operations if one[0] == "seen"}
    disk, at = Disk(files), 0
    acknowledged = seen_in(files)
    done, begun = -1, -1
    enqueued: set[str] = set()
    completed: set[str] = set()
    for place in places:
        for operation in operations[at:place]:
            disk.apply(operation)
            if operation[0] == "begin":
                begun = operation[1]
            elif operation[0] == "done":
                done, told = operation[1], operation[3]
                enqueued |= {str(job) for job in told.get("enqueued", ())}
                completed |= {str(job) for job in told.get("completed", ())}
        at = place
        before = seen[done] if done >= 0 else acknowledged
        gone = {*enqueued, *completed} - set(before["jobs"])  # pruned by the program itself
        yield Moment(
            image=disk.cut(chance),
            before=before,
            after=seen.get(begun) if begun > done else None,
            enqueued=enqueued - gone,
            completed=completed - gone,
            where=f"operation {place} of {len(operations)}",
        )


def seen_in(files: dict[str, bytes]) -> Glimpse:
    """What a run finds when it begins; it was judged when the power was cut."""
    if DATABASE not in files:
        return {"jobs": {}, "others": {}}
    found: Glimpse = msgspec.msgpack.decode(files["glimpse"])
    return found


def _judge(home: Path, moment: Moment, verdict: Verdict) -> None:
    verdict.cuts += 1
    verdict.acknowledged += len(moment.enqueued) + len(moment.completed)
    _write(home, moment.image)
    try:
        found = _look(home / DATABASE)
        allowed = [moment.before] if moment.after is None else [moment.before, moment.after]
        lost = _lost(moment, found)
        verdict.lost += len(lost)
        if lost:
            verdict.note(f"{moment.where}: lost {lost[:5]}")
        elif found not in allowed:
            verdict.half += 1
            verdict.note(f"{moment.where}: neither before nor after: {_difference(moment.before, found)}")
        moment.image["glimpse"] = msgspec.msgpack.encode(found)
        _use(home / DATABASE)
    except (sqlite3.DatabaseError, AssertionError) as error:
        verdict.damaged += 1
        verdict.note(f"{moment.where}: {error!r}")


def _look(database: Path) -> Glimpse:
    if not database.exists():
        return {"jobs": {}, "others": {}}
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        check = connection.execute("PRAGMA integrity_check").fetchall()
        assert check == [("ok",)], check
        return glimpse(connection)


def _lost(moment: Moment, found: Glimpse) -> list[str]:
    jobs: dict[str, Any] = found["jobs"]
    after = moment.after["jobs"] if moment.after else moment.before["jobs"]
    pruned = set(moment.before["jobs"]) - set(after) - set(jobs)  # by the step under way
    missing = moment.enqueued - set(jobs) - pruned
    undone = {job for job in moment.completed - pruned if job in jobs and jobs[job][0] != "completed"}
    return sorted(missing | undone)


def _difference(one: Glimpse, other: Glimpse) -> str:
    jobs = [
        (job, one["jobs"].get(job), other["jobs"].get(job))
        for job in sorted({*one["jobs"], *other["jobs"]}, key=int)
        if one["jobs"].get(job) != other["jobs"].get(job)
    ]
    tables = [name for name in one["others"] if one["others"][name] != other["others"].get(name)]
    return f"jobs {jobs[:5]}, tables {tables}"


def _use(database: Path) -> None:
    """The queue is not only whole, it works: another job can be added and taken."""
    store = SqliteStore(str(database))
    try:
        (job,) = add(store, queue="afterwards")
        assert [claim.id for claim in take(store, worker(store, "later"), queues=("afterwards",))] == [job]
    finally:
        store.close()


def _write(home: Path, files: dict[str, bytes]) -> None:
    home.mkdir(exist_ok=True)
    for old in home.glob("queue.db*"):
        old.unlink()
    for name, content in files.items():
        if name.startswith(DATABASE):
            (home / name).write_bytes(content)
