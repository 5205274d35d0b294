"""What a claim does about rows that somebody is writing at this very moment."""

from __future__ import annotations

import pytest

from rowlock.job import ClaimRequest
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("lab", ["postgres"], indirect=True)  # SQLite has one writer at a time
def test_a_row_that_somebody_is_just_marking_is_left_alone(lab: Lab, batch: int | None) -> None:
    lab.create(2)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", batch=batch)(nothing)
    store, worker = store_of(app, "birdnet"), register(app.store)
    other = lab.connect()
    with other.transaction():
        other.execute(f"UPDATE {lab.table} SET analysis_state = '{{\"birdnet\": true}}' WHERE id = 1")
        claims = store.exchange(worker, request=ClaimRequest(count=2)).claims
    other.close()
    assert [claim.unique_key for claim in claims] == ["2"]
    assert store.exchange(worker, request=ClaimRequest(count=2)).claims == []
