"""The columns of a consumer's table: their types, and how times and texts are written into them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rowlock.consumers import names
from rowlock.consumers.catalogue import Column
from rowlock.consumers.column_times import NUMBERS, DueTime, time_form, typed
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.dialects import DIALECTS
from rowlock.stores.sql.database import Database

_PRECISION = re.compile(r"\(\d+\)")  # of timestamp(3) with time zone, say


class Columns:
    """The columns of one table, as its database describes them."""

    def __init__(self, database: Database, consumer: Consumer, described: Sequence[Column]) -> None:
        self._database = database
        self._consumer = consumer
        self._described = {column.name: column for column in described}
        self.types = {column.name: column.type for column in described}
        self.dialect = DIALECTS[database.dialect]
        self.time_formats: dict[str, str] = {}  # of columns that times are written to, by mark («time_3»)

    @property
    def given(self) -> tuple[str, ...]:
        """The columns that the user's function gets."""
        return self._consumer.columns or tuple(self.types)

    def loaded(self, values: tuple[Any, ...]) -> list[Any]:
        """The values of these columns, as the user's own queries would get them from the driver."""
        load = self.dialect.load
        if not load:
            return list(values)
        return [
            load[kind](value) if (kind := _PRECISION.sub("", self.types[name])) in load else value
            for name, value in zip(self.given, values, strict=True)
        ]

    @cached_property
    def due_time(self) -> DueTime | None:
        """How the column of `due_at=` is compared with the clock; None: it is no time, or not given."""
        name = self._consumer.due_at
        return None if name is None else self.dialect.column_time(self.types[name]).due_time

    def now_in(self, column: str) -> str:
        """SQL: the current time as that column holds it."""
        now = self.dialect.column_time(self.types[column]).now
        if "«iso»" not in now:
            return now
        mark = f"time_{list(self.types).index(column)}"
        if mark not in self.time_formats:
            self.time_formats[mark] = self._consumer.form.time_format or self._time_format(column)
        return NUMBERS.get(self.time_formats[mark]) or now.replace("iso", mark)

    def older(self, column: str) -> str:
        """SQL: whether the time in that column is older than :age."""
        return self.dialect.column_time(self.types[column]).older(names.quoted(column))

    def _time_format(self, column: str) -> str:
        """How times are written into a column that takes any text: in the format of a value that is there."""
        place, name = ".".join(map(names.quoted, self._consumer.table)), names.quoted(column)
        one = f"SELECT {name} FROM {place} WHERE {name} IS NOT NULL LIMIT 1"  # noqa: S608 - quoted names
        with self._database.read() as db:
            found = db.using({"one": one}).row("one")
        return time_form(None if found is None else found[0])

    def may_be_null(self, column: str) -> bool:
        """Whether that column takes NULL."""
        return not self._described[column].not_null

    def number(self, column: str, value: str) -> str:
        """A number as that column takes it: rounded, if it has whole numbers."""
        return self.dialect.as_whole.format(value) if typed(".*INT")(self.types[column]) else value

    def json_value(self, column: str, text: str) -> str:
        """A JSON text as that column takes it; it is never cut, because a part of it would not be JSON."""
        kind = self.types[column]
        return self.dialect.as_type.format(text, kind if kind in ("json", "jsonb") else "text")

    def fitted(self, column: str, text: str) -> str:
        """A text cut to the length of that column; an empty text for NULL, if the column is NOT NULL."""
        described = self._described[column]
        if described.length is not None:
            text = f"substr({text}, 1, {described.length})"
        return f"coalesce({text}, '')" if described.not_null else text
