"""Checks whether a consumer's table fits it: its columns, its words, and the statements written for it.

Nothing is changed there; what does not fit is a `ConfigurationError` in words about the user's table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING

from rowlock.consumers.column_times import typed
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.job import Ending, Outcome
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.consumers.table import Table


def refusal(attempt: Callable[[], object]) -> StoreError | None:
    """What the database says against what is attempted; None: nothing."""
    try:
        attempt()
    except TRANSIENT:  # a lost connection or a lock says nothing about the attempt
        raise
    except StoreError as error:
        return error
    return None


def check_columns(table: Table) -> None:
    """Raise unless the columns are there, of a type that fits, and the key is unique."""
    consumer, types, dialect = table.consumer, table.types, table.database.dialect
    place, who, form = ".".join(consumer.table), consumer.title, consumer.form
    if dialect not in form.column_types:
        raise ConfigurationError(
            f"{who}: state= and flag= are not for DuckDB: use status=Status(...), a column with a word for "
            "each state"
        )
    if not types:
        raise ConfigurationError(f"{who}: there is no table {place} in this database; create it first")
    for what, name in consumer.needed():
        if name not in types:
            raise ConfigurationError(
                f"{who}: {what}={name!r}, but {place} has no such column; it has: {', '.join(types)}"
            )
    if consumer.key not in table.unique:
        raise ConfigurationError(
            f"{who}: key={consumer.key!r} is not unique in {place}: name its primary key, or a column with a "
            "unique index of its own"
        )
    if consumer.due_at is not None and table.due_time is None:
        raise ConfigurationError(
            f"{who}: due_at={consumer.due_at!r} is of type {types[consumer.due_at]} "
            f"in {place}, which is no time; it must be a timestamp, a date, or a number (Unix seconds)"
        )
    pattern, wanted = form.column_types[dialect]
    kind, (option, *_) = types[form.column], form.columns
    if not typed(pattern)(kind):
        raise ConfigurationError(
            f"{who}: in {place}, {option}={form.column!r} is of type {kind or 'ANY'}; it must be {wanted}"
        )


def rehearse(table: Table) -> None:
    """Try the statements of a consumer on its table, which changes nothing; raise if one does not work."""
    consumer, statements = table.consumer, table.statements
    if consumer.form.words:
        _try_words(table)
    what = form = str(consumer.form)

    def attempt() -> None:
        nonlocal what
        with table.database.read() as db:
            tx = db.using(statements)
            tx.rows("try_form")
            what = f"where={consumer.where!r}"
            tx.rows("try_where")
            tx.rows("try_condition")
            what = form
            _explain_writes(table, db)

    if error := refusal(attempt):
        # In the database's words: rowlock's own are about the queue's tables ("run `rowlock upgrade`").
        said = " ".join(str(error.__cause__ or error).split())
        raise ConfigurationError(
            f"{consumer.title}: its {what} does not work on {'.'.join(consumer.table)}: {said}"
        ) from error
    if consumer.due_at is not None and "not_a_time" in statements:
        with table.database.read() as db:
            wrong = db.using(statements).rows("not_a_time")
        if wrong:
            raise ConfigurationError(
                f"{consumer.title}: due_at={consumer.due_at!r}: {wrong[0][0]!r} in that column "
                "is no time; it must be Unix seconds, or text such as '2026-05-01 10:00:00' (UTC)"
            )


def _explain_writes(table: Table, db: Session) -> None:
    """Let the database explain the statements that change the user's rows, which runs none of them."""
    form = table.consumer.form
    writes = ["mark"]
    writes += ["take_rows", "give_row_back", "progress_of_row"] if form.holds else []
    writes += ["clear_failed"] if form.shows_failures else []
    done = form.mark_values(Outcome(id=0, claim=0, ending=Ending.COMPLETED, result="true"), 0) or {}
    nobody = {"ids": "[]", "worker": "", "begins": 1, "charge": 0, "claim_number": 0}
    for name in writes:
        plan = {name: table.dialect.explain + table.statements[name]}
        db.using(plan).rows(
            name, **{**nobody, "row_key": None, "error": None, **form.progress_values(1.0, 2.0), **done}
        )


def _try_words(table: Table) -> None:
    """Raise if two words are the same value in the column; only the database knows its type."""
    who, form, statements = table.consumer.title, table.consumer.form, table.statements
    kind = table.types[form.column]
    place = f"{'.'.join(table.consumer.table)}.{form.column}, which is of type {kind or 'ANY'}"
    written = {f"{name}={word!r}": word for name, word in form.words.items()}
    said = ""

    def attempt() -> None:
        nonlocal said
        with table.database.undone() as db:
            tx = db.using(statements)
            if "make_words" in statements:
                tx.run("make_words")
            for said, word in written.items():
                ((kept,),) = tx.rows("try_word", word=word)
                if table.dialect.cuts(kind) and kept.rstrip() != str(word).rstrip():
                    raise ConfigurationError(
                        f"{who}: Status({said}) does not fit into {place}: it would be cut to {kept!r}"
                    )
            for one, other in combinations(written, 2):
                said = f"{one} and {other}"
                if tx.row("count_values", word=written[one], other_word=written[other])[0] == 1:
                    raise ConfigurationError(
                        f"{who}: Status({said}): these are one value in {place}; choose words that "
                        "differ there"
                    )

    if error := refusal(attempt):
        labels = _labels(table)
        reason = f"that is an enumeration, and it has: {labels}" if labels else str(error)
        raise ConfigurationError(f"{who}: Status({said}) does not work in {place}: {reason}") from error


def _labels(table: Table) -> str | None:
    """The labels of a status column that is an enumeration; None if its type is something else."""
    if "labels" not in table.statements:
        return None
    with table.database.read() as db:
        place = {"table": table.catalogue_name, "name": table.consumer.form.column}
        ((labels,),) = db.using(table.statements).rows("labels", **place)
    return None if labels is None else str(labels)
