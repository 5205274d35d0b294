"""The statements that every job goes through, prepared once per connection and run without a cursor.

A cursor of psycopg costs 60 us of Python per statement, of the 600 that one takes with its commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import md5

import psycopg
from psycopg import generators
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, abc

from rowlock.stores.postgres.connections import Connection

Value = str | int | float | None
Row = tuple[bytes | None, ...]
_PLACE = re.compile(r"%\((\w+)\)s|%%")
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Prepared:
    """One statement, which commits by itself; values go and come as text."""

    def __init__(self, statement: str) -> None:
        self._names: list[str] = []
        self._text = _PLACE.sub(self._place, statement).encode()
        self._id = f"rowlock_{md5(self._text, usedforsecurity=False).hexdigest()}".encode()

    def _place(self, found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        if name not in self._names:
            self._names.append(name)
        return f"${self._names.index(name) + 1}"

    def rows(self, connection: Connection, values: Mapping[str, Value]) -> list[Row]:
        """Run it; raises what psycopg raises."""
        given = [_as_text(values[name]) for name in self._names]
        if self._id not in connection.prepared:
            self._prepare(connection)
        try:
            return self._run(connection, given)
        except InvalidSqlStatementName:  # after a rollback psycopg lets the server forget all statements
            self._prepare(connection)
            return self._run(connection, given)

    def _prepare(self, connection: Connection) -> None:
        connection.pgconn.send_prepare(self._id, self._text)
        with suppress(DuplicatePreparedStatement):  # the same: whoever prepared it was interrupted after that
            _answer(connection)
        connection.prepared.add(self._id)

    def _run(self, connection: Connection, given: list[bytes | None]) -> list[Row]:
        connection.pgconn.send_query_prepared(self._id, given)
        result = _answer(connection)
        columns = range(result.nfields)
        return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]


@lru_cache(maxsize=256)
def prepared(statement: str) -> Prepared:
    """The same text is the same prepared statement."""
    return Prepared(statement)


def _as_text(value: Value) -> bytes | None:
    if value is None:
        return None
    # Not by its own str(): that of an Enum that is text or a number, too, is the name of its member.
    if isinstance(value, str):
        text = str.encode(value)
    else:
        text = b"%d" % value if isinstance(value, int) else float.__repr__(value).encode()
    if b"\0" in text:  # it would end there, without a word
        raise psycopg.DataError("PostgreSQL text cannot hold a NUL character")
    return text


def _answer(connection: Connection) -> abc.PGresult:
    """The result of what was sent; raises if it is an error, or does not come in time."""
    results: list[abc.PGresult] = connection.wait(generators.execute(connection.pgconn))
    for result in results:
        if result.status not in _GOOD:  # the first error is the one to tell
            raise error_from_result(result)
    if not results:
        raise psycopg.OperationalError("the connection was lost")
    return results[-1]
