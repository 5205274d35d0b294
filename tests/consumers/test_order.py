"""The order in which a consumer's rows are taken: several columns, and the same backwards."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rowlock import ConfigurationError, Rowlock
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from tests.consumers.lab import Lab, store_of
from tests.consumers.test_plans import plan
from tests.eventually import eventually
from tests.stores.steps import worker as register

ROWS = {1: (0, 20.0), 2: (5, 30.0), 3: (5, 10.0), 4: (0, 10.0), 5: (5, 10.0), 6: (9, 99.0)}
DONE = '{"birdnet": true}'
BY_PRIORITY = ["6", "3", "5", "2", "4", "1"]  # the highest first, in it the oldest, in it the lowest key


@pytest.fixture
def tasks(lab: Lab) -> Lab:
    """A table whose rows have a priority and a time."""
    lab.create()
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN priority INTEGER")
    add(lab, ROWS)
    return lab


def add(lab: Lab, rows: dict[int, tuple[int, float]]) -> None:
    for key, values in rows.items():
        lab.execute(f"INSERT INTO {lab.table} (id, priority, time) VALUES (?, ?, ?)", (key, *values))


def work(recording: Row) -> None:
    """A consumer's function that does nothing."""


def make(lab: Lab, order_by: Any = "priority DESC, time", **chosen: Any) -> Rowlock:
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", order_by=order_by, **chosen)(work)
    return app


def take(app: Rowlock, count: int = 9, strategy: str = "FIFO", step: int | None = None) -> list[str | None]:
    """Rows in the order in which a worker gets them, `step` at a time."""
    worker, store, got = register(app.store), store_of(app, "birdnet"), []
    for _ in range(0, count, step or count):
        request = ClaimRequest(count=step or count, strategy=strategy)
        got += store.exchange(worker, request=request).claims
    store.exchange(worker, [one.ended(Ending.RELEASED) for one in got])
    return [one.row for one in got]


@pytest.mark.no_cover  # what it runs is measured elsewhere, and here it would take twice as long
@pytest.mark.parametrize("step", [9, 1, 2])
@pytest.mark.parametrize(
    ("order_by", "rows"),
    [
        ("priority DESC, time", BY_PRIORITY),
        (["priority desc", "time ASC"], BY_PRIORITY),
        ("priority DESC", ["6", "2", "3", "5", "1", "4"]),
        ("priority, time DESC, id DESC", ["1", "4", "2", "5", "3", "6"]),
        ("id DESC, time", ["6", "5", "4", "3", "2", "1"]),
        ("time", ["3", "4", "5", "1", "2", "6"]),
    ],
)
def test_rows_are_taken_by_all_of_the_columns_and_then_by_key(
    tasks: Lab, order_by: Any, rows: list[str], step: int
) -> None:
    app = make(tasks, order_by)
    assert take(app, step=step) == rows
    assert take(app, step=step, strategy="LIFO") == rows[::-1]


@pytest.mark.parametrize("strategy", ["FIFO", "LIFO"])
@pytest.mark.parametrize("first", ["priority", "priority DESC"])
@pytest.mark.parametrize("second", ["time", "time DESC"])
def test_a_null_has_the_place_that_the_database_gives_it(
    tasks: Lab, first: str, second: str, strategy: str
) -> None:
    for key, values in {7: (5, None), 8: (0, None), 9: (5, None), 10: (None, 1.0), 11: (None, None)}.items():
        tasks.execute(f"INSERT INTO {tasks.table} (id, priority, time) VALUES (?, ?, ?)", (key, *values))
    rows = tasks.execute(f"SELECT id FROM {tasks.table} ORDER BY {first}, {second}, id")
    wanted = [str(key) for (key,) in rows][:: -1 if strategy == "LIFO" else 1]
    app = make(tasks, f"{first}, {second}")
    assert take(app, count=11, step=1, strategy=strategy) == wanted


def test_what_comes_in_before_the_last_row_is_found_soon_although_others_are_left(tasks: Lab) -> None:
    tasks.execute(
        f"INSERT INTO {tasks.table} (id, priority, time) WITH RECURSIVE later (id) AS "
        "(SELECT 100 UNION ALL SELECT id + 1 FROM later WHERE id < 4000) SELECT id, 0, id FROM later"
    )
    app = make(tasks)
    store, worker = store_of(app, "birdnet"), register(app.store)

    def next_row() -> str | None:
        return store.exchange(worker, request=ClaimRequest(count=1, strategy="FIFO")).claims[0].row

    assert [next_row() for _ in range(3)] == ["6", "3", "5"]
    add(tasks, {7: (9, 1.0)})
    eventually(lambda: next_row() == "7")


def test_a_worker_can_be_made_for_the_order_backwards(tasks: Lab) -> None:
    seen: list[str] = []
    app = make(tasks)
    app.consumer("batdetect", table=tasks.table, state="analysis_state", order_by="priority DESC, time")(
        lambda recording: seen.append(str(recording.id))
    )
    app.consume("batdetect", until_empty=True, concurrency=1, strategy="LIFO")
    assert seen == BY_PRIORITY[::-1]
    with pytest.raises(ConfigurationError, match="PRIORITY does not apply to a consumer"):
        app.consuming("batdetect", strategy="PRIORITY")


def test_the_strategy_of_the_queue_goes_before_the_workers(tasks: Lab) -> None:
    app = make(tasks)
    store, worker = store_of(app, "birdnet"), register(app.store)
    rows = [store.exchange(worker, request=ClaimRequest(count=1, strategy="FIFO")).claims[0].row]
    app.set_strategy("consumer:birdnet", "LIFO")
    rows += [store.exchange(worker, request=ClaimRequest(count=1, strategy="FIFO")).claims[0].row]
    rows += [store.exchange(worker, request=ClaimRequest(count=1, strategy="FIFO")).claims[0].row]
    app.set_strategy("consumer:birdnet", None)
    rows += [store.exchange(worker, request=ClaimRequest(count=1, strategy="FIFO")).claims[0].row]
    assert rows == ["6", "1", "4", "3"]


def test_a_worker_changes_its_order_while_it_runs(tasks: Lab) -> None:
    app, seen = tasks.app(), []
    app.pause("consumer:birdnet")

    def note(recording: Row) -> None:
        seen.append(str(recording.id))

    app.consumer("birdnet", table=tasks.table, state="analysis_state", order_by="priority DESC, time")(note)
    with app.consuming("birdnet", concurrency=1).background() as worker:
        eventually(lambda: worker.polls.empty > 0)
        worker.strategy = "LIFO"
        app.resume("consumer:birdnet")
        eventually(lambda: len(seen) == len(BY_PRIORITY))
    assert seen == BY_PRIORITY[::-1]


@pytest.mark.parametrize("name", ["take_free", "take_free_beyond"])
@pytest.mark.parametrize("backwards", ["", "_backwards"])
def test_one_index_serves_both_directions(tasks: Lab, name: str, backwards: str) -> None:
    tasks.fill(100, 3000)
    tasks.execute(f"UPDATE {tasks.table} SET priority = id - 7 * (id / 7), analysis_state = ?", (DONE,))
    store = store_of(make(tasks), "birdnet")
    store.source.table.indexes.create()
    found = plan(tasks, store, name + backwards)
    assert "rowlock_birdnet_due" in found
    assert not re.search(r"SCAN recordings(?! USING INDEX)|Seq Scan on recordings|Sort|TEMP B-TREE", found), (
        found
    )
