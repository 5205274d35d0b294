"""`rowlock ingest` and `rowlock janitor` as their users meet them."""

from __future__ import annotations

import os
import sqlite3
import time

import pytest

from tests.cli.commands import CommandLine
from tests.eventually import eventually

LAB = """
from rowlock import Rowlock

app = Rowlock("sqlite:///lab.db", poll_interval=0.1)
app.ingest("microphones", table="recordings", folder="recorder", pattern="**/*.wav", path="path",
           paths="relative", settle=0.05, interval=0.2, row=lambda path: {"time": path.stat().st_mtime})
common = dict(table="recordings", folder="recorder", path="path", paths="relative", order_by="time",
              deleted="deleted", interval=0.2)
app.janitor("housekeeping", max_age="1h", where="path <> 'kept.wav'", **common)
app.janitor("panic", max_age="2h", **common)
"""


@pytest.fixture
def lab(rowlock: CommandLine) -> CommandLine:
    """A folder with lab.py, its table (without the constraint) and one finished recording."""
    rowlock.write("lab.py", LAB)
    (rowlock.folder / "recorder").mkdir()
    _execute(
        rowlock, "CREATE TABLE recordings (id INTEGER PRIMARY KEY, time REAL, path TEXT, deleted BOOLEAN)"
    )
    record(rowlock, "a.wav")
    return rowlock


def record(lab: CommandLine, name: str, age: float = 100.0) -> None:
    path = lab.folder / "recorder" / name
    path.write_bytes(b"RIFF")
    os.utime(path, (time.time() - age,) * 2)


def _execute(lab: CommandLine, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(lab.folder / "lab.db", isolation_level=None)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def paths(lab: CommandLine) -> list[object]:
    return [row[0] for row in _execute(lab, "SELECT path FROM recordings ORDER BY path")]


def test_the_constraint_is_asked_for_and_created_by_init(lab: CommandLine) -> None:
    assert "rowlock ingest module:app --init" in lab.refused_here("ingest", "lab:app", "--once")
    assert "microphones: rowlock_recordings_path" in lab.here("ingest", "lab:app", "--init").out
    assert lab.here("ingest", "lab:app", "--once").out == "microphones: 1 ingested\n"
    assert lab.here("ingest", "lab:app", "microphones", "--once").out == "microphones: 0 ingested, 1 known\n"
    assert paths(lab) == ["a.wav"]


def test_how_it_stands_is_shown(lab: CommandLine) -> None:
    lab.here("ingest", "lab:app", "--init")
    lab.here("ingest", "lab:app", "--once")
    (record,) = lab.here("ingest", "lab:app", "--status", "--json").json
    assert (record["done"], record["bytes"], record["waiting"], record["failed"]) == (1, 4, 0, 0)
    assert "microphones" in lab.here("ingest", "lab:app", "--status").out


def test_a_file_without_a_row_is_an_exit_code(lab: CommandLine) -> None:
    lab.write("lab.py", LAB + '\nraise_it = app.ingests["microphones"]\nraise_it._row = lambda path: 1 / 0\n')
    lab.here("ingest", "lab:app", "--init")
    ended = lab.here("ingest", "lab:app", "--once", code=1)
    assert "1 failed" in ended.out and "division by zero" in ended.err
    assert "1 failed before" in lab.here("ingest", "lab:app", "--once", code=1).out  # in its pause


def test_a_service_takes_what_comes_and_stops_well(lab: CommandLine) -> None:
    lab.here("ingest", "lab:app", "--init")
    with lab.start("ingest", "lab:app") as service:
        eventually(lambda: paths(lab) == ["a.wav"], timeout=60)
        record(lab, "b.wav", age=0)
        eventually(lambda: paths(lab) == ["a.wav", "b.wav"], timeout=60)
        service.signal("SIGTERM")
        code, out = service.ends()
    assert code == 0 and out.startswith("microphones writes rows of recordings for the files in ")
    assert "stopped in good order" in service.err
    assert "watchfiles" not in service.err  # which has a line for each write of a recorder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("lab:app", "cameras"), "declares no ingest 'cameras'; there are: microphones"),
        (("lab:app", "a", "b"), "one ingest at a time"),
        ((), "which app?"),
    ],
)
def test_what_is_not_declared_is_said(lab: CommandLine, words: tuple[str, ...], told: str) -> None:
    assert told in lab.refused_here("ingest", *words, code=2 if "which" in told or "at a time" in told else 1)


