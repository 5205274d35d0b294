"""A consumer's table: read from the catalogue once and checked, with the statements written for it."""

from __future__ import annotations

from rowlock.consumers import conditions
from rowlock.consumers.catalogue import Catalogue
from rowlock.consumers.columns import Columns
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.forms.status_column import StatusForm
from rowlock.consumers.indexes import Indexes
from rowlock.consumers.table_checks import Rehearsal, check_columns
from rowlock.consumers.table_sql import TableSql
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.statements import Statements


class Table:
    """The table of one consumer in one store."""

    def __init__(self, database: Database, consumer: Consumer) -> None:
        if database.dialect == "duckdb" and not isinstance(consumer.form, StatusForm):
            raise ConfigurationError(
                f"consumer {consumer.name!r}: state= and flag= are not for DuckDB: use status=Status(...), a "
                "column with a word for each state"
            )
        self.database = database
        self.consumer = consumer
        self.catalogue = Catalogue(database, consumer.table)
        found = self.catalogue.describe()
        self.columns = Columns(database, consumer, found.columns)
        check_columns(consumer, self.columns, found)
        self.sql = TableSql(database, consumer, self.columns)
        self.indexes = Indexes(self)
        self._by_style: dict[str, Statements] = {}
        self.has_index = self.index_reads_clock = self.index_is_outdated = False
        self.statements = self._written(None)
        Rehearsal(self).run()
        self.look_for_index()

    def on(self, style: str) -> Statements:
        """The statements for a user's connection; written once, because runs hold a lock when they ask."""
        if style not in self._by_style:
            self._by_style[style] = self._written(style)
        return self._by_style[style]

    def _written(self, style: str | None) -> Statements:
        return self.sql.written(style, by_index=self.has_index and self.columns.dialect.hints)

    def plan(self) -> str:
        """How the database finds the next row, in its own words."""
        with self.database.read() as db:
            rows = db.using(self.statements).rows("explain")
        return "; ".join(str(row[-1]).strip() for row in rows)

    def look_for_index(self) -> None:
        """Use the index if it exists and fits the consumer's condition and order."""
        there = self.catalogue.index(self.consumer.index)
        kept = "" if there is None else str(there[0] or "")
        self.index_is_outdated = self.indexes.is_outdated(self.consumer.index, kept)
        self.has_index = there is not None and not self.index_is_outdated
        condition = kept.partition(" WHERE ")[2]
        # An older rowlock may have created it without a check: SQLite then refuses every insert.
        self.index_reads_clock = conditions.may_read_clock(condition)
        if self.has_index and self.columns.dialect.hints:
            self.statements = self._written(None)
            try:
                with self.database.read() as db:
                    db.using(self.statements).rows("look_free")
            except TRANSIENT:
                raise
            except StoreError:  # the index was created for another condition or order
                self.has_index = False
                self.statements = self._written(None)
