"""The order of locks on PostgreSQL: a user's row before its claim, when it is taken and when it is done with.

With two orders, one who claims and one who finishes could wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from rowlock import Retry, Status
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab
from tests.eventually import eventually

pytestmark = pytest.mark.parametrize("lab", ["postgres"], indirect=True)  # SQLite has one lock for all

FORMS: dict[str, dict[str, Any]] = {
    "state": {"state": "analysis_state"},
    "status": {"status": Status("path", due="pending")},
}


def consumer(lab: Lab, form: str, work: Callable[[Row], None]) -> Any:
    """A worker for two rows in this form."""
    lab.create(2)
    lab.execute(f"UPDATE {lab.table} SET path = 'pending'")
    app = lab.app()
    app.consumer("birdnet", table=lab.table, **FORMS[form], retry=Retry(base=0.0))(work)
    return app.consuming("birdnet", concurrency=1)


def done(lab: Lab, form: str) -> list[int]:
    """The rows that are done with."""
    if form == "status":
        rows = lab.execute(f"SELECT id FROM {lab.table} WHERE path = 'completed' ORDER BY id")
        return [key for (key,) in rows]
    return [key for key, mark in sorted(lab.marks("birdnet").items()) if mark]


@pytest.mark.parametrize(("form", "fails"), [("state", False), ("status", False), ("status", True)])
def test_who_waits_for_a_row_to_finish_it_has_not_locked_its_claim(lab: Lab, form: str, fails: bool) -> None:
    begun, leave = threading.Event(), threading.Event()

    def work(row: Row) -> None:
        first = not begun.is_set()
        begun.set()
        leave.wait(30)
        if first and fails:
            raise OSError("busy")

    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        f"AND position('{lab.prefix[:-1]}' IN query) > 0"
    )
    unlocked = f"SELECT row_key FROM {lab.prefix}rowlock_consumer_claims FOR UPDATE SKIP LOCKED"
    with consumer(lab, form, work).background():
        assert begun.wait(30)
        with closing(lab.connect()) as user, user.transaction():
            user.execute(f"UPDATE {lab.table} SET time = 100 WHERE id = 1")
            leave.set()
            eventually(lambda: lab.execute(waiting))
            found = lab.execute(unlocked)
        eventually(lambda: done(lab, form) == [1, 2])
    assert found == [("1",)]


@pytest.mark.parametrize("form", FORMS)
def test_who_claims_does_not_wait_for_somebody_who_is_just_claiming_the_same_row(lab: Lab, form: str) -> None:
    worker = consumer(lab, form, lambda row: None)
    with closing(lab.connect()) as other, other.transaction(force_rollback=True):
        other.execute(f"SELECT 1 FROM {lab.table} WHERE id = 1 FOR NO KEY UPDATE")
        other.execute(
            f"INSERT INTO {lab.prefix}rowlock_consumer_claims (consumer, row_key, claimed_by, claimed_at) "
            "VALUES ('birdnet', '1', 'another', now())"
        )
        with worker.background():
            eventually(lambda: done(lab, form))
            assert done(lab, form) == [2]
