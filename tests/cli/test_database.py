"""`rowlock init`, `upgrade`, `backup`, `doctor`, and how every command finds its database."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from rowlock import Rowlock
from tests.cli.commands import CommandLine

READING = (
    ["jobs"], ["job", "1"], ["watch", "1"], ["cancel", "1"], ["retry", "1"], ["queues"], ["pause", "q"],
    ["queues", "set", "q", "--strategy", "LIFO"], ["workers"], ["upgrade"], ["backup", "copy.db"], ["doctor"],
)  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_a_command_that_needs_a_queue_creates_none(rowlock: CommandLine, words: list[str]) -> None:
    complaint = rowlock.refused_here(*words)
    assert complaint.startswith("no queue at rowlock.db; name it with --database")
    assert rowlock.files() == set()


def test_init_creates_once_and_says_so(rowlock: CommandLine) -> None:
    assert rowlock.here("init").out == "created a queue at rowlock.db (schema version 1)\n"
    assert rowlock.here("init").out == "there is a queue at rowlock.db already (schema version 1)\n"
    with sqlite3.connect(rowlock.folder / "mine.db") as mine:
        mine.execute("CREATE TABLE own (x)")
    mine.close()
    assert "rowlock's tables are not" in rowlock.refused_here("jobs", "-d", "mine.db")
    assert (
        rowlock.here("init", "-d", "mine.db").out
        == "created rowlock's tables in mine.db (schema version 1)\n"
    )
    assert rowlock.here("upgrade").out == "rowlock.db: already at version 1\n"
    assert "check that its folder exists" in rowlock.refused_here("init", "-d", "nowhere/jobs.db")


def test_the_database_comes_from_the_option_the_environment_the_app_or_the_default(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    folder = rowlock.folder
    for name in ("rowlock", "jobs", "a", "b"):
        queue = Rowlock(f"sqlite:///{folder / name}.db")
        queue.enqueue(f"in_{name}")
        queue.close()

    def task(*words: str, **environment: str) -> str:
        return str(rowlock.here("jobs", "--json", *words, **environment).json["jobs"][0]["task"])

    everything = {"ROWLOCK_DATABASE_URL": "sqlite:///a.db", "ROWLOCK_APP": "shop:queue"}
    assert task() == "in_rowlock"
    assert task(ROWLOCK_APP="shop:queue") == "in_jobs"
    assert task(**everything) == "in_a"
    assert task("--database", "sqlite:///b.db", **everything) == "in_b"
    assert task("--database", str(folder / "b.db")) == "in_b"
    assert task(ROWLOCK_DATABASE_URL="") == "in_rowlock"
    assert rowlock.refused_here("jobs", ROWLOCK_APP="gone").endswith("; --database URL does without the app")


def test_a_database_that_cannot_be_used_is_told_in_one_line(rowlock: CommandLine) -> None:
    rowlock.write("letter.txt", "Dear database, " * 100)
    assert rowlock.refused_here("doctor", "-d", "letter.txt").startswith(
        "letter.txt is not a SQLite database"
    )
    assert rowlock.refused_here("jobs", "-d", ".").startswith(". cannot be opened")
    assert rowlock.refused_here("jobs", "-d", "mysql://host/db").startswith(
        "'mysql' is not a kind of database"
    )
    assert rowlock.refused_here("jobs", "-d", "sqlite:jobs.db").startswith(
        "'sqlite:jobs.db' is not a database URL"
    )
    assert "--database is empty" in rowlock.refused_here("jobs", "-d", "", code=2)
    assert rowlock.refused_here("jobs", POLLER_INTERVAL_SECONDS="often").startswith(
        "POLLER_INTERVAL_SECONDS='often': "
    )

    rowlock("init")  # a process of its own: when it has ended, all is in the file
    whole = (rowlock.folder / "rowlock.db").read_bytes()
    for damaged in (whole[:4096] + bytes(4096) * 3 + whole[4096 * 4 :], whole[:5000]):
        (rowlock.folder / "bad.db").write_bytes(damaged)
        ended = rowlock.here("doctor", "-d", "bad.db", code=1)
        assert "damaged" in ended.out + ended.err and "Traceback" not in ended.err


def test_a_backup_is_a_queue_and_overwrites_nothing(rowlock: CommandLine, shop: Rowlock) -> None:
    shop.enqueue("add")
    said = rowlock.here("backup", "copy.db", "-d", "jobs.db").out
    assert said == f"jobs.db copied to copy.db: {(rowlock.folder / 'copy.db').stat().st_size:,} bytes\n"
    assert len(rowlock.here("jobs", "-d", "copy.db", "--json").json["jobs"]) == 1
    assert rowlock.refused_here("backup", "copy.db", "-d", "jobs.db").startswith("copy.db exists already")
    assert "there is no folder" in rowlock.refused_here("backup", "nowhere/copy.db", "-d", "jobs.db")


def test_the_doctor_says_what_to_do_and_its_exit_code_whether(rowlock: CommandLine, shop: Rowlock) -> None:
    shop.store.open()
    healthy = rowlock.here("doctor", "-d", "jobs.db")
    assert "✓ ok" in healthy.out and healthy.out.endswith("\nall is well\n") and "\x1b" not in healthy.out
    shop.enqueue("add")
    ill = rowlock.here("doctor", "-d", "jobs.db", code=1)
    assert "! warning  workers" in ill.out and "→ start one: rowlock worker module:app" in ill.out
    assert ill.out.endswith("\nneeds attention: workers\n")
    report = rowlock.here("doctor", "-d", "jobs.db", "--json", code=1).json
    assert report["healthy"] is False
    assert {"check": "workers", "level": "warning"}.items() <= next(
        one for one in report["findings"] if one["check"] == "workers"
    ).items()
    ascii_only = rowlock("doctor", "-d", "jobs.db", code=1, PYTHONIOENCODING="ascii")
    assert "+ ok" in ascii_only.out and "-> start one" in ascii_only.out


HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


def test_the_doctor_names_who_holds_a_duckdb_file(rowlock: CommandLine) -> None:
    words = ["doctor", "-d", "data.duckdb"]
    rowlock.here("init", "-d", "data.duckdb")
    command = [sys.executable, "-c", HOLD, str(rowlock.folder / "data.duckdb")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
        ill = rowlock.here(*words, code=1, ROWLOCK_BUSY_TIMEOUT="0.1")
        report = rowlock.here(*words, "--json", code=1, ROWLOCK_BUSY_TIMEOUT="0.1").json
    finally:
        holder.communicate()
    assert f"data.duckdb is open in process {holder.pid}" in ill.out and "→ end that program" in ill.out
    assert ill.out.endswith("\nneeds attention: opens\n") and ill.err == ""
    assert [(one["check"], one["level"]) for one in report["findings"]] == [
        ("opens", "error"),
        ("settings", "ok"),
    ]


def test_a_database_of_the_environment_is_named_by_its_variable(rowlock: CommandLine) -> None:
    for words in (["jobs"], ["enqueue", "add"]):
        said = rowlock.refused_here(*words, ROWLOCK_DATABASE_URL="mysql://localhost/x")
        assert said.startswith("ROWLOCK_DATABASE_URL: 'mysql' is not a kind of database")
    rowlock.here("init", "-d", "a.db")
    chosen = "sqlite:///a.db"
    said = rowlock.here("doctor", ROWLOCK_DATABASE_URL=chosen).out
    assert f"database_url {chosen} (ROWLOCK_DATABASE_URL)" in said


@pytest.mark.parametrize("name", ["data.duckdb", "data.DDB"])
def test_a_path_with_the_suffix_of_duckdb_names_a_duckdb_file(rowlock: CommandLine, name: str) -> None:
    assert rowlock.refused_here("jobs", "-d", name).startswith(f"no queue at {name}; name it with --database")
    assert rowlock.here("init", "-d", name).out == f"created a queue at duckdb:///{name} (schema version 1)\n"
    assert rowlock.here("jobs", "-d", f"duckdb:///{name}", "--json").json["jobs"] == []
