"""Consumers of a table whose boolean column says what is done."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rowlock import ConfigurationError, Fail, Flag, JobContext, Retry, RetryLater, Rowlock, Status, insights
from rowlock.consumers import overview
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from tests.consumers.lab import Lab, store_of
from tests.consumers.test_plans import plan
from tests.stores.steps import worker as register


@pytest.fixture
def flagged(lab: Lab) -> Lab:
    """A table with a flag: false in row 1, null in row 2, and true in row 3."""
    lab.create(3)
    at = "TEXT" if lab.is_sqlite else "timestamptz"
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN uploaded BOOLEAN")
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN uploaded_at {at}")
    lab.execute(f"UPDATE {lab.table} SET uploaded = (id = 3) WHERE id <> 2")
    return lab


def nothing(recording: Row) -> None:
    """A consumer's function that does nothing."""


def uploader(lab: Lab, function: Any = nothing, **chosen: Any) -> Rowlock:
    app = lab.app()
    options: dict[str, Any] = {"flag": Flag("uploaded", at="uploaded_at"), "order_by": "time", **chosen}
    app.consumer("birdnet", table=lab.table, **options)(function)
    return app


def flags(lab: Lab) -> dict[int, bool | None]:
    rows = lab.execute(f"SELECT id, uploaded FROM {lab.table}")
    return {key: None if value is None else bool(value) for key, value in rows}


def due(app: Rowlock, now: float | None = None) -> list[str | None]:
    """The rows that a worker gets."""
    worker = register(app.store, now=now)
    request = ClaimRequest(count=9)
    return [one.row for one in store_of(app, "birdnet").exchange(worker, request=request, now=now).claims]


def test_a_row_is_due_until_its_flag_is_true(flagged: Lab) -> None:
    seen: list[int] = []
    app = uploader(flagged, lambda recording: seen.append(recording.id))
    app.consume("birdnet", until_empty=True, concurrency=1)
    assert seen == [1, 2]
    assert flags(flagged) == {1: True, 2: True, 3: True}
    stamped = flagged.execute(f"SELECT id FROM {flagged.table} WHERE uploaded_at IS NOT NULL ORDER BY id")
    assert [key for (key,) in stamped] == [1, 2]
    assert flagged.claims() == []


def test_a_row_out_of_attempts_is_due_again_only_after_retry(flagged: Lab) -> None:
    def fails_on_one(recording: Row) -> None:
        if recording.id == 1:
            raise OSError("the other side is away")

    app = uploader(flagged, fails_on_one, retry=Retry(max_attempts=2, base=0.0))
    assert app.consume("birdnet", until_empty=True).failed == 1
    assert flags(flagged) == {1: False, 2: True, 3: True}
    store_of(app, "birdnet").prune(0, 0, 10)  # type: ignore[arg-type]
    assert due(app) == []
    assert app.consume("birdnet", until_empty=True).failed == 0
    (found,) = insights.consumers(app, exact=True)
    assert (found.due, found.done, found.failed, found.oldest_due) == (0, 2, 1, None)
    kept = f"SELECT consumer, row_key, failures, error FROM {flagged.prefix}rowlock_consumer_failures"
    ((consumer, key, failures, error),) = flagged.execute(kept)
    assert (consumer, str(key), failures, error) == ("birdnet", "1", 2, "OSError: the other side is away")
    assert overview.retry_failed(app.consumer_source("birdnet")) == 1
    assert due(app) == ["1"]


def test_a_failure_is_forgotten_when_others_set_the_flag_or_delete_the_row(flagged: Lab) -> None:
    def fails(recording: Row) -> None:
        raise OSError("away")

    app = uploader(flagged, fails, retry=False)
    assert app.consume("birdnet", until_empty=True).failed == 2
    flagged.execute(f"UPDATE {flagged.table} SET uploaded = TRUE WHERE id = 1")
    flagged.execute(f"DELETE FROM {flagged.table} WHERE id = 2")
    assert insights.consumers(app)[0].failed == 0
    assert store_of(app, "birdnet").prune(0, 0, 10) == (2, 0)  # type: ignore[arg-type]
    assert overview.retry_failed(app.consumer_source("birdnet")) == 0


