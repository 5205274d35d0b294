"""Rows of which the database refuses something: each ends by itself, and the others are done all the same."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock import Fail, JobContext, Rowlock, Status
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab
from tests.stores.steps import refuse_updates

WORDS = Status("status", error="error")
LONG = "a reason of a hundred and fifty characters " + "é" * 107
NEVER = "this row stays as it is"


class Desk:
    """A table with a status column, of which some columns are choosy."""

    def __init__(self, lab: Lab, app: Rowlock, *columns: str, status: Status = WORDS, **chosen: Any) -> None:
        self.lab = lab
        self.table = f"{lab.prefix}jobs"
        self.app = app
        declared = ", ".join(columns or ("error TEXT",))
        lab.execute(f"CREATE TABLE {self.table} (id INTEGER PRIMARY KEY, status TEXT, {declared})")
        self._chosen = {"table": self.table, "status": status, "retry": False, **chosen}

    def add(self, *keys: int, **values: Any) -> None:
        names, given = ["id", "status", *values], ", ".join("?" for _ in range(2 + len(values)))
        for key in keys:
            self.lab.execute(
                f"INSERT INTO {self.table} ({', '.join(names)}) VALUES ({given})",
                (key, "pending", *values.values()),
            )

    def consume(self, function: Any, **options: Any) -> Any:
        self.app.consumer("desk", **self._chosen)(function)
        return self.app.consume("desk", until_empty=True, concurrency=1, **options)

    def rows(self, columns: str = "status, error") -> dict[int, tuple[Any, ...]]:
        found = self.lab.execute(f"SELECT id, {columns} FROM {self.table} ORDER BY id")
        return {row[0]: tuple(row[1:]) for row in found}

    def refuse(self, condition: str) -> None:
        refuse_updates(self.lab.execute, self.lab.prefix, "jobs", condition, NEVER)


@pytest.fixture
def app(lab: Lab) -> Rowlock:
    return lab.app()


def nothing(row: Row) -> None:
    """A consumer's function that does nothing."""


def fails(row: Row) -> None:
    raise Fail(LONG)


def fails_at_two(row: Row) -> None:
    if row.id == 2:
        raise Fail("no picture")


# -- an error column with a length, or one that may not be null ------------------------------------


@pytest.mark.parametrize("kind", ["varchar(100)", "character varying(100)", "CHAR(100)"])
def test_an_error_is_cut_to_the_length_of_its_column(lab: Lab, app: Rowlock, kind: str) -> None:
    desk = Desk(lab, app, f"error {kind}")
    desk.add(1, 2)
    assert desk.consume(fails).failed == 2
    assert desk.rows() == dict.fromkeys((1, 2), ("failed", LONG[:100]))


def test_a_domain_over_a_length_or_not_null_counts_like_the_column_itself(lab: Lab, app: Rowlock) -> None:
    if lab.is_sqlite:
        pytest.skip("SQLite has no domains")
    lab.execute(f"CREATE DOMAIN {lab.prefix}reason AS varchar(20) NOT NULL DEFAULT ''")
    desk = Desk(lab, app, f"error {lab.prefix}reason")
    desk.add(1, 2)
    desk.consume(fails_at_two)
    assert desk.rows() == {1: ("completed", ""), 2: ("failed", "no picture")}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_error_column_that_may_not_be_null_is_emptied(
    lab: Lab, app: Rowlock, *, in_transaction: bool
) -> None:
    desk = Desk(lab, app, "error TEXT NOT NULL DEFAULT 'none yet'")
    desk.add(1, 2, 3)

    def work(ctx: JobContext, row: Row) -> None:
        fails_at_two(row)
        if in_transaction:
            with ctx.transaction() as tx:
                tx.execute("SELECT 1")

    desk.consume(work)
    assert desk.rows() == {1: ("completed", ""), 2: ("failed", "no picture"), 3: ("completed", "")}


def test_rows_that_failed_can_be_retried_though_their_error_may_not_be_null(lab: Lab, app: Rowlock) -> None:
    from rowlock.consumers.overview import retry_failed

    desk = Desk(lab, app, "error TEXT NOT NULL DEFAULT ''")
    desk.add(1)
    desk.consume(fails)
    assert retry_failed(app.consumer_host("desk")) == 1
    assert desk.rows() == {1: ("pending", "")}
