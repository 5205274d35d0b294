"""That the indexes of a consumer never keep their user from writing to the table."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from rowlock import Flag, Rowlock, StoreError
from rowlock.consumers import overview, trial
from rowlock.consumers.row import Row
from rowlock.consumers.table import Table
from tests.consumers.lab import Lab, store_of

CLOCK = {True: "path <= datetime('now')", False: "CAST(path AS timestamptz) <= now()"}
INDEX = {
    True: "SELECT sql FROM sqlite_master WHERE name = 'rowlock_birdnet_due'",
    False: "SELECT pg_get_indexdef(CAST('{0}rowlock_birdnet_due' AS regclass))",
}


def work(recording: Row) -> None:
    """A consumer's function that does nothing."""


def table_of(app: Rowlock, lab: Lab, where: str) -> Table:
    app.consumer("birdnet", table=lab.table, state="analysis_state", where=where)(work)
    return store_of(app, "birdnet").source.table


def initialised(lab: Lab, where: str) -> tuple[Table, str]:
    """The table after `rowlock consumers init`, and how its index was created."""
    table = table_of(lab.app(), lab, where)
    table.indexes.create()
    ((created,),) = lab.execute(INDEX[lab.is_sqlite].format(lab.prefix))
    return table, created


def left_out(table: Table) -> list[str]:
    return list(table.indexes.left_out)


def test_rows_can_be_inserted_after_a_condition_that_reads_the_clock(lab: Lab) -> None:
    lab.create()
    table, created = initialised(lab, CLOCK[lab.is_sqlite])
    lab.execute(f"INSERT INTO {lab.table} (id, path) VALUES (1, '2020-01-01 00:00:00'), (2, NULL)")
    assert left_out(table) == [CLOCK[lab.is_sqlite]]
    assert "now" not in created and "analysis_state" in created
    assert lab.app().store.queues() == []
    app = lab.app()
    table_of(app, lab, CLOCK[lab.is_sqlite])
    assert app.consume("birdnet", until_empty=True).completed == 1


def test_rows_can_be_inserted_after_a_condition_with_a_subquery(lab: Lab) -> None:
    lab.create()
    condition = f"EXISTS (SELECT 1 FROM {lab.prefix}detections)"
    table, created = initialised(lab, condition)
    lab.fill(1, 2)
    assert left_out(table) == [condition]
    assert "subquer" in table.indexes.left_out[condition]
    assert "EXISTS" not in created


def test_the_part_that_never_changes_stays_in_the_index(lab: Lab) -> None:
    lab.create()
    clock = CLOCK[lab.is_sqlite]
    table, created = initialised(lab, f"id BETWEEN 1 AND 50 -- so far\nAND {clock} AND path LIKE '2%'")
    lab.execute(f"INSERT INTO {lab.table} (id, path) VALUES (1, '2020-01-01 00:00:00'), (99, '2020-01-01')")
    assert left_out(table) == [clock]
    assert "50" in created and "2%" in created and "now" not in created
    table.look_for_index()
    assert table.has_index and "rowlock_birdnet_due" in table.plan()


def test_a_condition_of_the_tables_own_columns_is_in_the_index_whole(lab: Lab) -> None:
    lab.create(3)
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN kind TEXT NOT NULL DEFAULT 'a' CHECK (kind <> 'x')")
    table, created = initialised(lab, "recordings.path IS NOT NULL AND (kind = 'a' OR time > 5)")
    assert table.indexes.left_out == {}
    assert "path" in created and "kind" in created
    assert lab.execute(f"SELECT count(*) FROM {lab.table}") == [(3,)]


def test_a_generated_column_may_be_in_the_condition(lab: Lab) -> None:
    lab.create()
    stored = "STORED" if not lab.is_sqlite else "VIRTUAL"
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN twice BIGINT GENERATED ALWAYS AS (id * 2) {stored}")
    table, created = initialised(lab, "twice > 3")
    lab.fill(1, 2)
    assert table.indexes.left_out == {} and "twice" in created


