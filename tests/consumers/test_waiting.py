"""How long an idle consumer waits: never so long that a row which nobody announces is found late."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock import Status
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from rowlock.worker.poller import Poller
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import worker as register

POLL = 2.0
CLOCK = {True: "(julianday('now') - 2440587.5) * 86400", False: "extract(epoch FROM clock_timestamp())"}


def work(recording: Row) -> None:
    """A consumer's function that does nothing."""


def waits(lab: Lab, **chosen: Any) -> list[float]:
    """How long an idle consumer would wait after each of many polls."""
    app = lab.app()
    app.consumer("birdnet", table=lab.table, **{"state": "analysis_state", **chosen})(work)
    workload = app.workload(consumer="birdnet")
    poller = Poller(app, poll_interval=POLL, max_idle_polls=1, workload=workload)
    found = []
    poller.claim()
    wake = poller._polls.wake
    assert wake is not None
    eventually(lambda: wake.alive)
    for _ in range(6):
        assert poller.claim() is None
        found.append(poller.idle_wait())
    poller.close()
    return found


def test_a_wait_grows_only_where_every_commit_is_seen(lab: Lab) -> None:
    lab.create()
    longest = max(waits(lab))
    assert longest > POLL if lab.is_sqlite else longest <= POLL


@pytest.mark.parametrize("by", ["where", "stale_after", "deadline"])
def test_a_wait_does_not_grow_where_time_alone_makes_rows_due(lab: Lab, by: str) -> None:
    lab.create()
    chosen: dict[str, Any] = {"where": f"time <= {CLOCK[lab.is_sqlite]}"}
    if by != "where":
        since = "started_at" if by == "stale_after" else "created_at"
        chosen = {"state": None, "status": Status("path", **{since: "time", by: 3600.0})}
    assert max(waits(lab, **chosen)) <= POLL


def test_an_idle_consumer_goes_on_polling_and_finds_what_comes(lab: Lab) -> None:
    lab.create()
    app = lab.app(poll_interval=0.01)
    condition = f"time <= {CLOCK[lab.is_sqlite]}"
    app.consumer("birdnet", table=lab.table, state="analysis_state", where=condition)(work)
    with app.consuming("birdnet").background() as worker:
        eventually(lambda: worker.polls.empty > 26, message="it polls less and less")
        lab.fill(1, 1)
        eventually(lambda: lab.marks("birdnet")[1])


def test_a_row_before_the_last_one_taken_is_taken_at_once_by_an_idle_consumer(lab: Lab) -> None:
    lab.create()
    lab.fill(5, 5)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state")(work)
    store, worker = store_of(app, "birdnet"), register(app.store)
    (claim,) = store.exchange(worker, request=ClaimRequest(count=1)).claims
    store.exchange(worker, [claim.ended(Ending.COMPLETED)])
    assert store.exchange(worker, request=ClaimRequest(count=1)).claims == []
    lab.fill(1, 1)
    assert [one.row for one in store.exchange(worker, request=ClaimRequest(count=1)).claims] == ["1"]
