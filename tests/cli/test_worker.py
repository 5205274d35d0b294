"""`rowlock worker`: what it says, how it stops, and what it says about an app it cannot use."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing

import pytest

from rowlock import Rowlock
from tests.cli.commands import CommandLine
from tests.eventually import eventually

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent on Windows")


def test_a_worker_introduces_itself_runs_what_is_due_and_sums_up(rowlock: CommandLine, shop: Rowlock) -> None:
    good, bad = shop.enqueue("add", {"a": 1, "b": 2}), shop.enqueue("send", {"to": "me"}, queue="mail")
    later = shop.enqueue("add", {"a": 1, "b": 2}, delay=1000)
    ended = rowlock("worker", "shop:queue", "--until-empty", "--name", "w1", "-c", "2", "--strategy", "fifo")
    printed, first, last = ended.out.splitlines()
    assert printed == "the shop was imported"  # a worker's stdout is the app's as well
    assert first == (
        "worker w1 takes jobs from all queues of jobs.db, 2 at once, by FIFO; "
        "tasks: add, send, wait_for_the_go"
    )
    assert last.startswith("worker w1 ended: 1 completed, ") and "retried" in last
    assert shop.result(good.id) == 3
    assert shop.job(bad.id).failures >= 1
    assert shop.job(later.id).state == "scheduled"
    assert f"INFO shop [job {good.id} add, claim 1]: adding" in ended.err
    assert "\x1b" not in ended.out + ended.err


def test_only_the_named_queues_are_served(rowlock: CommandLine, shop: Rowlock) -> None:
    served, other = (shop.enqueue("add", {"a": 1, "b": 2}, queue=name) for name in ("fast", "slow"))
    rowlock.here("worker", "shop:queue", "--queue", "fast", "-q", "faster", "--until-empty")
    assert shop.job(served.id).state == "completed"
    assert shop.job(other.id).state == "queued"


def test_json_log_lines_carry_the_job(rowlock: CommandLine, shop: Rowlock) -> None:
    job = shop.enqueue("add", {"a": 1, "b": 2})
    ended = rowlock("worker", "shop:queue", "--until-empty", "--log-format", "json")
    assert ended.out == "the shop was imported\n"
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert all({"time", "level", "logger", "message", "job", "task", "claim"} == set(line) for line in lines)
    (adding,) = [line for line in lines if line["logger"] == "shop"]
    assert (adding["message"], adding["level"]) == ("adding", "info")
    assert (adding["job"], adding["task"], adding["claim"]) == (job.id, "add", 1)
    assert any("takes jobs from all queues of jobs.db" in line["message"] for line in lines)


@needs_signals
def test_the_first_interrupt_lets_the_running_job_finish(rowlock: CommandLine, shop: Rowlock) -> None:
    running, waiting = shop.enqueue("wait_for_the_go"), shop.enqueue("add", {"a": 1, "b": 2})
    with rowlock.start("worker", "shop:queue", "-c", "1") as worker:
        eventually((rowlock.folder / "started").exists)
        worker.signal("SIGINT")
        worker.says("for what runs (1)")
        rowlock.write("go", "")
        code, out = worker.ends()
    assert code == 0 and "1 completed" in out and "Traceback" not in worker.err
    assert shop.result(running.id) == "gone"
    assert shop.job(waiting.id).state == "queued"
    assert not any(one.alive for one in shop.store.workers())


@needs_signals
@pytest.mark.parametrize(("second", "expected"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_second_signal_ends_it_at_once_and_the_job_is_queued_again(
    rowlock: CommandLine, shop: Rowlock, second: str, expected: int
) -> None:
    job = shop.enqueue("wait_for_the_go")
    with rowlock.start("worker", "shop:queue") as worker:
        eventually((rowlock.folder / "started").exists)
        worker.signal("SIGINT")
        worker.says("for what runs (1)")
        worker.signal(second)
        code, out = worker.ends()
    assert code == expected and "1 released" in out and "Traceback" not in worker.err
    found = shop.job(job.id)
    assert (found.state, found.failures) == ("queued", 0)


def test_the_app_may_come_from_the_environment_or_from_pyproject(rowlock: CommandLine, shop: Rowlock) -> None:
    assert "which app?" in rowlock.refused_here("worker", "--until-empty", code=2)
    assert "tasks: add" in rowlock("worker", "--until-empty", ROWLOCK_APP="shop:queue").out
    rowlock.write("pyproject.toml", '[tool.rowlock]\napp = "shop:queue"\n')
    assert "tasks: add" in rowlock.here("worker", "--until-empty").out
    assert "add" in rowlock.here("enqueue", "add", "a=1", "b=2", "--json").json["task"]
    rowlock.write("pyproject.toml", "[tool.rowlock\n")
    assert rowlock.refused_here("jobs").startswith("pyproject.toml cannot be read: ")
    rowlock.write("pyproject.toml", "[tool.rowlock]\napp = 3\n")
    assert 'write app = "module:app"' in rowlock.refused_here("jobs")


def test_an_app_that_cannot_be_imported_is_told_in_one_line(rowlock: CommandLine, shop: Rowlock) -> None:
    assert rowlock.refused_here("worker", "shopp:queue").endswith("on Python's path; did you mean shop?")
    assert rowlock.refused_here("worker", "shop.tasks:queue") == (
        "cannot import shop.tasks: No module named 'shop.tasks'; 'shop' is not a package"
    )
    assert rowlock.refused_here("worker", "shop.py:queue").endswith("name the module instead: shop:app")
    assert "does not name a module" in rowlock.refused_here("worker", ":queue")

    rowlock.write("inside.py", "def price(of):\n    return 1 / of\n\nprice(0)\n")
    assert rowlock.refused("worker", "inside") == (
        "cannot import inside: ZeroDivisionError: division by zero (inside.py, line 2: return 1 / of)"
    )
    rowlock.write("lacking.py", "import no_such_thing\n")
    assert rowlock.refused_here("worker", "lacking") == (
        "cannot import lacking: ModuleNotFoundError: No module named 'no_such_thing' "
        "(lacking.py, line 1: import no_such_thing)"
    )
    rowlock.write("leaving.py", "raise SystemExit(3)\n")
    assert "cannot import leaving: SystemExit: 3" in rowlock.refused_here("worker", "leaving")
    rowlock.write("including.py", "from rowlock import Rowlock\napp = Rowlock(include=['nowhere'])\n")
    included = rowlock.refused_here("worker", "including")
    assert "a module that including includes: ModuleNotFoundError" in included


def test_something_that_is_not_a_rowlock_is_named_with_what_was_meant(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    hint = "did you mean shop:queue?"
    assert rowlock.refused_here("worker", "shop") == f"shop:app is a shop.WebApp, not a Rowlock; {hint}"
    assert rowlock.refused_here("worker", "shop:jobs") == f"module shop has no 'jobs'; {hint}"
    rowlock.write("bare.py", "app = len\n")
    assert "the module holds no Rowlock" in rowlock.refused_here("worker", "bare")


def test_options_that_cannot_work_are_refused_by_name(rowlock: CommandLine, shop: Rowlock) -> None:
    def refused(*words: str, code: int = 1, **environment: str) -> str:
        return rowlock.refused_here("worker", "shop:queue", *words, code=code, **environment)

    assert "valid ones are: FIFO, LIFO, PRIORITY, WEIGHTED_RANDOM" in refused("--strategy", "best")
    assert refused("-c", "0") == "concurrency=0: must be a whole number >= 1"
    assert refused("--pool", "swimming").startswith("pool='swimming': must be one of thread")
    assert refused("--log-format", "xml", code=2).startswith("--log-format 'xml': must be one of text, json")
    assert "STALE_JOB_TIMEOUT_SECONDS='abc'" in refused(STALE_JOB_TIMEOUT_SECONDS="abc")


def test_child_processes_import_what_the_worker_was_started_with(rowlock: CommandLine) -> None:
    """The tasks' own module has an app, too; but what they need is set up by the module that was named."""
    rowlock.write("facts.py", "known = None\n")
    rowlock.write(
        "tasks.py",
        "import facts\nfrom rowlock import Rowlock\n\napp = Rowlock('sqlite:///jobs.db')\n\n\n"
        "@app.task(pool='process')\ndef ask():\n    return facts.known\n\n\n"
        "@app.consumer('rows', table='pages', state='state')\ndef rows(page):\n    return facts.known\n",
    )
    rowlock.write(
        "entry.py",
        "import facts\n\nfacts.known = 'set up'\n\n\nclass project:\n    from tasks import app\n",
    )
    with closing(Rowlock(f"sqlite:///{rowlock.folder / 'jobs.db'}")) as queue:
        job = queue.enqueue("ask")
        rowlock("worker", "-c", "1", "--until-empty", ROWLOCK_APP="entry:project.app")
        assert queue.result(job.id) == "set up"
    with closing(sqlite3.connect(rowlock.folder / "jobs.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE pages (id INTEGER PRIMARY KEY, state TEXT)")
        connection.execute("INSERT INTO pages (id) VALUES (1)")
        rowlock("consume", "entry:project.app", "rows", "--pool", "process", "-c", "1", "--until-empty")
        assert connection.execute("SELECT state FROM pages").fetchall() == [('{"rows":"set up"}',)]
