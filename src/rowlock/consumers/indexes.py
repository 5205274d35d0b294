"""The indexes that make a consumer's claims and counts cheap, and what creates them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from rowlock.consumers import names
from rowlock.consumers.names import Order
from rowlock.consumers.trial import refusals
from rowlock.errors import StoreError

if TYPE_CHECKING:
    from rowlock.consumers.table import Table

DIRECTION = {False: "", True: " DESC"}
_FINGERPRINT = re.compile(r"rowlock [0-9a-f]{8}\b")


class _Index(msgspec.Struct, frozen=True):
    """What an index is made for."""

    columns: tuple[Order, ...]
    condition: str
    is_of_due_rows: bool = False


class Indexes:
    """The indexes of one consumer."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._database = table.database
        self._consumer = table.consumer
        self._dialect = table.dialect

    @cached_property
    def _wanted(self) -> dict[str, _Index]:
        """The indexes that the consumer should have, by name."""
        if not self._dialect.create:
            return {}
        consumer, form, condition = self._consumer, self._consumer.form, self._table.condition
        by_key, due = ((consumer.key, False),), condition("{due}")
        wanted = {consumer.index: _Index(consumer.position, due, is_of_due_rows=True)}
        if consumer.due_at is not None and not self._dialect.hints:
            wanted[f"rowlock_{consumer.name}_due_at"] = _Index((), due, is_of_due_rows=True)
        if not form.keeps_failures:
            wanted[f"rowlock_{consumer.name}_failed"] = _Index(by_key, condition("{row_failed}"))
        if form.has_broken:  # small, and shared by all consumers of the table
            name = f"rowlock_{consumer.table[-1]}_{form.column}_broken"[:63]
            wanted[name] = _Index(by_key, condition("{broken}"))
        if form.stale_after is not None:
            since = ((str(form.running_since), False),)
            wanted[f"rowlock_{consumer.name}_running"] = _Index(since, condition("{markable}"))
        return wanted

    @cached_property
    def definitions(self) -> dict[str, str]:
        """The statement that creates each index, by the index's name."""
        return {name: self._definition(name, index) for name, index in self._wanted.items()}

    def _definition(self, name: str, index: _Index) -> str:
        listed = [f"{names.quoted(column)}{DIRECTION[down]}" for column, down in index.columns]
        where = [index.condition]
        if index.is_of_due_rows:
            listed += [self._due_time] if self._due_time else []
            where += [f"(\n{part}\n)" for part, reason in self._tried.items() if reason is None]
        note = self._dialect.note_inside.format(self._fingerprint(name))
        return (
            f"{self._dialect.create} {names.quoted(name)} ON {self._table.place} "
            f"({', '.join(listed)}){note} WHERE {' AND '.join(where)}"
        )

    @property
    def _due_time(self) -> str:
        """The time as the last column: a scan skips rows that are not due yet without reading them."""
        due_time = self._table.due_time
        return self._table.filled(due_time.indexed) if due_time else ""

    def _fingerprint(self, name: str) -> str:
        """What an index was made for, in short; it is kept with the index."""
        index = self._wanted[name]
        last, user_condition = (self._due_time, self._consumer.where) if index.is_of_due_rows else ("", None)
        made_for = (index.columns, index.condition, last, user_condition)
        return f"rowlock {hashlib.sha256(repr(made_for).encode()).hexdigest()[:8]}"

    def is_outdated(self, name: str, kept: str) -> bool:
        """Whether an index, of which the database keeps this, was made for something else.

        One without a fingerprint is taken as it is.
        """
        found = _FINGERPRINT.search(kept)
        return found is not None and found[0] != self._fingerprint(name)

    @property
    def outdated(self) -> list[str]:
        """The indexes that were made for something else."""
        kept = {name: self._table.index(name) for name in self._wanted}
        return [name for name, there in kept.items() if there and self.is_outdated(name, there[0] or "")]

    @property
    def left_out(self) -> dict[str, str]:
        """The parts of the user's condition that the index of due rows leaves out, and why."""
        return {part: reason for part, reason in self._tried.items() if reason is not None}

    @cached_property
    def _tried(self) -> dict[str, str | None]:
        """The parts of the user's condition, and why an index must not have them; None: it may."""
        if self._consumer.where is None or not self._dialect.create:
            return {}
        return refusals(self._table, self._consumer.where)

    def create_statements(self) -> dict[str, list[str]]:
        """The statements that create each index, by name; one that does not fit is dropped first."""
        found = {name: [statement] for name, statement in self.definitions.items()}
        gone = {*self.outdated, *([self._consumer.index] if self._table.index_reads_clock else [])}
        for name, statements in found.items():
            if name in gone:
                statements.insert(0, self._drop(name))
            if self._dialect.note_after and (name in gone or self._table.index(name) is None):
                note = self._dialect.note_after.format(self._fingerprint(name), self._place(name))
                statements.append(note)
        return found

    def create(self) -> None:
        """Create the indexes that are missing."""
        for name, statements in self.create_statements().items():
            try:
                self._run(statements)
            except StoreError:
                # PostgreSQL leaves an index that it could not build: it is unused, and can refuse rows.
                with suppress(StoreError):
                    if self._table.index(name) is None:
                        self._run([self._drop(name)])
                raise
        self._table.look_for_index()

    def _run(self, statements: Sequence[str]) -> None:
        """Run statements without parameters; in one transaction, where the database allows that."""
        with self._database.unhurried() as db:
            for statement in statements:
                db.using({"it": statement.replace("%", self._dialect.percent)}).run("it")

    def _drop(self, name: str) -> str:
        return f"{self._dialect.drop} {self._place(name)}"

    def _place(self, name: str) -> str:
        return ".".join(names.quoted(part) for part in (*self._consumer.table[:-1], name))
