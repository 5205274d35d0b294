"""Checks that a user's table fits its consumer: when the table is first read, not at the first claim."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING

from rowlock.consumers.catalogue import Described
from rowlock.consumers.columns import Columns
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.forms.base import Word
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.job import Ending, Outcome
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.consumers.table import Table


def check_columns(consumer: Consumer, columns: Columns, found: Described) -> None:
    """Raise unless the columns are there, of a type that fits, and the key is unique."""
    place, types, who = ".".join(consumer.table), columns.types, f"consumer {consumer.name!r}"
    if not types:
        raise ConfigurationError(f"{who}: there is no table {place} in this database; create it first")
    for what, name in consumer.needed():
        if name not in types:
            raise ConfigurationError(
                f"{who}: {what}={name!r}, but {place} has no such column; it has: {', '.join(types)}"
            )
    if consumer.key not in found.unique:
        raise ConfigurationError(
            f"{who}: key={consumer.key!r} is not unique in {place}: name its primary key, or a column with a "
            "unique index of its own"
        )
    if consumer.due_at is not None and columns.due_time is None:
        raise ConfigurationError(
            f"{who}: due_at={consumer.due_at!r} is of type {types[consumer.due_at]} "
            f"in {place}, which is no time; it must be a timestamp, a date, or a number (Unix seconds)"
        )
    refusal = consumer.form.refusal(types, columns.dialect)
    if refusal is not None:
        raise ConfigurationError(f"{who}: in {place}, {refusal}")


class Rehearsal:
    """Tries the statements of a consumer on its table, and changes nothing."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._database = table.database
        self._consumer = table.consumer
        self._statements = table.statements
        self._who = f"consumer {table.consumer.name!r}"

    def run(self) -> None:
        """Raise if the user's condition, words or times do not work."""
        consumer = self._consumer
        if consumer.form.words:
            self._try_words(consumer.form.column, consumer.form.words)
        what = str(consumer.form)
        try:
            with self._database.read() as db:
                tx = db.using(self._statements)
                tx.rows("try_form")
                what = f"where={consumer.where!r}"
                tx.rows("try_where")
                tx.rows("try_condition")
                what = str(consumer.form)
                self._explain_writes(db)
        except TRANSIENT:  # a lost connection or a lock says nothing about the consumer
            raise
        except StoreError as error:
            # In the database's words: rowlock's own are about the queue's tables ("run `rowlock upgrade`").
            said = " ".join(str(error.__cause__ or error).split())
            raise ConfigurationError(
                f"{self._who}: its {what} does not work on {'.'.join(consumer.table)}: {said}"
            ) from error
        if consumer.due_at is not None and self._database.dialect == "sqlite":  # columns hold any type there
            with self._database.read() as db:
                wrong = db.using(self._statements).rows("not_a_time")
            if wrong:
                raise ConfigurationError(
                    f"{self._who}: due_at={consumer.due_at!r}: {wrong[0][0]!r} in that column "
                    "is no time; it must be Unix seconds, or text such as '2026-05-01 10:00:00' (UTC)"
                )

    def _explain_writes(self, db: Session) -> None:
        """Let the database explain the statements that change the user's rows, which runs none of them."""
        form = self._consumer.form
        writes = ["mark"]
        writes += ["take_rows", "give_rows_back", "progress_of_row"] if form.holds else []
        writes += ["clear_failed"] if form.shows_failures else []
        done = form.mark(Outcome(id=0, claim=0, ending=Ending.COMPLETED, result="true"), 0) or {}
        nobody = {"ids": "[]", "worker": "", "charge": 0, "claim_number": 0, "row_key": None, "error": None}
        for name in writes:
            plan = {name: self._table.columns.dialect.explain + self._statements[name]}
            db.using(plan).rows(name, **{**nobody, **form.progress(1.0, 2.0), **done})

    def _try_words(self, column: str, words: Mapping[str, Word]) -> None:
        """Raise if two words are the same value in the column; only the database knows its type."""
        kind = self._table.columns.types[column]
        place = f"{'.'.join(self._consumer.table)}.{column}, which is of type {kind or 'ANY'}"
        said = ""
        try:
            with self._database.undone() as db:
                tx = db.using(self._statements)
                if "make_words" in self._statements:
                    tx.run("make_words")
                for name, word in words.items():
                    said = f"{name}={word!r}"
                    ((kept,),) = tx.rows("try_word", word=word)
                    if self._table.columns.dialect.cuts(kind) and kept.rstrip() != str(word).rstrip():
                        raise ConfigurationError(
                            f"{self._who}: Status({said}) does not fit into {place}: it would be cut to "
                            f"{kept!r}"
                        )
                for (name, word), (other, other_word) in combinations(words.items(), 2):
                    said = f"{name}={word!r} and {other}={other_word!r}"
                    if tx.row("count_values", word=word, other_word=other_word)[0] == 1:
                        raise ConfigurationError(
                            f"{self._who}: Status({said}): these are one value in {place}; choose words that "
                            "differ there"
                        )
        except TRANSIENT:
            raise
        except StoreError as error:
            labels = self._labels(column)
            reason = f"that is an enumeration, and it has: {labels}" if labels else str(error)
            raise ConfigurationError(
                f"{self._who}: Status({said}) does not work in {place}: {reason}"
            ) from error

    def _labels(self, column: str) -> str | None:
        """The labels of an enumeration's column; None if its type is no enumeration."""
        if "labels" not in self._statements:
            return None
        place = {"table": self._table.catalogue.table, "name": column}
        with self._database.read() as db:
            ((labels,),) = db.using(self._statements).rows("labels", **place)
        return None if labels is None else str(labels)
