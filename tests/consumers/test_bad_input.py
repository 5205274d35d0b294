"""What a consumer says to tables, columns and names that it cannot work with."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rowlock import ConfigurationError, Flag, JobContext, Retry, Rowlock, Status
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import worker as register


def work(recording: Row) -> None:
    """A consumer's function that does nothing."""


def check(lab: Lab, **chosen: Any) -> None:
    app = lab.app()
    options = {"table": lab.table, "state": "analysis_state", **chosen}
    app.consumer("birdnet", **options)(work)
    store_of(app, "birdnet").source.table  # noqa: B018 - looks at the user's table


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"table": "nowhere"}, "there is no table nowhere"),
        ({"key": "nothing"}, "key='nothing', but"),
        ({"state": "nothing"}, "state='nothing', but"),
        ({"order_by": "nothing DESC"}, "order_by='nothing', but"),
        ({"columns": ["id", "nothing"]}, "columns='nothing', but"),
        ({"key": "path"}, "key='path' is not unique"),
        ({"state": "time"}, "state='time' is of type"),
        ({"where": "path = ("}, "where='path = \\(' does not work"),
        ({"where": "path = '') OR (1 = 1"}, 'OR \\(1 = 1" does not work'),
        # in the database's words, and not as if the queue's own tables were meant
        ({"where": "nowhere = 1"}, r"where='nowhere = 1' does not work on \S*recordings: (no such )?column"),
        ({"where": "1 = 1) OR (1 = 1; DROP TABLE recordings"}, "does not work"),
    ],
)
def test_what_the_table_does_not_have_is_named(lab: Lab, chosen: dict[str, Any], words: str) -> None:
    lab.create(1)
    with pytest.raises(ConfigurationError, match=words):
        check(lab, **chosen)
    assert len(lab.states()) == 1


@pytest.mark.parametrize(
    "name",
    ["", "bird net", 'bird"net', "bird'net", "bird.net", "$", "a" * 41, "1st", "vögel", 3, "x]", "a%b"],
)
def test_a_name_that_is_no_plain_json_key_is_refused(app: Rowlock, name: Any) -> None:
    with pytest.raises(ConfigurationError, match="JSON key"):
        app.consumer(name, table="recordings", state="s")(work)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("table", "a.b.c"),
        ("table", ""),
        ("table", "rowlock_jobs"),
        ("table", "x\x00y"),
        ("key", "a%b"),
        ("key", ""),
        ("state", "a:b"),
        ("state", "x" * 64),
        ("order_by", "a\\b"),
        ("columns", "id"),
        ("columns", []),
        ("columns", ["a{b}"]),
        ("where", ""),
        ("where", 5),
        ("timeout", 0),
        ("pool", "fiber"),
        ("pool", "async"),
        ("retry", 3),
    ],
)
def test_an_option_that_cannot_work_is_refused_where_it_is_written(
    app: Rowlock, option: str, value: Any
) -> None:
    options = {"table": "recordings", "state": "s", option: value}
    with pytest.raises(ConfigurationError, match=option):
        app.consumer("birdnet", **options)(work)


def test_a_function_takes_one_row(app: Rowlock) -> None:
    def two(recording: Row, other: Row) -> None: ...

    with pytest.raises(ConfigurationError, match="one argument"):
        app.consumer("birdnet", table="recordings", state="s")(two)


def test_names_with_quotes_and_spaces_are_quoted(lab: Lab) -> None:
    text = "TEXT" if lab.is_sqlite else "jsonb"
    table = f'{lab.prefix}"my ""odd"" table"'
    lab.execute(
        f'CREATE TABLE {table} ("the key" INTEGER PRIMARY KEY, "it\'s" {text}, '
        '"when; DROP" INTEGER, "select" TEXT)'
    )
    lab.execute(
        f'INSERT INTO {table} ("the key", "when; DROP", "select") VALUES (1, 2, ?), (2, 1, ?)', ("a", "b")
    )
    app, seen = lab.app(), []

    @app.consumer(
        "birdnet",
        table=f'{lab.prefix}my "odd" table',
        key="the key",
        state="it's",
        order_by="when; DROP",
        where="\"select\" <> 'x%y'",
        retry=Retry(max_attempts=2, base=0.0),
    )
    def birdnet(ctx: JobContext, row: Row) -> None:
        seen.append(row["select"])
        if ctx.attempt == 1:
            raise OSError
        with ctx.transaction():
            pass

    store_of(app, "birdnet").source.table.indexes.create()
    app.consume("birdnet", until_empty=True, concurrency=1)
    assert sorted(seen) == ["a", "a", "b", "b"]
    assert lab.execute(f'SELECT count(*) FROM {table} WHERE "it\'s" IS NULL') == [(0,)]


