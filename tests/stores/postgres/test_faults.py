"""Which of PostgreSQL's errors are about what was to be written, and which about the server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from rowlock.errors import DataRefused, StoreBusy, StoreError, StoreMissing, StoreUnusable
from rowlock.stores.postgres.faults import explain


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as made:
        yield made


def in_function(statement: str) -> str:
    """As a trigger's function would run it."""
    return f"DO $$ BEGIN {statement}; END $$"


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT 1 / 0", DataRefused),
        ("SELECT CAST('12345' AS varchar(3)), CAST('x' AS integer)", DataRefused),
        (in_function("RAISE EXCEPTION 'the disk is full'"), DataRefused),
        (in_function("RAISE EXCEPTION 'no' USING ERRCODE = 'AB123'"), DataRefused),
        (in_function("PERFORM * FROM nowhere"), DataRefused),  # a trigger that is broken refuses its rows
        ("SELECT * FROM nowhere", StoreMissing),
        (in_function("RAISE EXCEPTION 'again' USING ERRCODE = '40001'"), StoreBusy),
        (f"SET statement_timeout = 1; {in_function('PERFORM pg_sleep(9)')}", StoreBusy),
        ("SET statement_timeout = 1; SELECT pg_sleep(9)", StoreBusy),
        ("BEGIN READ ONLY; CREATE TABLE never (id integer)", StoreUnusable),
        ("SELEKT 1", StoreError),
    ],
)
def test_an_error_is_about_the_data_or_about_the_store(
    connection: psycopg.Connection, statement: str, kind: type[StoreError]
) -> None:
    with pytest.raises(psycopg.Error) as raised:
        connection.execute(statement.encode())
    assert type(explain(raised.value, "here")) is kind


def test_what_the_database_said_leaves_out_where_it_was(connection: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error) as raised:
        connection.execute(in_function("RAISE EXCEPTION 'no room' USING DETAIL = 'in box 7'").encode())
    refused = explain(raised.value, "here")
    assert isinstance(refused, DataRefused) and refused.said == "no room in box 7"


def test_what_the_driver_refuses_to_send_is_about_the_data(connection: psycopg.Connection) -> None:
    with pytest.raises(psycopg.DataError) as raised:
        connection.execute("SELECT %s", ["\0"])
    assert type(explain(raised.value, "here")) is DataRefused
