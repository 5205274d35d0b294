"""Two consumers and the user's own code write to the same row at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rowlock.job import ClaimRequest, Ending
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import worker as register

COUNT_UP = {
    True: "json_set(coalesce(analysis_state, '{}'), '$.seen', "
    "coalesce(json_extract(analysis_state, '$.seen'), 0) + 1)",
    False: "jsonb_set(coalesce(analysis_state, '{}'), '{seen}', "
    "to_jsonb(coalesce((analysis_state ->> 'seen')::int, 0) + 1))",
}


def count_up(lab: Lab, key: int) -> None:
    """What the user's own code does to a row."""
    lab.execute(f"UPDATE {lab.table} SET analysis_state = {COUNT_UP[lab.is_sqlite]} WHERE id = {key}")


@pytest.mark.parametrize("rows", [150, pytest.param(1_000, marks=pytest.mark.chaos)])
def test_two_consumers_and_the_user_write_the_same_row_and_no_mark_is_lost(lab: Lab, rows: int) -> None:
    """Each row is a round of its own: all three begin together."""
    lab.create(rows)
    start = threading.Barrier(3, timeout=60)
    failures: list[BaseException] = []

    def consumer(name: str) -> Callable[[int], object]:
        app = lab.app()
        app.consumer(name, table=lab.table, state="analysis_state")(nothing)
        store, worker = store_of(app, name), register(app.store, name)
        claims = store.exchange(worker, request=ClaimRequest(count=rows)).claims
        return lambda key: store.exchange(worker, [claims[key - 1].ended(Ending.COMPLETED)])

    def write(step: Callable[[int], object]) -> None:
        try:
            for key in range(1, rows + 1):
                start.wait()
                step(key)
        except BaseException as error:
            failures.append(error)
            start.abort()

    steps = [consumer("birdnet"), consumer("batdetect"), lambda key: count_up(lab, key)]
    threads = [threading.Thread(target=write, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failures == []
    expected = {"birdnet": True, "batdetect": True, "seen": 1}
    assert lab.states() == dict.fromkeys(range(1, rows + 1), expected)
    assert lab.claims() == []


def test_workers_that_mark_many_rows_at_once_lose_no_mark_of_others(lab: Lab) -> None:
    lab.create(40)
    app = lab.app()
    for name in ("birdnet", "batdetect"):
        app.consumer(name, table=lab.table, state="analysis_state")(nothing)
    with app.consuming("birdnet").background(), app.consuming("batdetect").background():
        for key in list(range(1, 41)) * 5:
            count_up(lab, key)
        expected = {"birdnet": True, "batdetect": True, "seen": 5}
        eventually(lambda: lab.states() == dict.fromkeys(range(1, 41), expected), timeout=30)
