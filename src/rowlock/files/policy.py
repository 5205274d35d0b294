"""What a janitor may delete, as SQL on the user's table: which rows are left, which may go.

Reads only, apart from what `deleting.py` does inside its own transactions with these statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from rowlock.consumers import names
from rowlock.errors import TRANSIENT, ConfigurationError, RowlockError, StoreError
from rowlock.files.service import FileService
from rowlock.files.tables import App, FileTable, Session, json_list

_LATEST = "100000000000"  # Unix seconds, of the year 5138: larger numbers are milliseconds
_PAGE = 5_000
_NUMBER_TYPES = ("INT", "REAL", "FLOA", "DOUB", "NUMERIC", "DECIMAL")
_TIME_ENDINGS = ("_at", "_on", "time", "date")


class Named(msgspec.Struct, frozen=True):
    """A row and the files that it names, as the table has them."""

    key: Any
    paths: tuple[Any, ...]  # without those that are null


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What was declared about the rows."""

    key: str | None
    order_by: str | None
    after: tuple[str, ...]
    failed_too: bool
    where: str | None
    deleted: str | None
    remove_rows: bool
    has_age: bool

    @property
    def tells_table(self) -> bool:
        """Whether the user's own table shows which rows are deleted."""
        return self.deleted is not None or self.remove_rows


