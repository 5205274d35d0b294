"""That a claim reads only the index of what is due, without ANALYZE and whatever the number of done rows."""

from __future__ import annotations

import re
import time
from typing import Any, cast

import psycopg
import pytest

from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import take
from tests.stores.steps import worker as register


def work(recording: Row) -> None:
    """A consumer's function that does nothing."""


def plan(lab: Lab, store: Any, name: str) -> str:
    values = {
        "consumer": "birdnet",
        "worker": "w",
        "begins": 1,
        "count": 4,
        "charge": 1,
        "queue": "birdnet",
        "mark_a": "5",
        "mark_b": "5",
        "own_strategy": "FIFO",
        "strategy": "FIFO",
        "mark_key": "5",
        "now": None,
        "mono": 0.0,
        "isolate_least": 0,
        "isolate_most": 60,
        "ids": "[1, 2]",
    }
    statement = store.source.table.statements[name]
    if lab.is_sqlite:
        connection = lab.connect()
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
        connection.close()
        return "\n".join(str(row[-1]) for row in rows)
    with store.database.read() as session:  # with the settings of the store's own connections
        rows = session.connection.own_cursor.execute(f"EXPLAIN {statement}", values).fetchall()
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("name", ["take_free", "take_free_beyond", "look_free"])
@pytest.mark.parametrize("where", [None, "path IS NOT NULL AND id > 0"])
def test_a_claim_reads_the_index_of_what_is_due(lab: Lab, name: str, where: str | None) -> None:
    lab.create(3000)
    mark = '\'{"birdnet": true, "other": 1}\''
    lab.execute(f"UPDATE {lab.table} SET analysis_state = {mark} WHERE id <= 2990")
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time", where=where)(work)
    store = store_of(app, "birdnet")
    store.source.table.indexes.create()
    found = plan(lab, store, name)
    assert "rowlock_birdnet_due" in found
    assert not re.search(r"SCAN recordings(?! USING INDEX)|Seq Scan on recordings|Sort|TEMP B-TREE", found), (
        found
    )
    assert re.search(r"\(consumer=\? AND row_key=\?\)|Index Cond: \(\(consumer = .*AND \(row_key", found), (
        found
    )
    # And it takes what is due, in order.
    claims = store.exchange(register(app.store, "w"), request=ClaimRequest(count=20)).claims
    assert [claim.unique_key for claim in claims] == [str(n) for n in range(2991, 3001)]


@pytest.mark.parametrize("lab", ["postgres"], indirect=True)  # SQLite goes by the key anyway
def test_an_exchange_of_many_rows_takes_six_round_trips_and_finds_its_claims_by_their_numbers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.create(2000)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time")(work)
    store = store_of(app, "birdnet")
    store.source.table.indexes.create()
    who = register(app.store, "w")
    claims = store.exchange(who, request=ClaimRequest(count=1500)).claims
    found = plan(lab, store, "end_claims")
    assert "rowlock_consumer_claims_pkey" in found and "rowlock_consumer_claims_held" not in found, found
    asked: list[str] = []
    execute = psycopg.Cursor.execute

    def counted(cursor: Any, statement: Any, *given: Any, **named: Any) -> Any:
        asked.append(str(statement))
        return execute(cursor, statement, *given, **named)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    done = [claim.ended(Ending.COMPLETED) for claim in claims[:100]]
    assert len(store.exchange(who, done, ClaimRequest(count=100)).claims) == 100
    assert len(asked) == 6, asked  # begin, end and mark 100, look, take 100, commit


def test_an_index_that_was_made_for_another_condition_is_not_insisted_on(lab: Lab) -> None:
    lab.create(5)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", where="id > 3")(work)
    store_of(app, "birdnet").source.table.indexes.create()
    other = lab.app()
    other.consumer("birdnet", table=lab.table, state="analysis_state", where="id > 2")(work)
    assert other.consume("birdnet", until_empty=True).completed == 3


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)
def test_claims_go_on_from_the_last_row_and_begin_anew_every_second(lab: Lab) -> None:
    """So a claim does not step over all that is in flight, and what comes in front of it is found soon."""
    lab.create(3000)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time")(work)
    store, worker = cast("Store", store_of(app, "birdnet")), register(app.store, "w")
    begun = time.monotonic()
    assert [claim.unique_key for claim in take(store, worker, 2)] == ["1", "2"]
    lab.execute(f"INSERT INTO {lab.table} (id, time) VALUES (9000, -1.0)")
    (third,) = take(store, worker)
    assert third.unique_key == "3" or time.monotonic() - begun > 1.0  # the machine stood still
    # There are more rows beyond the last one than it could take meanwhile.
    eventually(lambda: "9000" in [claim.unique_key for claim in take(store, worker)])


def test_before_a_claim_says_that_there_is_nothing_it_looks_at_all_rows(lab: Lab) -> None:
    lab.create(3)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time")(work)
    store, worker = cast("Store", store_of(app, "birdnet")), register(app.store, "w")
    assert [claim.unique_key for claim in take(store, worker, 3)] == ["1", "2", "3"]
    lab.execute(f"INSERT INTO {lab.table} (id, time) VALUES (90, -1.0)")
    assert [claim.unique_key for claim in take(store, worker, 5)] == ["90"]