def test_a_state_that_is_no_object_is_reported_and_skipped(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.create(6)
    broken = {2: "[1, 2]", 4: '"text"', 5: "7"} | ({6: "{oops"} if lab.is_sqlite else {})
    for key, state in broken.items():
        lab.set_state(key, state)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state")(work)
    store_of(app, "birdnet").source.table.indexes.create()
    with caplog.at_level(logging.ERROR, "rowlock.consumer"):
        done = app.consume("birdnet", until_empty=True)
    assert done.completed == 6 - len(broken)
    (line,) = [record.getMessage() for record in caplog.records if "JSON object" in record.getMessage()]
    assert all(str(key) in line for key in broken)
    for key, state in broken.items():
        found = lab.execute(f"SELECT CAST(analysis_state AS TEXT) FROM {lab.table} WHERE id = {key}")
        assert found == [(state,)]
    assert lab.claims() == []


def test_a_user_may_still_insert_malformed_json_when_the_index_is_there(lab: Lab) -> None:
    if not lab.is_sqlite:
        pytest.skip("jsonb refuses it by itself")
    lab.create(1)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state")(work)
    store_of(app, "birdnet").source.table.indexes.create()
    lab.execute("INSERT INTO recordings (id, analysis_state) VALUES (9, '{oops')")
    lab.set_state(1, "oops]")
    assert app.consume("birdnet", until_empty=True).completed == 0


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_row_that_is_deleted_while_it_is_worked_on_leaves_nothing_behind(
    lab: Lab, in_transaction: bool
) -> None:
    lab.create(2)
    app = lab.app()

    @app.consumer("birdnet", table=lab.table, state="analysis_state")
    def birdnet(ctx: JobContext, recording: Row) -> None:
        if recording.id == 1:
            lab.execute(f"DELETE FROM {lab.table} WHERE id = 1")
        if in_transaction:
            with ctx.transaction() as tx:
                lab.detect(tx, recording.id, "birdnet")

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert lab.marks("birdnet") == {2: True}
    assert lab.detections() == ([("2", "birdnet")] if in_transaction else [])
    assert lab.claims() == []


def test_of_rows_that_end_together_the_missing_one_is_named_and_the_others_are_marked(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.create(3)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state")(work)
    store = store_of(app, "birdnet")
    worker = register(app.store)
    claims = store.exchange(worker, request=ClaimRequest(count=3)).claims
    lab.execute(f"DELETE FROM {lab.table} WHERE id = 2")
    assert store.exchange(worker, [one.ended(Ending.COMPLETED) for one in claims]).lost == []
    assert lab.marks("birdnet") == {1: True, 3: True}
    (told,) = [line for line in caplog.messages if "nothing to mark" in line]
    assert told.startswith("consumer birdnet: row 2 was deleted while it was worked on")
    assert lab.claims() == []


def test_a_row_that_is_deleted_while_it_waits_to_be_tried_again_is_forgotten(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()

    @app.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(base=3600.0))
    def birdnet(recording: Row) -> None:
        raise OSError

    app.consume("birdnet", until_empty=True)
    assert len(lab.claims()) == 2
    lab.execute(f"DELETE FROM {lab.table} WHERE id = 1")
    lab.set_state(2, '{"birdnet": true}')
    app.consume("birdnet", until_empty=True)
    assert lab.claims() == []


def test_an_unknown_consumer_is_named(app: Rowlock) -> None:
    app.consumer("birdnet", table="recordings", state="s")(work)
    with pytest.raises(LookupError, match="birdnet"):
        app.consume("batdetect")


def test_a_strategy_that_needs_a_priority_is_refused_for_a_consumer(lab: Lab) -> None:
    lab.create(1)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state")(work)
    for strategy in ("PRIORITY", "WEIGHTED_RANDOM"):
        with pytest.raises(ConfigurationError, match=rf"consumer:birdnet: {strategy} .*order_by.*FIFO.*LIFO"):
            app.set_strategy("consumer:birdnet", strategy)
        with pytest.raises(ConfigurationError, match=rf"consumer:birdnet: {strategy} .*order_by"):
            app.consuming("birdnet").strategy = strategy
    app.set_strategy("consumer:birdnet", None)
    assert [one.strategy for one in app.store.queues()] in ([], [None])


@pytest.mark.parametrize("order_by", ["time DESC, nothing", ["id", "nothing DESC"], "nothing, time"])
def test_of_several_columns_to_order_by_the_one_that_is_not_there_is_named_alone(
    lab: Lab, order_by: Any
) -> None:
    lab.create()
    with pytest.raises(ConfigurationError, match=r"order_by='nothing', but .* it has: id, time"):
        check(lab, order_by=order_by)


@pytest.mark.parametrize("order_by", ["time, time DESC", [], ["time", 3], "time,,id", ["time"] * 9])
def test_what_cannot_be_an_order_is_refused(app: Rowlock, order_by: Any) -> None:
    with pytest.raises(ConfigurationError, match="order_by"):
        app.consumer("birdnet", table="recordings", state="s", order_by=order_by)(work)


def test_a_column_with_a_comma_in_its_name_can_be_ordered_by(lab: Lab) -> None:
    lab.create()
    lab.execute(f'ALTER TABLE {lab.table} RENAME COLUMN time TO "a, b"')
    check(lab, order_by=["a, b DESC", "id"])


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"flag": Flag("ready", at="ready")}, "ready"),
        ({"status": Status("status", attempts="path")}, "path"),
        ({"status": Status("status", progress="path")}, "path"),
        ({"status": Status("status", updated_at="ready")}, "ready"),
    ],
)
def test_a_column_that_cannot_hold_what_is_written_there_is_refused_at_the_start(
    lab: Lab, chosen: dict[str, Any], words: str
) -> None:
    if lab.is_sqlite:
        pytest.skip("SQLite's columns hold anything")
    lab.create(1)
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN status text, ADD COLUMN ready boolean")
    with pytest.raises(ConfigurationError, match=f"does not work on .*{words}"):
        check(lab, state=None, **chosen)