class Policy(FileTable):
    """The user's table as one janitor sees it."""

    def __init__(self, app: App, janitor: FileService, choice: Choice) -> None:
        super().__init__(app, janitor)
        self.choice = choice
        self.key = self._key()
        self._order = self.need("order_by", choice.order_by) if choice.order_by else self.key
        if choice.deleted is not None:
            self.need("deleted", choice.deleted)
        if choice.has_age and self._order in (self.key, *self.primary_key):
            raise ConfigurationError(
                f"{self._title}: max_age counts from order_by={self._order!r}, which must be a time, no key"
            )
        self._load()
        self._try()

    def _key(self) -> str:
        key = self.choice.key
        if key is not None and self.need("key", key) not in self.unique:
            raise ConfigurationError(f"{self._title}: key={key!r} is not unique in {self.name}")
        if key is None and len(self.primary_key) == 1:
            key = self.primary_key[0]
        if key is None and self.paths[0] in self.unique:
            key = self.paths[0]
        if key is None:
            raise ConfigurationError(
                f"{self._title}: {self.name} has no primary key of one column, and {self.paths[0]} is not "
                "unique: name a unique column with key=..."
            )
        if any(word in self.types[key].upper() for word in ("BLOB", "BYTEA")):
            raise ConfigurationError(f"{self._title}: key={key!r} holds bytes: name another unique column")
        return key

    def shown(self, key: Any) -> Any:
        """A row's key for people: a number is one, although PostgreSQL's go about as text."""
        is_number = isinstance(key, str) and "int" in self.types[self.key].lower()
        return int(key) if is_number else key

    # -- the statements --------------------------------------------------------------------------

    def _load(self) -> None:
        choice = self.choice
        t = names.quoted(self.parts[-1])
        is_time = self._is_time()
        living, set_deleted = self._deletion()
        columns = {f"column_{place}": f"{t}.{names.quoted(one)}" for place, one in enumerate(self.paths)}
        older = f"(CASE WHEN :by_age = 0 THEN true ELSE {self.stamp(self._order)[1]} AND {is_time} END)"
        words = {
            "living": living,
            "allowed": "«allowed»",
            "asked": older if choice.has_age else "(1 = 1)",
            "unheld": self._unheld(),
            "names_files": "(" + " OR ".join(f"«{mark}» IS NOT NULL" for mark in columns) + ")",
            "is_time": is_time,
            "set_deleted": set_deleted,
            "needed": " UNION ".join(_needed(f"«{mark}»") for mark in columns),
        }
        theirs = {
            **columns,
            "key": names.quoted(self.key),
            "key_type": self.types[self.key],
            "order": names.quoted(self._order),
            "iso": "%Y-%m-%d %H:%M:%f",
            "paths": ", ".join(columns.values()),
            "all_columns": ", ".join(f"{t}.{names.quoted(column)}" for column in self.types),
            "allowed": self._allowed(),
            "bare_where": f"{self.escaped(choice.where or '1 = 1')}\n",
        }
        self.load("janitor.sql", words, theirs)

    def _deletion(self) -> tuple[str, str]:
        """What says that a row is not deleted yet, and what is set when it is."""
        if self.choice.remove_rows:
            return "(1 = 1)", ""
        if self.choice.deleted is None:
            first = f"«t».{names.quoted(self.paths[0])}"
            living = (
                "NOT EXISTS (SELECT 1 FROM rowlock_files its_file "  # noqa: S608 - quoted names
                "WHERE its_file.source = :source "
                f"AND its_file.path = {first} AND its_file.state = 'deleted')"
            )
            return living, ""
        column, kind = self.choice.deleted, self.types[self.choice.deleted].upper()
        quoted = names.quoted(column)
        if "BOOL" in kind:
            return f"(«t».{quoted} IS NOT TRUE)", f"{quoted} = true"
        if "INT" in kind and not column.lower().endswith(_TIME_ENDINGS):  # SQLite's usual boolean
            return f"(coalesce(«t».{quoted}, 0) = 0)", f"{quoted} = 1"
        return f"(«t».{quoted} IS NULL)", f"{quoted} = {self.stamp(column)[0]}"

    def _is_time(self) -> str:
        """Whether a value to order by is a time."""
        kind, (_, _, seconds) = self.types[self._order].upper(), self.stamp(self._order)
        if any(word in kind for word in _NUMBER_TYPES):
            return f"({seconds} < {_LATEST})"
        if "NULL" in seconds:  # PostgreSQL's text: the cast raises if it is no time
            return f"(CAST({names.quoted(self._order)} AS timestamptz) IS NOT NULL)"
        return f"({seconds} IS NOT NULL)"

    def _allowed(self) -> str:
        """`where`, and every consumer in `after` done."""
        conditions = []
        if self.choice.where is not None:
            conditions.append(f"(\n{self.escaped(self.choice.where)}\n)")  # it may end in a comment
        conditions += [
            self._consumer(name).ended_condition(self.choice.failed_too) for name in self.choice.after
        ]
        return "(" + " AND ".join(conditions or ["1 = 1"]) + ")"

    def _consumer(self, name: str) -> Any:
        known = self._app.consumers
        if name not in known:  # it may be in a module that is not imported yet
            with suppress(RowlockError):
                self._app.consumer_source(name)
            known = self._app.consumers
        if name not in known:
            raise ConfigurationError(
                f"{self._title}: after={list(self.choice.after)!r}, but there is no consumer {name!r}; there "
                f"are: {', '.join(sorted(known)) or 'none'}"
            )
        if not self._is_of_this_table(known[name]):
            raise ConfigurationError(
                f"{self._title}: after={list(self.choice.after)!r}, but {name!r} is a consumer of "
                f"{'.'.join(known[name].table)} and not of {self.name}"
            )
        return self._app.consumer_source(name)

    def _is_of_this_table(self, consumer: Any) -> bool:
        return self.real_name(consumer.table) == self.source

    def _unheld(self) -> str:
        """No consumer has the row at this moment: none of this table, and none that is not known here."""
        key = "+«t».{0}" if self.dialect_name == "sqlite" else "CAST(«t».{0} AS text)"
        held = [f"its_claim.row_key = {key.format(names.quoted(self.key))}"]
        elsewhere = []
        for name, consumer in self._app.consumers.items():
            if self._is_of_this_table(consumer):
                column = key.format(names.quoted(consumer.key))
                held.append(f"(its_claim.consumer = {names.literal(name)} AND its_claim.row_key = {column})")
            else:
                elsewhere.append(names.literal(name))
        others = f" AND its_claim.consumer NOT IN ({', '.join(elsewhere)})" if elsewhere else ""
        return (
            "NOT EXISTS (SELECT 1 FROM rowlock_consumer_claims its_claim "  # noqa: S608 - quoted names
            f"WHERE its_claim.claimed_by IS NOT NULL{others} AND ({' OR '.join(held)}))"
        )

    def _try(self) -> None:
        try:
            with self.reading() as db:
                db.rows("try_where")
                db.rows("try_conditions", **self.values(1.0))
                if self.choice.has_age and (wrong := db.row("no_time", **self.values())) is not None:
                    raise ConfigurationError(
                        f"{self._title}: max_age counts from order_by={self._order!r}, which must be a time "
                        f"(on SQLite text in ISO 8601, or Unix seconds); {wrong[0]!r} is none"
                    )
        except TRANSIENT:
            raise
        except StoreError as error:
            # In the database's words: rowlock's own are about the queue's tables ("run `rowlock upgrade`").
            said = " ".join(str(error.__cause__ or error).split())
            raise ConfigurationError(
                f"{self._title}: its conditions do not work on {self.name} "
                f"(where={self.choice.where!r}): {said}"
            ) from error

    def values(self, age: float | None = None, **more: Any) -> dict[str, Any]:
        """What is bound in every statement that looks at rows; with an age, only those that are older."""
        return {"source": self.source, "by_age": int(age is not None), "age": age or 0.0, **more}

    # -- reading ---------------------------------------------------------------------------------

    def deletable(self, most: int, age: float | None, now: float | None) -> list[Named]:
        """The rows that the conditions allow, oldest first; with an age, only those that are older."""
        with self.reading(now) as db:
            return _named(db.rows("deletable", **self.values(age, count=most)))

    def count_protected(self, age: float | None, now: float | None) -> int:
        """How many rows a limit asks for (by age, or all) that the conditions protect."""
        with self.reading(now) as db:
            return int(db.row("count_protected", **self.values(age))[0])

    def living(self) -> Iterator[list[Named]]:
        """All rows that are not deleted yet, in pages."""
        with self.reading() as db:
            page = _named(db.rows("living_first", **self.values(count=_PAGE)))
        while page:
            yield page
            with self.reading() as db:
                page = _named(db.rows("living_beyond", **self.values(count=_PAGE, row_key=page[-1].key)))

    def still_deletable(
        self, db: Session, keys: Sequence[Any], age: float | None, lock: bool = True
    ) -> dict[Any, Named]:
        """Those of the rows that may still go; locked until the transaction ends, if that is asked for."""
        ids = self._locked(db, keys) if lock else json_list(keys)
        return {one.key: one for one in _named(db.rows("still_deletable", **self.values(age, ids=ids)))}

    def still_living(self, db: Session, keys: Sequence[Any]) -> dict[Any, Named]:
        """Those of the rows that are there, not deleted, and that no consumer has; locked."""
        rows = db.rows("still_living", **self.values(ids=self._locked(db, keys)))
        return {one.key: one for one in _named(rows)}

    def named(self, db: Session, keys: Sequence[Any]) -> list[Named]:
        """Those of the rows that are there, whatever their state; keys of other tables find none."""
        return _named(db.rows("rows_by_text", ids=json_list(keys)))

    def _locked(self, db: Session, keys: Sequence[Any]) -> str:
        return json_list(row[0] for row in db.rows("lock_rows", ids=json_list(keys)))

    def needed_elsewhere(
        self, db: Session, keys: Sequence[Any], paths: Sequence[str], age: float | None
    ) -> set[str]:
        """Those of these files that another row names which is not to be deleted."""
        values = self.values(age, ids=json_list(keys), paths=json_list(paths))
        return {row[0] for row in db.rows("needed_elsewhere", **values)}


def _named(rows: Sequence[Any]) -> list[Named]:
    return [Named(key, tuple(path for path in paths if path is not None)) for key, *paths in rows]


def _needed(column: str) -> str:
    """Those of the given files that a living row, other than the given ones, names and must keep."""
    return (
        f"SELECT {column} FROM «table» WHERE {column} {{among_paths}} AND {{living}} "  # noqa: S608 - no names
        "AND NOT («t».«key» {among_keys}) AND NOT coalesce({allowed} AND {unheld} AND {asked}, false)"
    )
