"""`rowlock consume` and `rowlock consumers`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import pytest

from tests.cli.commands import CommandLine

CODE = """
from rowlock import Retry, Rowlock

app = Rowlock("sqlite:///lab.db")

@app.consumer("birdnet", table="recordings", state="analysis_state", retry=Retry(max_attempts=1))
def birdnet(recording):
    if recording.path == "bad":
        raise ValueError("no sound in it")
"""
APP = ("--app", "lab:app")


@pytest.fixture
def lab(rowlock: CommandLine) -> Iterator[sqlite3.Connection]:
    rowlock.write("lab.py", CODE)
    connection = sqlite3.connect(rowlock.folder / "lab.db", isolation_level=None)
    connection.execute("CREATE TABLE recordings (id INTEGER PRIMARY KEY, path TEXT, analysis_state TEXT)")
    connection.execute("INSERT INTO recordings (path) VALUES ('a'), ('bad'), ('c')")
    yield connection
    connection.close()


def states(lab: sqlite3.Connection) -> list[object]:
    rows = lab.execute("SELECT analysis_state FROM recordings ORDER BY id").fetchall()
    return [None if text is None else json.loads(text)["birdnet"] for (text,) in rows]


def test_consume_works_on_the_rows_of_a_table(rowlock: CommandLine, lab: sqlite3.Connection) -> None:
    ended = rowlock("consume", "lab:app", "birdnet", "--until-empty", "--name", "w")
    assert ended.code == 0
    assert "worker w takes rows of recordings for birdnet in lab.db, 4 at once" in ended.out
    assert "2 completed, 1 failed" in ended.out
    assert states(lab) == [True, {"failed": "ValueError: no sound in it", "attempts": 1}, True]


def test_the_indexes_are_printed_or_created(rowlock: CommandLine, lab: sqlite3.Connection) -> None:
    printed = rowlock("consumers", "init", "--sql", *APP)
    assert printed.out.count("CREATE INDEX IF NOT EXISTS") == 2
    names = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'recordings' ORDER BY name"
    assert lab.execute(names).fetchall() == []
    lab.executescript(printed.out)  # what is printed can be run
    assert rowlock("consumers", *APP, "init").code == 0
    assert lab.execute(names).fetchall() == [
        ("rowlock_birdnet_due",),
        ("rowlock_recordings_analysis_state_broken",),
    ]


def test_what_is_missing_is_said_in_one_line(rowlock: CommandLine, lab: sqlite3.Connection) -> None:
    assert "known ones are: birdnet" in rowlock.refused("consume", "lab:app", "batdetect")
    assert "which app?" in rowlock.refused("consumers", "init", code=2)
    lab.execute("DROP TABLE recordings")
    assert "there is no table recordings" in rowlock.refused("consume", "lab:app", "birdnet")
