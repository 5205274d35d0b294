"""`rowlock consume` and `rowlock consumers`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import duckdb
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


def test_consume_takes_no_strategy_but_the_order_and_its_reverse(
    rowlock: CommandLine, lab: sqlite3.Connection
) -> None:
    rowlock("consume", "lab:app", "birdnet", "--until-empty", "--strategy", "lifo")
    for via in ((), ("--via", "rq")):
        said = rowlock.refused_here("consume", "lab:app", "birdnet", "--strategy", "priority", *via)
        assert "PRIORITY does not apply to a consumer" in said


def test_init_says_what_it_leaves_out_of_an_index(rowlock: CommandLine, lab: sqlite3.Connection) -> None:
    where = "path <> 'x' AND path <= datetime('now')"
    rowlock.write(
        "lab.py", CODE.replace('state="analysis_state"', f'state="analysis_state", where="{where}"')
    )
    said = "birdnet: \"path <= datetime('now')\" is not in rowlock_birdnet_due, "
    printed = rowlock("consumers", "init", "--sql", *APP).out
    assert printed.startswith(f"-- {said}") and "may read the clock" in printed.splitlines()[0]
    lab.executescript(printed)
    assert said in rowlock.here("consumers", *APP, "init").err
    lab.execute("INSERT INTO recordings (path) VALUES ('d')")


def test_an_index_for_another_condition_is_said_to_be_no_use(
    rowlock: CommandLine, lab: sqlite3.Connection
) -> None:
    lab.execute("CREATE INDEX rowlock_birdnet_due ON recordings (path) WHERE path = 'b'")
    told = rowlock("consumers", *APP, "init")
    assert "rowlock_birdnet_due was made for another condition" in told.err
    lab.execute("DROP INDEX rowlock_birdnet_due")
    assert rowlock.here("consumers", *APP, "init").err == ""


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_a_missing_index_is_named_once(rowlock: CommandLine, lab: sqlite3.Connection, pool: str) -> None:
    told = rowlock("consume", "lab:app", "birdnet", "--until-empty", "--pool", pool)
    assert (told.code, told.err.count("its index rowlock_birdnet_due is missing")) == (0, 1)


def test_init_says_that_duckdb_needs_no_indexes(rowlock: CommandLine) -> None:
    code = CODE.replace("sqlite:///lab.db", "duckdb:///lab.duckdb").replace(
        'state="analysis_state"', 'status=Status("status")'
    )
    rowlock.write("lab.py", code.replace("import Retry, Rowlock", "import Retry, Rowlock, Status"))
    with duckdb.connect(str(rowlock.folder / "lab.duckdb")) as connection:
        connection.execute("CREATE TABLE recordings (id INTEGER PRIMARY KEY, status VARCHAR)")
    assert rowlock("consumers", "init", *APP).out == "birdnet: this database needs none\n"


def test_the_order_of_a_consumer_is_said_to_be_that_of_rows(
    rowlock: CommandLine, lab: sqlite3.Connection
) -> None:
    rowlock.here("init", "--database", "lab.db")
    said = rowlock.here("queues", "set", "consumer:birdnet", "--strategy", "LIFO", "--database", "lab.db").out
    assert said == "rows of consumer birdnet are now claimed by LIFO\n"


def test_the_indexes_are_printed_or_created(rowlock: CommandLine, lab: sqlite3.Connection) -> None:
    printed = rowlock("consumers", "init", "--sql", *APP)
    assert printed.out.count("CREATE INDEX IF NOT EXISTS") == 3
    names = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'recordings' ORDER BY name"
    assert lab.execute(names).fetchall() == []
    lab.executescript(printed.out)  # what is printed can be run
    assert rowlock.here("consumers", *APP, "init").code == 0
    assert [name for (name,) in lab.execute(names)] == [
        "rowlock_birdnet_due",
        "rowlock_birdnet_failed",
        "rowlock_recordings_analysis_state_broken",
    ]


def test_consumers_shows_how_they_stand_and_retry_clears_failures(
    rowlock: CommandLine, lab: sqlite3.Connection
) -> None:
    before = rowlock.here("consumers", "--json", *APP).json[0]
    assert (before["due"], before["done"], before["failed"], before["oldest_due"]) == (3, 0, 0, 1)
    rowlock.here("consume", "lab:app", "birdnet", "--until-empty")
    lab.execute("INSERT INTO recordings (path, analysis_state) VALUES ('x', '{oops')")
    shown = rowlock("consumers", *APP)
    header, line = shown.out.splitlines()
    assert header.split()[:5] == ["consumer", "table", "due", "in", "flight"]
    assert line.split()[:7] == ["birdnet", "recordings", "0", "0", "0", "~2", "1"]
    assert "birdnet has no index" in shown.err
    assert "skips 1 rows" in shown.err
    exact = rowlock.here("consumers", "--json", "--exact", *APP).json[0]
    assert (exact["done"], exact["done_is_exact"], exact["failed"], exact["broken"]) == (2, True, 1, 1)

    doctor = rowlock.here("doctor", "--json", code=1, ROWLOCK_APP="lab:app").json
    said = [one for one in doctor["findings"] if one["check"] == "consumer birdnet"]
    assert [one["level"] for one in said] == ["warning", "warning", "note"]
    assert "SCAN recordings" in said[0]["message"]
    assert said[0]["advice"] == "create it: rowlock consumers init"

    assert "--failed" in rowlock.refused_here("consumers", "retry", "birdnet", *APP, code=2)
    assert rowlock("consumers", "retry", "birdnet", "--failed", *APP).out == "birdnet: 1 row is due again\n"
    assert rowlock.here("consumers", "--json", *APP).json[0]["due"] == 1
    rowlock.here("consumers", "init", *APP)
    doctor = rowlock.here("doctor", "--json", code=1, ROWLOCK_APP="lab:app").json
    said = [one for one in doctor["findings"] if one["check"] == "consumer birdnet"]
    assert said[0]["level"] == "ok"


def test_what_is_missing_is_said_in_one_line(rowlock: CommandLine, lab: sqlite3.Connection) -> None:
    assert "known ones are: birdnet" in rowlock.refused_here("consume", "lab:app", "batdetect")
    assert "which app?" in rowlock.refused_here("consumers", "init", code=2)
    lab.execute("DROP TABLE recordings")
    assert "there is no table recordings" in rowlock.refused_here("consume", "lab:app", "birdnet")


def test_consumers_of_a_database_are_known_without_their_app(
    rowlock: CommandLine, lab: sqlite3.Connection
) -> None:
    rowlock.write("lab.py", CODE.replace("max_attempts=1", "max_attempts=2, base=999, cap=999"))
    assert rowlock("consume", "lab:app", "birdnet", "--until-empty").code == 0
    assert rowlock("pause", "consumer:birdnet", "--database", "lab.db").code == 0
    (found,) = json.loads(rowlock("consumers", "--database", "lab.db", "--json").out)
    expected = {"name": "birdnet", "workers": 0, "in_flight": 0, "waiting": 1, "paused": True}
    assert found == {**expected, "paused_until": None}
    shown = rowlock("consumers", "--database", "lab.db")
    assert "birdnet" in shown.out and "--app MODULE:APP" in shown.err
