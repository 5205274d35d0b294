"""When a job holds its unique key: said once in SQL, and the same for a row that `rowlock copy` brings."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import rowlock
from rowlock.copying.arriving import wants_key
from rowlock.job import State
from rowlock.stores.sql.statements import fragments

SOURCE = Path(rowlock.__file__).parent
CONDITION = fragments("rowlock.stores.sql", "unique_keys.sql")["holds_unique_key"]


def test_indexes_and_statements_of_every_store_have_the_same_condition() -> None:
    saying = [file for file in SOURCE.rglob("*.sql") if "unique_until IS NOT NULL" in file.read_text("utf-8")]
    assert saying == [SOURCE / "stores" / "sql" / "unique_keys.sql"]


@pytest.mark.parametrize("until", [None, "finished", "claimed"])
@pytest.mark.parametrize("state", State)
def test_a_copied_row_wants_its_key_as_long_as_it_would_hold_it(state: State, until: str | None) -> None:
    row = {"state": state, "unique_key": "key", "unique_until": until}
    with closing(sqlite3.connect(":memory:")) as connection:
        asked = f"SELECT {CONDITION} FROM (SELECT :state AS state, :until AS unique_until)"
        ((holds,),) = connection.execute(asked, {"state": str(state), "until": until})
    assert wants_key(row) == bool(holds)