@pytest.mark.parametrize("lab", ["postgres"], indirect=True)
def test_a_generated_column_that_is_not_stored_is_left_out(lab: Lab) -> None:
    if lab.execute("SELECT current_setting('server_version_num')::int < 180000") == [(True,)]:
        pytest.skip("this PostgreSQL stores every generated column")
    lab.create()
    lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN twice BIGINT GENERATED ALWAYS AS (id * 2) VIRTUAL")
    table, created = initialised(lab, "twice > 3 AND id < 50")
    lab.fill(1, 2)
    assert left_out(table) == ["twice > 3"] and "virtual" in table.indexes.left_out["twice > 3"]
    assert "50" in created and "twice" not in created and table.has_index


def test_what_would_fail_for_some_values_only_is_left_out(lab: Lab) -> None:
    lab.create()
    condition = "json_extract(path, '$.n') > 1" if lab.is_sqlite else "CAST(path AS integer) > 1"
    table, _ = initialised(lab, condition)
    lab.fill(1, 1)  # its path is neither JSON nor a number
    assert left_out(table) == [condition]


def test_a_clock_in_a_branch_that_no_row_takes_yet_is_left_out(lab: Lab) -> None:
    lab.create()
    condition = f"CASE WHEN id = 99 THEN {CLOCK[lab.is_sqlite]} ELSE true END"
    table, _ = initialised(lab, condition)
    lab.execute(f"INSERT INTO {lab.table} (id, path) VALUES (99, '2020-01-01 00:00:00')")
    assert left_out(table) == [condition]