def test_the_users_rows_and_the_flag_commit_together(flagged: Lab) -> None:
    def upload(ctx: JobContext, recording: Row) -> None:
        with ctx.transaction() as tx:
            flagged.detect(tx, recording.id, "birdnet")
        if recording.id == 2:
            raise OSError("away")

    app = uploader(flagged, upload, retry=False)
    app.consume("birdnet", until_empty=True)
    assert flagged.detections() == [("1", "birdnet")]
    assert flags(flagged) == {1: True, 2: None, 3: True}


def test_a_dead_workers_row_is_due_again_and_its_late_end_is_refused(flagged: Lab) -> None:
    app = uploader(flagged, retry=Retry(max_attempts=2))
    store, start = store_of(app, "birdnet"), time.time()
    first = register(app.store, "first", now=start)
    (claim,) = store.exchange(first, request=ClaimRequest(count=1), now=start).claims
    later = start + 1000.0
    second = register(app.store, "second", now=later)
    assert store.rescue(second, careful_age=10.0, now=later).requeued == 1
    assert len(store.exchange(first, [claim.ended(Ending.COMPLETED)], now=later).lost) == 1
    assert flags(flagged)[1] is False
    (again,) = store.exchange(second, request=ClaimRequest(count=1), now=later).claims
    assert again.row == "1"
    store.exchange(second, [again.ended(Ending.COMPLETED)], now=later)
    assert flags(flagged)[1] is True


def test_a_flag_is_claimed_by_its_index(flagged: Lab) -> None:
    flagged.fill(4, 3000)
    flagged.execute(f"UPDATE {flagged.table} SET uploaded = TRUE WHERE id BETWEEN 3 AND 2990")
    app = uploader(flagged)
    store = store_of(app, "birdnet")
    store.source.table.indexes.create()
    for name in ("take_free", "take_free_beyond", "look_free"):
        found = plan(flagged, store, name)
        assert "rowlock_birdnet_due" in found
        assert "Seq Scan on recordings" not in found and "TEMP B-TREE" not in found and "Sort" not in found
    assert due(app) == ["1", "2", *map(str, range(2991, 2998))]


def test_a_flag_that_is_no_boolean_is_refused(flagged: Lab) -> None:
    wanted = "BOOLEAN" if flagged.is_sqlite else "boolean"
    with pytest.raises(ConfigurationError, match=rf"flag='path' is of type .*it must be {wanted}"):
        store_of(uploader(flagged, flag=Flag("path")), "birdnet").source.table  # noqa: B018
    for flag, named in ((Flag("sent"), "flag='sent'"), (Flag("uploaded", at="sent_at"), "at='sent_at'")):
        with pytest.raises(ConfigurationError, match=rf"{named}, but .* has no such column"):
            store_of(uploader(flagged, flag=flag), "birdnet").source.table  # noqa: B018


def test_two_forms_at_once_are_refused(app: Rowlock) -> None:
    chosen: dict[str, Any] = {"state": "s", "status": Status("t"), "flag": Flag("f")}
    for left_out in chosen:
        two = {option: form for option, form in chosen.items() if option != left_out}
        with pytest.raises(ConfigurationError, match="only one of them"):
            app.consumer("birdnet", table="recordings", **two)(nothing)
    with pytest.raises(ConfigurationError, match="must be Flag"):
        app.consumer("birdnet", table="recordings", flag="uploaded")(nothing)  # type: ignore[arg-type]
    for wrong in ({"column": "a%b"}, {"column": "a", "at": ""}):
        with pytest.raises(ConfigurationError, match="Flag"):
            Flag(**wrong)


@pytest.mark.parametrize("name", ["failures", "claims"])
def test_a_table_may_have_a_name_that_the_statements_use(lab: Lab, name: str) -> None:
    table, tried = f"{lab.prefix}{name}", []
    lab.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, uploaded BOOLEAN)")
    lab.execute(f"INSERT INTO {table} (id) VALUES (1), (2)")
    app = lab.app()

    @app.consumer("uploader", table=table, flag=Flag("uploaded"))
    def upload(row: Row) -> None:
        tried.append(row.id)
        raise RetryLater(0.0) if tried.count(row.id) == 1 else Fail("it is not taken")

    app.consume("uploader", until_empty=True)
    assert sorted(tried) == [1, 1, 2, 2]
    assert overview.record(app.consumer_source("uploader")).failed == 2
    assert overview.retry_failed(app.consumer_source("uploader")) == 2