def test_a_generated_column_cannot_be_kept(lab: Lab) -> None:
    lab.create(1)
    lab.execute(f"DROP TABLE {lab.table}")
    kind = "GENERATED ALWAYS AS (id * 2) STORED"
    lab.execute(f"CREATE TABLE {lab.table} (id INTEGER PRIMARY KEY, status TEXT, twice INTEGER {kind})")
    with pytest.raises(ConfigurationError, match=r"does not work on .*twice"):
        check(lab, state=None, status=Status("status", progress="twice"))


def test_a_time_may_be_kept_as_a_date(lab: Lab) -> None:
    lab.create(1)
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN status text")
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN day date")
    lab.execute(f"UPDATE {lab.table} SET status = 'pending'")
    app = lab.app()
    app.consumer("birdnet", table=lab.table, status=Status("status", finished_at="day"))(work)
    app.consume("birdnet", until_empty=True)
    assert lab.execute(f"SELECT count(*) FROM {lab.table} WHERE day IS NOT NULL") == [(1,)]


def test_a_budget_that_is_no_number_is_the_consumers_own(lab: Lab) -> None:
    if not lab.is_sqlite:
        pytest.skip("PostgreSQL's columns have types of their own")
    lab.create(1)
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN status text DEFAULT 'pending'")
    app = lab.app()
    status = Status("status", max_attempts="path")
    app.consumer("birdnet", table=lab.table, status=status, retry=Retry(max_attempts=2, base=0.0))(fails)
    assert app.consume("birdnet", until_empty=True).failed == 1


def fails(recording: Row) -> None:
    raise OSError("away")