def test_all_is_left_out_if_nothing_can_be_tried(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create()
    table = table_of(lab.app(), lab, "id > 1 AND path IS NOT NULL")
    monkeypatch.setattr(trial, "_COPY", "SELECT 1 FROM nowhere")
    table.indexes.create()
    assert left_out(table) == ["id > 1", "path IS NOT NULL"]
    assert "nowhere" in table.indexes.left_out["id > 1"]


def test_an_index_that_reads_the_clock_is_made_anew(lab: Lab) -> None:
    if not lab.is_sqlite:
        pytest.skip("PostgreSQL does not create such an index")
    lab.create()
    due = "CREATE INDEX rowlock_birdnet_due ON recordings (id) WHERE path <= datetime('now')"
    lab.execute(due)
    app = lab.app()
    table = table_of(app, lab, CLOCK[True])
    (finding,) = [one for one in overview.findings(app) if one.level == "error"]
    assert "rowlock_birdnet_due" in finding.message and "consumers init" in str(finding.advice)
    assert table.indexes.create_statements()["rowlock_birdnet_due"][0].startswith("DROP INDEX")
    table.indexes.create()
    lab.fill(1, 1)
    assert [one.level for one in overview.findings(app)] == ["ok"]


@pytest.mark.parametrize(
    "changed",
    [
        {"order_by": "time"},
        {"order_by": "id DESC"},
        {"order_by": "id", "where": "id < 9"},
        {"order_by": "id", "flag": Flag("checked")},
    ],
)
def test_an_index_for_something_else_is_made_anew(lab: Lab, changed: dict[str, Any]) -> None:
    lab.create(1)
    for column in ("uploaded", "checked"):
        lab.execute(f"ALTER TABLE {lab.table} ADD COLUMN {column} BOOLEAN")
    app, first = lab.app(), {"flag": Flag("uploaded"), "order_by": "id", "where": "id > 0"}
    app.consumer("birdnet", table=lab.table, **first)(work)
    app.consumer_source("birdnet").table.indexes.create()
    assert app.consumer_source("birdnet").record().has_index
    other = lab.app()
    other.consumer("birdnet", table=lab.table, **{**first, **changed})(work)
    table = other.consumer_source("birdnet").table
    assert not table.has_index
    (finding,) = [one for one in overview.findings(other) if one.level == "warning"]
    assert "was made for another" in finding.message and "consumers init" in str(finding.advice)
    assert table.indexes.outdated == ["rowlock_birdnet_due"]
    table.indexes.create()
    assert table.has_index and table.indexes.outdated == []
    assert "DROP" not in str(table.indexes.create_statements())


def test_an_index_that_cannot_be_finished_is_taken_away_again(lab: Lab) -> None:
    if lab.is_sqlite:
        pytest.skip("SQLite undoes the statement")
    lab.create()
    lab.execute(f"INSERT INTO {lab.table} (id, analysis_state) VALUES (1, CAST(? AS jsonb))", ('{"n": "x"}',))
    table = table_of(lab.app(), lab, "CAST(analysis_state ->> 'n' AS integer) > 1")
    with pytest.raises(StoreError, match="invalid input syntax"):
        table.indexes.create()
    lab.execute(f"INSERT INTO {lab.table} (id, analysis_state) VALUES (2, CAST(? AS jsonb))", ('{"n": "y"}',))
    asked = f"SELECT count(*) FROM pg_index WHERE indrelid = CAST('{lab.table}' AS regclass)"
    assert lab.execute(asked) == [(1,)]  # its primary key


def test_what_is_tried_leaves_nothing_behind(lab: Lab) -> None:
    lab.create(2)
    before: Any = lab.states()
    app = lab.app()
    table = table_of(app, lab, f"id > 1 AND {CLOCK[lab.is_sqlite]}")
    assert len(table.indexes.definitions) == 3
    assert lab.states() == before
    with app.store.database.read() as db:  # type: ignore[attr-defined]
        names = "sqlite_temp_master" if lab.is_sqlite else "pg_class WHERE relname = 'rowlock_trial'"
        assert db.using({"left": f"SELECT count(*) FROM {names}"}).row("left")[0] == 0
    assert table_of(lab.app(), lab, "id > 1").has_index is False


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)
def test_statements_that_are_asked_for_while_the_index_is_created_name_it_afterwards(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.create()
    table = table_of(lab.app(), lab, "id > 0")

    def change_and_ask(self: Table, name: str, value: object) -> None:
        """As if another thread asked whenever something changes."""
        object.__setattr__(self, name, value)
        assert self.statements

    monkeypatch.setattr(Table, "__setattr__", change_and_ask)
    table.indexes.create()
    assert table.has_index and "INDEXED BY" in table.statements["take_free"]


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)
def test_statements_that_are_written_while_the_index_is_created_are_not_kept(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.create()
    table = table_of(lab.app(), lab, "id > 0")
    written = table._written

    def write_slowly(style: str | None) -> Any:
        monkeypatch.undo()
        found = written(style)
        table.indexes.create()
        return found

    monkeypatch.setattr(table, "_written", write_slowly)
    assert "INDEXED BY" not in table.on("pyformat")["take_free"]
    assert table.has_index and "INDEXED BY" in table.on("pyformat")["take_free"]


@pytest.mark.parametrize("lab", ["postgres"], indirect=True)
def test_an_index_is_built_however_long_an_older_transaction_stays_open(lab: Lab) -> None:
    """The server waits for every transaction that began before; a limit for locks must not end that."""
    app = lab.app(busy_timeout=0.1)
    lab.create(1)
    app.consumer("birdnet", table=lab.table, state="analysis_state")(work)
    table = store_of(app, "birdnet").source.table
    with closing(lab.connect()) as older:
        older.execute(f"BEGIN; LOCK TABLE {lab.table} IN ROW EXCLUSIVE MODE")
        building = threading.Thread(target=table.indexes.create)
        building.start()
        building.join(1.0)
        assert building.is_alive()
        older.execute("COMMIT")
        building.join(30.0)
    assert not building.is_alive() and table.has_index
