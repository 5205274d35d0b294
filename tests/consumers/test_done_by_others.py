"""Rows that others have done while a run had them: what they wrote stays, and nothing is done twice."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock import Flag, JobContext, Retry, Rowlock, insights
from tests.consumers.lab import Lab

FORMS: dict[str, dict[str, Any]] = {
    "state": {"state": "analysis_state"},
    "own words": {"state": "analysis_state", "failed": lambda error, attempts: "crashed"},
    "flag": {"flag": Flag("uploaded")},
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, lab: Lab) -> dict[str, Any]:
    lab.create(3)
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN uploaded BOOLEAN")
    return {"table": lab.table, "retry": Retry(base=0.0), **FORMS[request.param]}


def done_by_others(lab: Lab, key: int) -> None:
    """As an old worker does it, which knows nothing of rowlock's claims."""
    mark = '{"birdnet": "theirs"}'
    lab.execute(f"UPDATE {lab.table} SET analysis_state = ?, uploaded = true WHERE id = ?", (mark, key))
    lab.detect(lab, key, "others")


def how_it_stands(app: Rowlock, lab: Lab) -> tuple[Any, ...]:
    (found,) = insights.consumers(app, exact=True)
    return lab.marks("birdnet")[2], (found.due, found.in_flight, found.done, found.failed)


@pytest.mark.parametrize(("in_transaction", "fails"), [(True, False), (False, False), (True, True)])
def test_the_row_is_theirs(lab: Lab, form: dict[str, Any], in_transaction: bool, fails: bool) -> None:
    app = lab.app()

    @app.consumer("birdnet", **form)
    def birdnet(ctx: JobContext, row: Any) -> None:
        if row.id == 2:
            done_by_others(lab, 2)
        if in_transaction:
            with ctx.transaction() as tx:
                lab.detect(tx, row.id, "birdnet")
        if row.id == 2 and fails:
            raise ValueError("oh")

    app.consume("birdnet", until_empty=True)
    ours = [("1", "birdnet"), ("3", "birdnet")] if in_transaction else []
    assert lab.detections() == sorted([*ours, ("2", "others")])
    assert how_it_stands(app, lab) == ("theirs", (0, 0, 3, 0))


def test_the_others_of_a_batch_are_done_without_it(lab: Lab, form: dict[str, Any]) -> None:
    app, seen = lab.app(), []

    @app.consumer("birdnet", batch=3, **form)
    def birdnet(ctx: JobContext, rows: Any) -> None:
        seen.append([row.id for row in rows])
        if len(seen) == 1:
            done_by_others(lab, 2)
        with ctx.transaction() as tx:
            for row in rows:
                lab.detect(tx, row.id, "birdnet")

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert seen == [[1, 2, 3], [1, 3]]
    assert lab.detections() == [("1", "birdnet"), ("2", "others"), ("3", "birdnet")]
    assert how_it_stands(app, lab) == ("theirs", (0, 0, 3, 0))