def test_a_dry_run_prints_what_and_why_by_tier(lab: CommandLine) -> None:
    lab.here("ingest", "lab:app", "--init")
    record(lab, "kept.wav", age=10_000)
    record(lab, "old.wav", age=5_000)
    lab.here("ingest", "lab:app", "--once")
    said = lab.here("janitor", "lab:app", "--dry-run").out
    assert [line.split()[:3] for line in said.splitlines()[1:3]] == [
        ["housekeeping", "2", "old.wav"],
        ["panic", "1", "kept.wav"],
    ]
    assert "older than 1 h" in said and "housekeeping: 1 rows would be deleted" in said
    assert sorted(path.name for path in (lab.folder / "recorder").iterdir()) == [
        "a.wav",
        "kept.wav",
        "old.wav",
    ]
    (first, _) = lab.here("janitor", "lab:app", "--once", "--json").json
    assert first["deleted"][0]["paths"] == ["old.wav"] and first["kept"] == 1
    assert [path.name for path in (lab.folder / "recorder").iterdir()] == ["a.wav"]
    (status, _) = lab.here("janitor", "lab:app", "--status", "--json").json
    assert status["done"] == 1 and status["total"] > status["free"] > 0


def test_a_disk_that_stays_too_full_is_an_exit_code(lab: CommandLine) -> None:
    lab.write("lab.py", LAB + '\napp.janitor("more", min_free="100%", **common)\n')
    told = lab.here("janitor", "lab:app", "more", "--once", code=1).err
    assert "is too full" in told and "nothing else may be deleted" in told
    assert "more: the disk of " in lab.here("janitor", "lab:app", "more", "--dry-run").out


def test_files_that_go_without_the_tables_knowledge_are_an_exit_code(lab: CommandLine) -> None:
    lab.here("ingest", "lab:app", "--init")
    lab.here("ingest", "lab:app", "--once")
    _execute(lab, "UPDATE recordings SET time = 1")
    _execute(
        lab,
        "CREATE TRIGGER sealed BEFORE UPDATE ON recordings BEGIN SELECT RAISE(ABORT, 'sealed'); END",
    )
    ended = lab.here("janitor", "lab:app", "housekeeping", "--once", code=1)
    assert "0 rows deleted" in ended.out and "1 rows without files not marked" in ended.out
    assert "sealed" in ended.err


def test_a_tier_whose_limit_raises_is_skipped_and_an_exit_code(lab: CommandLine) -> None:
    lab.write("lab.py", LAB + '\napp.janitor("wrong", min_free=lambda: 1 / 0, **common)\n')
    ended = lab.here("janitor", "lab:app", "--once", code=1)
    assert "wrong: skipped: min_free() raised ZeroDivisionError" in ended.out
    assert "panic: 0 rows deleted" in ended.out and "nothing is deleted: min_free()" in ended.err


def test_a_dry_run_shows_a_name_of_two_lines_on_one(lab: CommandLine) -> None:
    lab.here("ingest", "lab:app", "--init")
    record(lab, "two\nlines.wav", age=10_000)
    lab.here("ingest", "lab:app", "--once")
    assert "'two\\nlines.wav'" in lab.here("janitor", "lab:app", "--dry-run").out


def test_the_janitors_run_as_one_service(lab: CommandLine) -> None:
    lab.here("ingest", "lab:app", "--init")
    record(lab, "old.wav", age=10_000)
    lab.here("ingest", "lab:app", "--once")
    with lab.start("janitor", "lab:app") as service:
        eventually(lambda: not (lab.folder / "recorder" / "old.wav").exists(), timeout=60)
        service.signal("SIGINT")
        code, out = service.ends()
    assert code == 0 and out.splitlines()[1].startswith("panic deletes files in ")


def test_the_doctor_looks_at_files_too(lab: CommandLine) -> None:
    lab.here("ingest", "lab:app", "--once", code=1)  # the constraint is missing
    ended = lab.here("doctor", "--json", code=1, ROWLOCK_APP="lab:app")
    told = {one["check"]: one for one in ended.json["findings"]}
    assert "--init" in told["ingest microphones"]["advice"]
    assert told["janitor panic"]["message"] == "it has never run"


@pytest.mark.parametrize("words", [("janitor", "--dry-run"), ("janitor", "--status"), ("ingest", "--status")])
def test_who_only_looks_creates_nothing(rowlock: CommandLine, words: tuple[str, str]) -> None:
    rowlock.write("lab.py", LAB)
    (rowlock.folder / "recorder").mkdir()
    assert "no queue at lab.db" in rowlock.refused_here(words[0], "lab:app", words[1])
    assert rowlock.files() == set()
