"""`task_queue` in SQLite: priorities, due times, books and generated columns, beside an old worker."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.adoption import task_queue
from tests.adoption.conftest import Hire
from tests.adoption.crew import ended
from tests.eventually import eventually

INSERT = """
INSERT INTO task_queue (parameters, priority, max_attempts, attempts, run_after_utc, created_at)
VALUES (?, ?, ?, ?, datetime('now', ?), datetime('now', ?))
"""
# What the team's pages have always asked.
COUNTS = "SELECT status, count(*) FROM task_queue GROUP BY status ORDER BY status"
AT_WORK = "SELECT DISTINCT locked_by FROM task_queue WHERE status = 'claimed' ORDER BY locked_by"
LETTERS = "SELECT task, customer FROM letters ORDER BY task"
BY_ROWLOCK = """
SELECT t.id, t.priority, t.created_at FROM letters l JOIN task_queue t ON t.id = l.task
WHERE l.sent_by = 'survivor' ORDER BY l.id
"""


@pytest.fixture
def db(sqlite_team: str) -> Iterator[sqlite3.Connection]:
    path = sqlite_team.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as made:
        made.executescript(task_queue.CREATE)
        yield made


def add(
    db: sqlite3.Connection,
    customer: str = "null",
    *,
    priority: int = 5,
    most: int = 3,
    attempts: int = 0,
    after: str | None = None,
    age: int = 0,
) -> int:
    values = (f'{{"customer": {customer}}}', priority, most, attempts, after, f"-{age} seconds")
    return int(db.execute(INSERT, values).lastrowid or 0)


def test_the_task_queue_is_adopted_as_it_is(db: sqlite3.Connection, sqlite_team: str, hire: Hire) -> None:
    crew = hire("task_queue", sqlite_team)
    usual = [add(db, f'"c{n}"', priority=n % 3, age=100 - n % 7) for n in range(60)]
    hopeless = add(db, most=2)
    last_try = add(db, attempts=2)  # which the old worker has had twice
    soon, later = add(db, '"soon"', after="+1 seconds"), add(db, '"later"', after="+1 day")
    table = db.execute("SELECT sql FROM sqlite_master WHERE name = 'task_queue'").fetchone()
    crew.init()
    frozen = crew.one_killed_and_one_frozen("letters")
    held = {id for (id,) in db.execute("SELECT id FROM task_queue WHERE status = 'claimed'")}
    assert db.execute(AT_WORK).fetchall() == [("frozen",), ("killed",)]
    legacy = crew.legacy(20)
    eventually(lambda: db.execute("SELECT 1 FROM letters").fetchone(), timeout=60)
    ended(crew.drain("survivor", "letters", "--concurrency", "1"), legacy)
    crew.thaw(frozen)
    done = {*usual, soon}
    assert [row[0] for row in db.execute(LETTERS)] == sorted(done)
    assert db.execute(COUNTS).fetchall() == [("completed", len(done)), ("failed", 2), ("queued", 1)]
    rows = {row[0]: row[1:] for row in db.execute("SELECT id, status, attempts, is_over FROM task_queue")}
    assert {rows[one] for one in done} == {("completed", 1, 1)}
    assert (rows[hopeless], rows[last_try]) == (("failed", 2, 1), ("failed", 3, 1))
    assert rows[later] == ("queued", 0, 0)
    told = (
        "SELECT count(*) FROM task_queue WHERE result_data ->> 'sent_to' = customer AND error_message IS NULL"
    )
    assert db.execute(told).fetchone() == (len(done),)
    names = {name for (name,) in db.execute("SELECT locked_by FROM task_queue WHERE status = 'completed'")}
    assert names == {"survivor", "legacy"}
    taken = [row for row in db.execute(BY_ROWLOCK) if row[0] not in {*held, soon}]
    assert len(taken) > 5 and taken == sorted(taken, key=lambda row: (-row[1], row[2], row[0]))
    other = "SELECT count(*) FROM task_queue WHERE updated_at IS NOT datetime(updated_at)"
    assert db.execute(other).fetchone() == (0,)  # as the team writes times
    assert db.execute("SELECT sql FROM sqlite_master WHERE name = 'task_queue'").fetchone() == table
    assert db.execute("SELECT count(*) FROM rowlock_consumer_claims").fetchone() == (0,)
