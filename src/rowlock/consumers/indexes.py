"""The indexes that make a consumer's claims and counts cheap, and what creates them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from rowlock.consumers import names
from rowlock.consumers.ordering import Order
from rowlock.consumers.table_sql import DIRECTION
from rowlock.consumers.trial import LeftOut, Trial
from rowlock.errors import StoreError

if TYPE_CHECKING:
    from rowlock.consumers.table import Table

_FINGERPRINT = re.compile(r"rowlock [0-9a-f]{8}\b")


class Indexes:
    """The indexes of one consumer."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._database = table.database
        self._consumer = table.consumer
        self._dialect = table.columns.dialect
        self._sql = table.sql
        self._fingerprints: dict[str, str] = {}  # by name, of all in `definitions`

    @cached_property
    def definitions(self) -> dict[str, str]:
        """The statement that creates each index, by the index's name."""
        if not self._dialect.create:
            return {}
        consumer, form, due_time = self._consumer, self._consumer.form, self._table.columns.due_time
        written = self._sql.pieces()
        due, parts = written["due_condition"], self._tried[0]
        found = {consumer.index: self._definition(consumer.index, consumer.position, due, self._ahead, parts)}
        if due_time and not self._dialect.hints:
            name = f"rowlock_{consumer.name}_due_at"
            found[name] = self._definition(name, (), due, self._ahead, parts)
        failed = f"rowlock_{consumer.name}_failed"
        if not form.keeps_failures:
            found[failed] = self._definition(failed, ((consumer.key, False),), written["failed_condition"])
        for name, column, named in form.indexes(consumer.name, consumer.table[-1], consumer.key):
            found[name] = self._definition(name, ((column, False),), written[named])
        return found

    @property
    def _ahead(self) -> str:
        """The time as the last column: a scan skips rows that are not due yet without reading them."""
        due_time = self._table.columns.due_time
        return due_time.indexed if due_time else ""

    def _definition(
        self,
        name: str,
        columns: Sequence[Order],
        condition: str,
        last: str = "",
        parts: Sequence[str] | None = None,
    ) -> str:
        """`parts` are those of the user's condition that the index has; None: it is not for due rows."""
        listed = ", ".join(
            [
                *(f"{names.quoted(column)}{DIRECTION[down]}" for column, down in columns),
                *([last] if last else []),
            ]
        )
        where = " AND ".join([condition, *(f"(\n{part}\n)" for part in parts or ())])
        whole = None if parts is None else self._consumer.where
        self._fingerprints[name] = self._fingerprint(columns, condition, last, whole)
        inside = self._dialect.note_inside.format(self._fingerprints[name])
        return self._sql.filled(
            f"{self._dialect.create} {names.quoted(name)} ON «table» ({listed}){inside} WHERE {where}"
        )

    def _fingerprint(
        self, columns: Sequence[Order], condition: str, last: str, user_condition: str | None
    ) -> str:
        """What an index was made for, in short; it is kept with the index."""
        made_for = repr((tuple(columns), self._sql.filled(condition), self._sql.filled(last), user_condition))
        return f"rowlock {hashlib.sha256(made_for.encode()).hexdigest()[:8]}"

    def is_outdated(self, kept: str) -> bool:
        """Whether the index of due rows, of which the database keeps this, was made for something else."""
        due = self._sql.pieces()["due_condition"]
        made_for = self._fingerprint(self._consumer.position, due, self._ahead, self._consumer.where)
        return _differs(kept, made_for)

    @property
    def outdated(self) -> list[str]:
        """The indexes that were made for something else; one without a fingerprint is taken as it is."""
        kept = {name: self._table.catalogue.index(name) for name in self.definitions}
        return [
            name
            for name, there in kept.items()
            if there and _differs(there[0] or "", self._fingerprints[name])
        ]

    @property
    def left_out(self) -> list[LeftOut]:
        """The parts of the user's condition that the index of due rows leaves out."""
        return self._tried[1]

    @cached_property
    def _tried(self) -> tuple[list[str], list[LeftOut]]:
        """The parts of the user's condition that the index may have, and those that it leaves out."""
        if self._consumer.where is None or not self._dialect.create:
            return [], []
        with self._database.read() as db:
            columns = db.using(self._sql.pieces()).rows("columns_to_copy", table=self._table.catalogue.table)
        place = {name: self._sql.filled(f"«{name}»") for name in ("t", "table", "key")}
        return Trial(self._database, self._dialect, columns, **place).sort(self._consumer.where)

    def create_statements(self) -> dict[str, list[str]]:
        """The statements that create each index, by name; one that does not fit is dropped first."""
        found = {name: [statement] for name, statement in self.definitions.items()}
        gone = {*self.outdated, *([self._consumer.index] if self._table.index_reads_clock else [])}
        for name, statements in found.items():
            if name in gone:
                statements.insert(0, self._drop(name))
            if self._dialect.note_after and (name in gone or self._table.catalogue.index(name) is None):
                statements.append(
                    self._dialect.note_after.format(self._fingerprints[name], self._place(name))
                )
        return found

    def create(self) -> None:
        """Create the indexes that are missing."""
        for name, statements in self.create_statements().items():
            try:
                self._run(statements)
            except StoreError:
                if not self._dialect.hints:
                    self._drop_unfinished(name)
                raise
        self._table.look_for_index()

    def _drop_unfinished(self, name: str) -> None:
        """Drop an index that PostgreSQL left invalid after an error: it is unused, and can refuse rows."""
        with suppress(StoreError):
            if self._table.catalogue.index(name) is None:
                self._run([self._drop(name)])

    def _run(self, statements: Sequence[str]) -> None:
        """Run statements without parameters; in one transaction, where the database allows that."""
        open_session = self._database.write if self._dialect.hints else self._database.unhurried
        with open_session() as db:
            for statement in statements:
                db.using({"it": statement.replace("%", self._dialect.percent)}).run("it")

    def _drop(self, name: str) -> str:
        return f"{self._dialect.drop} {self._place(name)}"

    def _place(self, name: str) -> str:
        return ".".join(names.quoted(part) for part in (*self._consumer.table[:-1], name))


def _differs(kept: str, fingerprint: str) -> bool:
    found = _FINGERPRINT.search(kept)
    return found is not None and found[0] != fingerprint
