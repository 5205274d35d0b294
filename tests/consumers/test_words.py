"""The words of a status column, as the column's own type takes them."""

from __future__ import annotations

import re

import pytest

from rowlock import ConfigurationError, Status
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab, store_of

Words = tuple[str | int, str | int, str | int, str | int]
PLAIN: Words = ("new", "busy", "ok", "bad")
# By whether it is SQLite: types of a column, words that are not four values there, and which those are.
SAME: dict[bool, list[tuple[str, Words, str]]] = {
    True: [
        ("INTEGER", ("0", "1", "01", "2"), "running='1' and done='01'"),
        ("NUMERIC NOT NULL", (0, 1, "2", "2.0"), "done='2' and failed='2.0'"),
        ("TEXT COLLATE NOCASE", ("new", "busy", "ok", "NEW"), "due='new' and failed='NEW'"),
        ("varchar(9) NOT NULL COLLATE nocase", ("new", "New", "ok", "bad"), "due='new' and running='New'"),
        ("TEXT COLLATE RTRIM", ("new", "new ", "ok", "bad"), "due='new' and running='new '"),
    ],
    False: [
        ("integer", ("0", "1", "01", "2"), "running='1' and done='01'"),
        ("numeric(4, 1)", (0, 1, "2", "2.0"), "done='2' and failed='2.0'"),
        ("character(8)", ("new", "new ", "ok", "bad"), "due='new' and running='new '"),
        ("{0}flag", ("no", "f", "yes", "t"), "due='no' and running='f'"),
        ("bit(1)", ("0", "1", "00", "11"), "due='0' and done='00'"),
    ],
}
BOOLEAN = {True: ["BOOLEAN", "bool NOT NULL DEFAULT 0"], False: ["boolean", "bool NOT NULL DEFAULT false"]}


def work(job: Row) -> None:
    """A consumer's function that does nothing."""


def look(lab: Lab, kind: str, words: Words) -> None:
    """Look at a table with a status column of that type, as a consumer with these words does."""
    lab.execute(f"DROP TABLE IF EXISTS {lab.prefix}jobs")
    lab.execute(f"CREATE TABLE {lab.prefix}jobs (id {lab.types['id']}, status {kind})")
    due, running, done, failed = words
    app = lab.app()
    status = Status("status", due=due, running=running, done=done, failed=failed)
    app.consumer("video", table=f"{lab.prefix}jobs", status=status)(work)
    store_of(app, "video").source.table  # noqa: B018 - looks at the user's table
    assert lab.execute(f"SELECT count(*) FROM {lab.prefix}jobs") == [(0,)]


@pytest.mark.parametrize("words", [("false", "f", "true", "t"), (0, 1, 2, 3), PLAIN])
def test_a_boolean_column_is_refused_whatever_the_words(lab: Lab, words: Words) -> None:
    for kind in BOOLEAN[lab.is_sqlite]:
        with pytest.raises(ConfigurationError, match="a boolean column cannot hold four states; use state="):
            look(lab, kind, words)


@pytest.mark.parametrize("lab", ["postgres"], indirect=True)
def test_a_type_that_is_only_called_like_a_boolean_is_taken(lab: Lab) -> None:
    lab.execute(f"CREATE TYPE {lab.prefix}booleanish AS ENUM ('new', 'busy', 'ok', 'bad')")
    lab.execute(f'CREATE DOMAIN {lab.prefix}"boolean" AS text')
    for kind in ("booleanish", '"boolean"'):
        look(lab, f"{lab.prefix}{kind}", PLAIN)


def test_words_that_the_columns_type_makes_one_value_are_refused(lab: Lab) -> None:
    if not lab.is_sqlite:
        lab.execute(f"CREATE DOMAIN {lab.prefix}flag AS boolean")
    for kind, words, same in SAME[lab.is_sqlite]:
        with pytest.raises(ConfigurationError, match=re.escape(f"Status({same}): these are one value")):
            look(lab, kind.format(lab.prefix), words)


def test_a_word_that_the_column_would_cut_is_refused(lab: Lab) -> None:
    words = ("new", "busy", "finished", "bad")
    for kind in ("varchar(5)", "character(5)"):
        if lab.is_sqlite:  # which does not look at the length
            look(lab, kind, words)
        else:
            with pytest.raises(ConfigurationError, match=r"done='finished'.* 'finis'"):
                look(lab, kind, words)


@pytest.mark.parametrize("words", [PLAIN, ("0", "1", "01", "2"), (0, 1, 2, 3), ("new", "New", "NEW", "new ")])
def test_words_that_are_four_values_in_the_column_are_taken(lab: Lab, words: Words) -> None:
    look(lab, "integer NOT NULL" if isinstance(words[0], int) else "varchar(9) NOT NULL", words)


def test_a_word_that_the_columns_type_does_not_know_is_named(lab: Lab) -> None:
    if lab.is_sqlite:
        look(lab, "INTEGER", PLAIN)  # which takes any value
        return
    lab.execute(f"CREATE TYPE {lab.prefix}phase AS ENUM ('new', 'busy', 'it''s', 'bad')")
    lab.execute(f"CREATE DOMAIN {lab.prefix}stage AS {lab.prefix}phase")
    for kind in ("phase", "stage"):
        with pytest.raises(ConfigurationError, match=r"done='ok'.*it has: 'new', 'busy', 'it''s', 'bad'$"):
            look(lab, f"{lab.prefix}{kind}", PLAIN)
    with pytest.raises(ConfigurationError, match=r"Status\(due='new'\) does not work in .* of type integer"):
        look(lab, "integer", PLAIN)
    with pytest.raises(ConfigurationError, match=r"Status.* does not work on"):
        look(lab, "text", (0, 1, 2, 3))
