"""A user's table as its consumer needs it: looked at once, checked, and the statements written for it.

The user's names are put into the statements here, quoted, and nowhere else; values are always bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import combinations
from typing import Any

import msgspec

from rowlock.consumers import conditions, names
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.due_times import DUE_TIMES, NOT_A_TIME, NUMBERS, SECONDS, DueTime, time_form
from rowlock.consumers.forms import base as forms
from rowlock.consumers.trial import LeftOut, Trial
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.job import utc
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import SqlStore

_PACKAGE = "rowlock.consumers"
_DIRECTION = {False: "", True: " DESC"}
_MARK = re.compile(r"«(\w+)»")
_LENGTH = re.compile(r"char[a-z ]*\(\s*(\d+)\s*\)", re.IGNORECASE)  # of a type that has one, in characters
# For looks at catalogues, where nothing of the user's is in the statements.
_NOTHING: dict[str, str] = dict.fromkeys(
    (
        "indexed",
        "chosen",
        "due_now",
        "next_due_at",
        "not_a_time",
        "ready",
        "by_index",
        "beyond",
        "place",
        "order_seconds",
        *forms.PIECES,
        *forms.CONDITIONS,
    ),
    "",
)


class Column(msgspec.Struct, frozen=True):
    """One column of the table, as the database describes it."""

    name: str
    type: str
    is_key: bool = False
    not_null: bool = False
    length: int | None = None  # of the longest text that it can hold


class Dialect(msgspec.Struct, frozen=True):
    """What differs between databases and is not in a statement."""

    state_type: Callable[[str], bool]
    wanted_state: str
    boolean: Callable[[str], bool]
    flag_type: Callable[[str], bool]
    wanted_flag: str
    cuts: Callable[[str], bool]  # such a column may be too short for a word, and cuts it
    # By type: now as such a column, whether it is older than :age, and its Unix seconds.
    stamps: tuple[tuple[Callable[[str], bool], str, str, str], ...]
    explain: str  # what shows the plan of a statement
    load: Mapping[str, Callable[[Any], Any]]  # by type: what the store's own reading of a value is made into
    hints: bool  # an index can be named in a statement, and should be
    create: str  # how an index is made without stopping the others
    drop: str
    style: str  # of the store's own parameters
    as_text: str  # how a value is read that comes back as a parameter
    as_type: str  # and such a parameter, as the column's type


def _is(*words: str) -> Callable[[str], bool]:
    return lambda declared: any(word in declared.upper() for word in words)


_EPOCH = "CAST(extract(epoch FROM {0}) AS double precision)"
_UNKNOWN = "CAST(NULL AS double precision)"
DIALECTS = {
    "sqlite": Dialect(
        state_type=lambda declared: not declared or _is("JSON", "CHAR", "CLOB", "TEXT")(declared),
        wanted_state="TEXT (or JSON)",
        boolean=_is("BOOL"),
        flag_type=_is("BOOL", "INT"),
        wanted_flag="BOOLEAN (or INTEGER), for it holds false (or null) or true",
        cuts=lambda _: False,
        stamps=(
            (_is("REAL", "FLOA", "DOUB", "INT"), "{now}", "{0} < {now-age}", "{0}"),
            (
                lambda _: True,
                "strftime('«iso»', {now}, 'unixepoch')",
                SECONDS.replace("«due_at»", "{0}") + " < {now-age}",
                "(julianday({0}) - 2440587.5) * 86400.0",
            ),
        ),
        explain="EXPLAIN QUERY PLAN ",
        load={},
        hints=True,
        create="CREATE INDEX IF NOT EXISTS",
        drop="DROP INDEX IF EXISTS",
        style="named",
        as_text="{0}",
        as_type="{0}",
    ),
    "postgresql": Dialect(
        state_type=lambda declared: declared == "jsonb",
        wanted_state="jsonb",
        boolean=lambda declared: declared == "boolean",
        flag_type=lambda declared: declared == "boolean",
        wanted_flag="boolean",
        cuts=_is("CHAR"),
        stamps=(
            (_is("WITH TIME ZONE"), "{now}", "{0} < {now-age}", _EPOCH.format("{0}")),
            (
                _is("TIMESTAMP"),
                "timezone('UTC', {now})",
                "{0} < timezone('UTC', {now-age})",
                _EPOCH.format("timezone('UTC', {0})"),
            ),
            (
                _is("INT", "DOUBLE", "REAL", "NUMERIC"),
                "extract(epoch FROM {now})",
                "{0} < extract(epoch FROM {now-age})",
                "CAST({0} AS double precision)",
            ),
            (lambda _: True, "CAST({now} AS text)", "CAST({0} AS timestamptz) < {now-age}", _UNKNOWN),
        ),
        explain="EXPLAIN ",
        load={
            "timestamp with time zone": lambda value: None if value is None else utc(value),
            "json": lambda value: None if value is None else msgspec.json.decode(value),
        },
        hints=False,
        create="CREATE INDEX CONCURRENTLY IF NOT EXISTS",
        drop="DROP INDEX CONCURRENTLY IF EXISTS",
        style="pyformat",
        as_text="CAST({0} AS text)",
        as_type="CAST({0} AS {1})",
    ),
}


class Table:
    """The table of one consumer in one store."""

    def __init__(self, store: SqlStore, consumer: Consumer) -> None:
        self._store = store
        self._consumer = consumer
        self.dialect_name: str = store._dialect  # type: ignore[attr-defined]
        self._dialect = DIALECTS[self.dialect_name]
        self._sources = ((_PACKAGE, "shared.sql"), (_PACKAGE, f"{self.dialect_name}.sql"))
        self._elsewhere: dict[str, Statements] = {}
        self._time_forms: dict[str, str] = {}
        self._seen_times: dict[str, str] = {}
        self._described = {column.name: column for column in self._look()}
        self.types = {name: column.type for name, column in self._described.items()}
        self.has_index = self.index_reads_clock = False
        self.statements = self._written(None)
        self._try_out()

    # -- looking ---------------------------------------------------------------------------------

    def _look(self) -> list[Column]:
        """The columns; raises if they are not what the consumer needs."""
        consumer = self._consumer
        look = self._store.statements(*self._sources, words=_NOTHING)
        with self._store.reading() as session:
            db = session.using(look)
            found = [_column(*row) for row in self._columns_of(db)]
            if not found:
                raise ConfigurationError(
                    f"consumer {consumer.name!r}: there is no table {'.'.join(consumer.table)} in this "
                    "database; create it first"
                )
            unique = {row[0] for row in db.rows("unique_columns", table=self.name_for_looks)}
        if self.dialect_name == "sqlite" and sum(column.is_key for column in found) == 1:
            unique |= {column.name for column in found if column.is_key}
        self._check(found, unique)
        return found

    @property
    def name_for_looks(self) -> str:
        """The table's name as the catalogues are asked for it."""
        parts = self._consumer.table
        return ".".join(map(names.quoted, parts)) if self.dialect_name == "postgresql" else parts[-1]

    def _columns_of(self, db: Session) -> list[Any]:
        parts = self._consumer.table
        if self.dialect_name == "sqlite" and len(parts) == 2:
            return db.rows("table_columns_in", table=parts[1], schema=parts[0])
        return db.rows("table_columns", table=self.name_for_looks)

    def _check(self, found: list[Column], unique: set[str]) -> None:
        consumer = self._consumer
        there = {column.name: column.type for column in found}
        place = ".".join(consumer.table)
        for what, name in consumer.needed():
            if name not in there:
                raise ConfigurationError(
                    f"consumer {consumer.name!r}: {what}={name!r}, but {place} has no such column; "
                    f"it has: {', '.join(there)}"
                )
        if consumer.key not in unique:
            raise ConfigurationError(
                f"consumer {consumer.name!r}: key={consumer.key!r} is not unique in {place}: name its "
                "primary key, or a column with a unique index of its own"
            )
        if consumer.due_at is not None and self._due_time_of(there[consumer.due_at]) is None:
            raise ConfigurationError(
                f"consumer {consumer.name!r}: due_at={consumer.due_at!r} is of type {there[consumer.due_at]} "
                f"in {place}, which is no time; it must be a timestamp, a date, or a number (Unix seconds)"
            )
        refusal = consumer.form.refusal(there, self._dialect)
        if refusal is not None:
            raise ConfigurationError(f"consumer {consumer.name!r}: in {place}, {refusal}")

    def _try_out(self) -> None:
        consumer = self._consumer
        what = str(consumer.form)
        if words := consumer.form.distinct_words():
            self._try_words(consumer.form.column, words)
        try:
            with self._store.reading() as db:
                tx = db.using(self.statements)
                tx.rows("try_form")
                what = f"where={consumer.where!r}"
                tx.rows("try_condition")
        except TRANSIENT:  # which says nothing about the consumer
            raise
        except StoreError as error:
            raise ConfigurationError(
                f"consumer {consumer.name!r}: its {what} does not work on {'.'.join(consumer.table)}: {error}"
            ) from error
        if consumer.due_at is not None and self.dialect_name == "sqlite":  # whose columns hold anything
            with self._store.reading() as db:
                wrong = db.using(self.statements).rows("not_a_time")
            if wrong:
                raise ConfigurationError(
                    f"consumer {consumer.name!r}: due_at={consumer.due_at!r}: {wrong[0][0]!r} in that column "
                    "is no time; it must be Unix seconds, or text such as '2026-05-01 10:00:00' (UTC)"
                )
        self.look_for_index()

    def _try_words(self, column: str, words: Mapping[str, forms.Word]) -> None:
        """Raise unless the words are as many values in the column; only the database knows its type."""
        kind = self.types[column]
        place = f"{'.'.join(self._consumer.table)}.{column}, which is of type {kind or 'ANY'}"
        who, said = f"consumer {self._consumer.name!r}", ""
        try:
            with self._store.undone() as db:
                tx = db.using(self.statements)
                if "make_words" in self.statements:
                    tx.run("make_words")
                for said, word in words.items():
                    ((kept,),) = tx.rows("try_word", word=word)
                    if self._dialect.cuts(kind) and kept.rstrip() != str(word).rstrip():
                        raise ConfigurationError(
                            f"{who}: Status({said}) does not fit into {place}: it would be cut to {kept!r}"
                        )
                for (one, first), (other, second) in combinations(words.items(), 2):
                    said = f"{one} and {other}"
                    if tx.row("count_values", word=first, other_word=second)[0] == 1:
                        raise ConfigurationError(
                            f"{who}: Status({said}): these are one value in {place}; choose words that "
                            "differ there"
                        )
        except TRANSIENT:
            raise
        except StoreError as error:
            labels = self._labels(column)
            reason = f"that is an enumeration, and it has: {labels}" if labels else str(error)
            raise ConfigurationError(f"{who}: Status({said}) does not work in {place}: {reason}") from error

    def _labels(self, column: str) -> str | None:
        """What a column of an enumeration may hold; None if it is none."""
        if "labels" not in self.statements:
            return None
        with self._store.reading() as db:
            labels = db.using(self.statements).row("labels", table=self.name_for_looks, name=column)[0]
        return None if labels is None else str(labels)

    def look_for_index(self) -> None:
        """Use the index if it is there, and fits what the consumer is by now."""
        there = self._index_there(self._consumer.index)
        self.has_index = there is not None
        condition = str(there[0]).partition(" WHERE ")[2] if there is not None else ""
        # Made by a version of rowlock that did not look: SQLite lets nobody insert a row then.
        self.index_reads_clock = conditions.may_read_clock(condition)
        if self.has_index and self._dialect.hints:
            self.statements = self._written(None)
            try:
                with self._store.reading() as db:
                    db.using(self.statements).rows("look_free", consumer=self._consumer.name)
            except TRANSIENT:
                raise
            except StoreError:  # it was made for another condition or order
                self.has_index = False
                self.statements = self._written(None)

    def _index_there(self, name: str) -> Any:
        look = self._store.statements(*self._sources, words=_NOTHING)
        with self._store.reading() as db:
            return db.using(look).row("index_there", table=self.name_for_looks, name=name)

    # -- writing the statements ------------------------------------------------------------------

    def on(self, style: str) -> Statements:
        """The statements for a borrowed connection; written once, for runs hold a lock when they ask."""
        if style not in self._elsewhere:
            self._elsewhere[style] = self._written(style)
        return self._elsewhere[style]

    def _written(self, style: str | None) -> Statements:
        filled, backwards = self._filled(style), self._filled(style, backwards=True)
        for name in ("take_free", "take_free_beyond"):
            filled[f"{name}_backwards"] = backwards[name]
        return Statements(filled | {"explain": self._dialect.explain + filled["oldest"]})

    def _filled(self, style: str | None, backwards: bool = False) -> dict[str, str]:
        written = self._pieces(style, backwards)
        theirs = self._theirs(backwards)
        # A percent sign means something to some drivers, wherever it stands.
        percent = "%%" if (style or self._dialect.style) == "pyformat" else "%"
        theirs = {name: text.replace("%", percent) for name, text in theirs.items()}
        return {name: _MARK.sub(lambda match: theirs[match[1]], text) for name, text in written.items()}

    def _pieces(self, style: str | None, backwards: bool = False) -> Statements:
        """The statements in which the user's names are still to be put."""
        consumer = self._consumer
        by_index = (
            f"INDEXED BY {names.quoted(consumer.index)}" if self.has_index and self._dialect.hints else ""
        )
        words = {
            **forms.pieces(consumer.form, self),
            "order_seconds": self._seconds(),
            "indexed": "{due}" + (" AND «where»" if consumer.where else ""),
            "chosen": "{indexed} AND «t».«key» IS NOT NULL",
            "ready": "{chosen} AND {due_now}",
            "due_now": self._due_time.due if self._due_time else "true",
            "next_due_at": self._due_time.next if self._due_time else "NULL",
            "not_a_time": NOT_A_TIME,
            "by_index": by_index,
            "beyond": self._beyond(backwards),
            "place": "".join(
                f"{self._dialect.as_text.format(f'«t».«order_{place}»')}, " for place in consumer.places[:-1]
            ),
        }
        return self._store.statements(*self._sources, words=words, style=style)

    def _due_time_of(self, kind: str) -> DueTime | None:
        return next((one for one in DUE_TIMES[self.dialect_name] if one.fits(kind)), None)

    @cached_property
    def _due_time(self) -> DueTime | None:
        """How the column of `due_at=` is compared with the clock."""
        name = self._consumer.due_at
        return None if name is None else self._due_time_of(self.types[name])

    def stamp(self, column: str) -> tuple[str, str]:
        """What writes the time of day into that column, and what asks whether it is older than :age."""
        kind, quoted = self.types[column], names.quoted(column)
        now, older = next((now, older) for fits, now, older, _ in self._dialect.stamps if fits(kind))
        if "«iso»" in now:
            form, mark = self._time_form(column), f"time_{list(self.types).index(column)}"
            self._time_forms[mark] = form
            now = NUMBERS.get(form) or now.replace("iso", mark)
        return now, older.replace("{0}", quoted)

    def _time_form(self, column: str) -> str:
        """How times are written into a column that takes any text: as it has them already."""
        if self._consumer.form.time_format is not None:
            return self._consumer.form.time_format
        if column not in self._seen_times:
            place, name = ".".join(map(names.quoted, self._consumer.table)), names.quoted(column)
            one = f"SELECT {name} FROM {place} WHERE {name} IS NOT NULL LIMIT 1"  # noqa: S608 - quoted names
            with self._store.reading() as db:
                found = db.using({"one": one}).row("one")
            self._seen_times[column] = time_form(None if found is None else found[0])
        return self._seen_times[column]

    def json_value(self, column: str, text: str) -> str:
        """A JSON text as that column takes it: never cut, for half of it is none."""
        if self.dialect_name == "sqlite":
            return text
        kind = self.types[column]
        return f"CAST({text} AS {kind if kind in ('json', 'jsonb') else 'text'})"

    def fitted(self, column: str, text: str) -> str:
        """What that column can hold of a text: as much as it has room for, and no NULL if it takes none."""
        described = self._described[column]
        if described.length is not None:
            text = f"substr({text}, 1, {described.length})"
        return f"coalesce({text}, '')" if described.not_null else text

    def _beyond(self, backwards: bool) -> str:
        """What comes after the place in the line that is bound: (:mark_a, :mark_b, ..., :mark_key)."""
        signs = ["<" if down != backwards else ">" for _, down in self._consumer.position]
        columns = [f"«t».«order_{place}»" for place in self._consumer.places]
        marks = [
            self._dialect.as_type.format(f":mark_{place}", f"«order_{place}_type»")
            for place in self._consumer.places
        ]
        if len(set(signs)) == 1:
            return f"({', '.join(columns)}) {signs[0]} ({', '.join(marks)})"
        condition = f"{columns[-1]} {signs[-1]} {marks[-1]}"
        for column, sign, mark in reversed(list(zip(columns, signs, marks, strict=True))[:-1]):
            condition = f"({column} {sign} {mark} OR ({column} = {mark} AND {condition}))"
        # The first part finds the place in the index, the rest steps over what has the same first column.
        return f"({columns[0]} {signs[0]}= {marks[0]} AND {condition})"

    def _seconds(self) -> str:
        """What the place in the line is as Unix seconds, if it is a time."""
        kind = self.types[self._consumer.position[0][0]]
        epoch = next(epoch for fits, _, _, epoch in self._dialect.stamps if fits(kind))
        return epoch.replace("{0}", "«t».«order»")

    # -- the indexes -----------------------------------------------------------------------------

    @cached_property
    def indexes(self) -> dict[str, str]:
        """What each of the consumer's indexes is created with, by name."""
        consumer, form = self._consumer, self._consumer.form
        written, theirs = self._pieces(None), self._theirs()
        due = " AND ".join([written["due_condition"], *(f"(\n{part}\n)" for part in self._tried[0])])
        # With the time at its end, rows that are not due yet are stepped over inside the index.
        ahead = self._due_time.indexed if self._due_time else ""
        found = {consumer.index: self._index(consumer.index, consumer.position, due, theirs, ahead)}
        if self._due_time and not self._dialect.hints:
            name = f"rowlock_{consumer.name}_due_at"
            found[name] = self._index(name, (), due, theirs, ahead)
        failed = f"rowlock_{consumer.name}_failed"
        if not form.keeps_failures:
            found[failed] = self._index(failed, ((consumer.key, False),), written["failed_condition"], theirs)
        for name, column, named in form.indexes(consumer.name, consumer.table[-1], consumer.key):
            found[name] = self._index(name, ((column, False),), written[named], theirs)
        return found

    @property
    def left_out(self) -> list[LeftOut]:
        """The parts of the user's condition that the index of what is due does not have."""
        return self._tried[1]

    @cached_property
    def _tried(self) -> tuple[list[str], list[LeftOut]]:
        """The parts of the user's condition that the index may have, and the others."""
        if self._consumer.where is None:
            return [], []
        with self._store.reading() as db:
            columns = db.using(self.statements).rows("columns_to_copy", table=self.name_for_looks)
        place = {name: text for name, text in self._theirs().items() if name in ("t", "table", "key")}
        return Trial(self._store, self.dialect_name, columns, **place).sort(self._consumer.where)

    def _index(
        self,
        name: str,
        columns: Sequence[names.Order],
        condition: str,
        theirs: dict[str, str],
        last: str = "",
    ) -> str:
        """What creates an index, for whoever may."""
        parts = [f"{names.quoted(column)}{_DIRECTION[down]}" for column, down in columns]
        listed = ", ".join([*parts, *([last] if last else [])])
        listed, condition = (_MARK.sub(lambda match: theirs[match[1]], text) for text in (listed, condition))
        return (
            f"{self._dialect.create} {names.quoted(name)} ON {theirs['table']} ({listed}) WHERE {condition}"
        )

    def _theirs(self, backwards: bool = False) -> dict[str, str]:
        """The user's names, quoted, and the user's own condition."""
        consumer = self._consumer
        parts = [names.quoted(part) for part in consumer.table]
        ordered = list(zip(consumer.places, (name for name, _ in consumer.position), strict=True))
        return {
            **{f"order_{place}": names.quoted(name) for place, name in ordered},
            **{f"order_{place}_type": self.types[name] for place, name in ordered},
            "table": ".".join(parts),
            "t": parts[-1],
            "key": names.quoted(consumer.key),
            "key_type": self.types[consumer.key],
            "order": names.quoted(consumer.position[0][0]),
            "ordering": ", ".join(
                f"{parts[-1]}.{names.quoted(name)}{_DIRECTION[down != backwards]}"
                for name, down in consumer.position
            ),
            "columns": ", ".join(f"{parts[-1]}.{names.quoted(name)}" for name in self.columns),
            "consumer": names.literal(consumer.name),
            "due_at": names.quoted(consumer.due_at or ""),
            "status": "",
            **consumer.form.theirs(),
            "status_type": self.types[consumer.form.column],
            **self._time_forms,
            # On lines of its own: it may end in a comment.
            "where": f"(\n{consumer.where}\n)",
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are handed over."""
        return self._consumer.columns or tuple(self.types)

    def plan(self) -> str:
        """How the database finds the next row, in its own words."""
        with self._store.reading() as db:
            rows = db.using(self.statements).rows("explain", consumer=self._consumer.name)
        return "; ".join(str(row[-1]).strip() for row in rows)

    def create_statements(self) -> dict[str, list[str]]:
        """What has to be run for each of the indexes, by name."""
        found = {name: [statement] for name, statement in self.indexes.items()}
        if self.index_reads_clock:
            found[self._consumer.index].insert(0, self._drop(self._consumer.index))
        return found

    def create_indexes(self) -> None:
        """Create them, unless they are there."""
        for name, statements in self.create_statements().items():
            try:
                self._run(statements)
            except StoreError:
                if not self._dialect.hints:
                    self._drop_unfinished(name)
                raise
        self.look_for_index()

    def _drop_unfinished(self, name: str) -> None:
        """Half an index, which PostgreSQL leaves, is used by nobody and may keep rows from being written."""
        with suppress(StoreError):
            if self._index_there(name) is None:
                self._run([self._drop(name)])

    def _run(self, statements: Sequence[str]) -> None:
        """Run statements that have no parameters, together where that can be."""
        open_session = self._store.writing if self._dialect.hints else self._store.unhurried
        percent = "%%" if self._dialect.style == "pyformat" else "%"
        with open_session() as db:
            for statement in statements:
                db.using({"it": statement.replace("%", percent)}).run("it")

    def _drop(self, name: str) -> str:
        place = ".".join(names.quoted(part) for part in (*self._consumer.table[:-1], name))
        return f"{self._dialect.drop} {place}"

    # -- rows ------------------------------------------------------------------------------------

    def loaded(self, values: tuple[Any, ...]) -> list[Any]:
        """The values of the columns, as the database's driver gives them to anybody."""
        load = self._dialect.load
        if not load:
            return list(values)
        return [
            load[kind](value) if (kind := self.types[name]) in load else value
            for name, value in zip(self.columns, values, strict=True)
        ]


def _column(name: str, kind: str, is_key: Any, not_null: Any, plain: str) -> Column:
    """A row of the catalogue; `plain` is the type of which a type of the user's own was made."""
    found = _LENGTH.search(plain)
    return Column(name, kind, bool(is_key), bool(not_null), int(found[1]) if found else None)
