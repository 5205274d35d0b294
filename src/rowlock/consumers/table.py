"""A consumer's table: read from the catalogue once and checked, with the statements written for it.

The user's names, words and condition are put into them; what a claim or a run brings is always bound.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rowlock.consumers import checks, conditions, names
from rowlock.consumers.column_times import NOT_A_TIME, DueTime
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.described import DescribedTable
from rowlock.consumers.forms.base import PIECES
from rowlock.consumers.indexes import DIRECTION, Indexes
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.statements import Statements

_PACKAGE = "rowlock.consumers"
_PRECISION = re.compile(r"\(\d+\)")  # of timestamp(3) with time zone, say
_MARK = re.compile(r"«(\w+)»")
# Keys in rowlock's own tables, which are text there, as values of the user's column.
_KEYS = {
    "claim_key": "c.row_key",
    "claimed_key": "rowlock_consumer_claims.row_key",
    "its_key": "its_row_key",
    "held_key": "row_key",
    "given_key": ":row_key",
}


class Table(DescribedTable):
    """The table of one consumer in one store; it is checked here, and not at the first claim."""

    def __init__(self, database: Database, consumer: Consumer) -> None:
        super().__init__(database, consumer.table)
        self.consumer = consumer
        self.time_format = consumer.form.time_format
        checks.check_columns(self)
        self.indexes = Indexes(self)
        self._by_style: dict[str | None, Statements] = {}
        self.has_index = self.index_reads_clock = False
        self.index_trouble = ""  # why there is no index that can be used
        checks.rehearse(self)
        self.look_for_index()

    @property
    def given(self) -> tuple[str, ...]:
        """The columns that the user's function gets."""
        return self.consumer.columns or tuple(self.types)

    def loaded(self, values: Sequence[Any]) -> list[Any]:
        """The values of these columns, as the user's own queries would get them from the driver."""
        load = self.dialect.load
        if not load:
            return list(values)
        return [
            load[kind](value) if (kind := _PRECISION.sub("", self.types[name])) in load else value
            for name, value in zip(self.given, values, strict=True)
        ]

    @property
    def due_time(self) -> DueTime | None:
        """How the column of `due_at=` is compared with the clock; None: it is no time, or not given."""
        name = self.consumer.due_at
        return None if name is None else self.dialect.column_time(self.types[name]).due_time

    def plan(self) -> str:
        """How the database finds the next row, in its own words."""
        with self.database.read() as db:
            rows = db.using(self.statements).rows("explain")
        return "; ".join(str(row[-1]).strip() for row in rows)

    def look_for_index(self) -> None:
        """Use the index if it exists and fits the consumer's condition and order."""
        there = self.index(self.consumer.index)
        kept = "" if there is None else str(there[0] or "")
        is_outdated = self.indexes.is_outdated(self.consumer.index, kept)
        self.index_trouble = (
            "was made for another condition or order" if is_outdated else "is missing or does not fit it"
        )
        # An older rowlock may have created it without a check: SQLite then refuses every insert.
        self.index_reads_clock = conditions.may_read_clock(kept.partition(" WHERE ")[2])
        self._use_index(there is not None and not is_outdated)
        if self.has_index and self.dialect.hints:
            # Not if it was created for another condition or order.
            self._use_index(checks.refusal(self._look_by_index) is None)

    def _look_by_index(self) -> None:
        with self.database.read() as db:
            db.using(self.statements).rows("look_free")

    def _use_index(self, has_index: bool) -> None:
        before, self.has_index = self.has_index, has_index
        if has_index != before and self.dialect.hints:  # the statements name it, or do not
            self._by_style = {}  # only now: another thread may ask for them meanwhile

    # -- its statements --------------------------------------------------------------------------

    @property
    def statements(self) -> Statements:
        """The statements for the store's own connections."""
        return self.on(None)

    def on(self, style: str | None) -> Statements:
        """The statements for a user's connection; written once, because runs hold a lock when they ask."""
        by_style = self._by_style  # looked up before they are written: has_index may change meanwhile
        written = by_style.get(style)
        if written is None:
            written = by_style[style] = self._written(style)
        return written

    def _written(self, style: str | None) -> Statements:
        sources = ((_PACKAGE, "shared.sql"), (_PACKAGE, f"{self.database.dialect}.sql"))
        written = self.database.statements(*sources, words=self._words(), style=style)
        for name, backwards in (("", False), ("_backwards", True)):
            for beyond, where in (("", ""), ("_beyond", f"{self._beyond(backwards)} AND ")):
                words = {"ordering": self._ordering(backwards), "beyond": where}
                written[f"take_free{beyond}{name}"] = written.write("{take_free}", words)
        written["explain"] = self.dialect.explain + written["oldest"]
        percent = self.dialect.percent if style is None else "%%" if style == "pyformat" else "%"
        theirs = {name: text.replace("%", percent) for name, text in self._theirs().items()}
        for name, text in written.items():
            written[name] = _MARK.sub(lambda match: theirs[match[1]], text)
        return written

    def condition(self, text: str) -> str:
        """A condition on the table's rows, such as "{due}", as an administrator would write it."""
        return self.filled(self.statements.write(text, {}))

    def filled(self, text: str) -> str:
        """The text with the user's names in place of the marks in «»."""
        theirs = self._theirs()
        return _MARK.sub(lambda match: theirs[match[1]], text)

    def _words(self) -> dict[str, str]:
        """The pieces that the statements are made of; the user's names in them are still marks in «»."""
        by_index = self.has_index and self.dialect.hints
        consumer, due_time, dialect = self.consumer, self.due_time, self.dialect
        first, *_ = ordered = [f"«t».{names.quoted(name)}" for name, _ in consumer.position]
        first_time = dialect.column_time(self.types[consumer.position[0][0]])
        return {
            **PIECES,
            **consumer.form.pieces(self),
            **{name: dialect.as_type.format(given, "«key_type»") for name, given in _KEYS.items()},
            "word": dialect.as_type.format(":word", "«status_type»"),
            "order_as_text": dialect.as_text.format(first),
            "order_seconds": first_time.seconds.replace("{0}", first),
            "place": "".join(f"{dialect.as_text.format(column)}, " for column in ordered[:-1]),
            "ordering": self._ordering(backwards=False),
            "indexed": "{due}" + (" AND «where»" if consumer.where else ""),
            "due_now": due_time.due if due_time else "true",
            "next_due_at": due_time.next if due_time else "NULL",
            "not_a_time": NOT_A_TIME,
            "overdue": self._overdue(),
            "by_index": f"INDEXED BY {names.quoted(consumer.index)}" if by_index else "",
        }

    def _overdue(self) -> str:
        """Whether a row has been due for longer than :age; never, if no column says since when it is due."""
        due_at, created_at = self.consumer.due_at, self.consumer.form.columns.get("created_at")
        older = [self.older(name) for name in (due_at, created_at) if name is not None]
        if len(older) == 2:
            return f"({older[0]} OR «due_at» IS NULL AND {older[1]})"
        return older[0] if older else "false"

    def _beyond(self, backwards: bool) -> str:
        """The rows after the position that is bound: (:mark_a, :mark_b, ..., :mark_key)."""
        consumer, types = self.consumer, self.types
        columns = [f"«t».{names.quoted(name)}" for name, _ in consumer.position]
        signs = ["<" if down != backwards else ">" for _, down in consumer.position]
        marks = [
            self.dialect.as_type.format(f":mark_{place}", types[name])
            for place, (name, _) in zip(consumer.places, consumer.position, strict=True)
        ]
        # A null is never greater or less. Nulls in the first column are found when no other row is left.
        nulls = [
            f" OR {column} IS NULL"
            if sign in self.dialect.nulls_after and not self.columns[name].not_null
            else ""
            for column, sign, (name, _) in zip(columns, signs, consumer.position, strict=True)
        ]
        nulls[0] = nulls[-1] = ""
        if len(set(signs)) == 1 and not any(nulls):
            return f"({', '.join(columns)}) {signs[0]} ({', '.join(marks)})"
        condition = f"{columns[-1]} {signs[-1]} {marks[-1]}"
        for column, sign, mark, null in reversed(list(zip(columns, signs, marks, nulls, strict=True))[:-1]):
            condition = f"({column} {sign} {mark}{null} OR ({column} = {mark} AND {condition}))"
        # The first part finds the position in the index, the rest skips rows with the same first column.
        return f"({columns[0]} {signs[0]}= {marks[0]} AND {condition})"

    def _ordering(self, backwards: bool) -> str:
        return ", ".join(
            f"«t».{names.quoted(name)}{DIRECTION[down != backwards]}" for name, down in self.consumer.position
        )

    def _theirs(self) -> dict[str, str]:
        """The user's names, quoted, and the user's own condition."""
        consumer, form, types = self.consumer, self.consumer.form, self.types
        table = names.quoted(consumer.table[-1])
        return {
            "table": self.place,
            "t": table,
            "key": names.quoted(consumer.key),
            "key_type": types[consumer.key],
            "columns": ", ".join(f"{table}.{names.quoted(name)}" for name in self.given),
            "consumer": names.literal(consumer.name),
            "queue": names.literal(consumer.queue),
            "name": consumer.name,
            "due_at": names.quoted(consumer.due_at or ""),
            "status": "",
            **{mark: names.quoted(name) for mark, name in form.columns.items()},
            **{f"{name}_word": names.literal(word) for name, word in form.words.items()},
            "status_type": types[form.column],
            **self.time_formats,
            # On lines of its own: the condition may end in a comment.
            "where": f"(\n{consumer.where}\n)",
            "bare_where": f"{consumer.where or '1 = 1'}\n",
        }
