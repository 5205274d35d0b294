"""The process pool: what a child does for its parent, and what its death costs.

Apps live in modules, because children have to import them; most tests share one worker with two children.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rowlock import ConfigurationError, Rowlock, State
from rowlock.job import Job
from rowlock.pools.process import child_supervisor as supervisor_module
from rowlock.worker.worker import Worker
from tests.cli.commands import CommandLine
from tests.eventually import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX signals")

WAYS = ["kill", "segfault", "memory"]
_numbers = itertools.count()

SHOP = """
import logging
import multiprocessing
import os
import re
import resource
import signal
import time
from pathlib import Path

from rowlock import JobContext, Retry, Rowlock, resident

HERE = Path({folder!r})
app = Rowlock({url!r}, lease=10, poll_interval=0.2)
QUICK = Retry(max_attempts=3, base=0.01, cap=0.02)
log = logging.getLogger("shop")
loud = logging.getLogger("shop.loud")
loud.addHandler(logging.NullHandler())
loud.propagate = False


def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.01)


def die(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))
        try:
            bytearray(2**29)
        except MemoryError:  # what C code does about it
            os.abort()
    elif how == "exit":
        os._exit(3)


@app.around
def around(ctx):
    outcome = yield
    if ctx.task == "pid":
        with open(HERE / "around", "a") as file:
            file.write(f"{{os.getpid()}} {{outcome.ending}}\\n")


@app.task
def pid() -> int:
    log.warning("here I am", extra={{"shelf": 5}})
    loud.warning("and here")
    return os.getpid()


@app.task
async def slowly(n: int) -> list[int]:
    return [n, os.getpid()]


@app.task(retry=QUICK)
def break_down(ctx: JobContext) -> int:
    if ctx.attempt < 3:
        raise KeyError("no such thing")
    try:
        raise RuntimeError("nothing to worry about")
    except RuntimeError:
        log.exception("caught")
    return ctx.attempt


@app.task
def talk(ctx: JobContext) -> None:
    ctx.log("first")
    ctx.progress(1, 2, "half way")
    wait_for("go")
    ctx.log("last")
    ctx.progress(2, 2)


@app.task(retry=QUICK)
def write(ctx: JobContext, text: str, lines: int = 0, fail: bool = False) -> int:
    for number in range(lines):
        ctx.log(str(number))
        time.sleep(0.02)  # so that some are with the parent, and some are not
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO {table} (text) VALUES ({mark})", (text,))
    ctx.log("written")
    if fail and ctx.attempt == 1:
        raise RuntimeError("after the block")
    return os.getpid()


@app.task(timeout=0.2, retry=False)
def too_long(ctx: JobContext) -> None:
    while True:
        ctx.progress(1)
        time.sleep(0.01)


@app.task(timeout=8, retry=False)
def backtrack() -> None:
    (HERE / "backtrack").write_text(str(os.getpid()))
    re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter for years


@app.task(retry=QUICK)
def obey(ctx: JobContext) -> None:
    (HERE / f"obey-{{ctx.id}}").touch()
    while True:
        ctx.check_cancelled()
        time.sleep(0.01)


@app.task
def deaf(ctx: JobContext) -> None:
    (HERE / f"deaf-{{ctx.id}}").write_text(str(os.getpid()))
    time.sleep(600)


@app.task(retry=QUICK)
def hop(ctx: JobContext, how: str = "", seconds: float = 0.0) -> int:
    if ctx.attempt == 1:
        die(how)
        time.sleep(seconds)
    return ctx.attempt


@app.task(retry=Retry(max_attempts=2, base=0.01))
def poison(ctx: JobContext, how: str) -> None:
    ctx.log("last words")
    time.sleep(0.2)
    die(how)


@app.task(retry=False)
def once() -> None:
    die("kill")


def load_model():
    with open(HERE / "model", "a") as file:
        file.write("load\\n")
    yield {{"uses": 0}}
    with open(HERE / "model", "a") as file:
        file.write("unload\\n")
"""
RESIDENT = """

@app.task
def use(model: dict = resident(load_model)) -> list[int]:
    model["uses"] += 1
    return [os.getpid(), model["uses"]]
"""


def imported(folder: Path, url: str, more: str = "") -> Any:
    """The shop as a module of its own; its folder must be on the path."""
    name = f"process_shop_{next(_numbers)}"
    mark = "%s" if url.startswith("postgres") else "?"
    table = ".".join(filter(None, (url.partition("?schema=")[2], "notes")))
    source = SHOP.format(folder=str(folder), url=url, mark=mark, table=table)
    (folder / f"{name}.py").write_text(source + more)
    importlib.invalidate_caches()
    return importlib.import_module(name)


class Shop:
    """An app in its folder."""

    def __init__(self, app: Rowlock, folder: Path) -> None:
        self.app, self.folder = app, folder
        self.worker: Any = None

    def enqueue(self, task: str, **args: Any) -> Job:
        return self.app.enqueue(task, args)

    def result(self, job: Job, timeout: float = 60.0) -> Any:
        return self.app.result(job.id, timeout=timeout)

    def ended(self, job: Job, timeout: float = 60.0) -> Job:
        eventually(
            lambda: self.app.job(job.id).state.final, timeout, f"job {job.id} ({job.task}) did not end"
        )
        return self.app.job(job.id)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def query(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "jobs.db", isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop with a worker at work: two children."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        app = imported(folder, f"sqlite:///{folder}/jobs.db").app
        shop = Shop(app, folder)
        app.store.open()
        shop.query("CREATE TABLE notes (text TEXT)")
        options = {"concurrency": 2, "poll_interval": 0.2, "timeout_grace": 0.3}
        worker = Worker(app, app.workload(), pool="process", **options)
        with worker.background():
            shop.worker = worker
            yield shop
            (folder / "go").touch()
    app.close()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop whose workers are the test's own."""
    monkeypatch.syspath_prepend(tmp_path)
    app = imported(tmp_path, f"sqlite:///{tmp_path}/jobs.db", RESIDENT).app
    yield Shop(app, tmp_path)
    app.close()


def gone(pid: int) -> bool:
    """True if there is no such process, or only its exit code is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second one if it went between opening and reading
        if not Path("/proc/self/stat").exists():  # not Linux
            return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode != 0
        return True


# -- what a child does -----------------------------------------------------------------------------


def test_jobs_and_their_hooks_run_in_other_processes(busy: Shop) -> None:
    jobs = [busy.enqueue("pid") for _ in range(4)]
    pids = {busy.result(job) for job in jobs}
    assert os.getpid() not in pids and len(pids) <= 2
    seen = {line.partition(" ")[0] for line in busy.lines("around")}
    assert {str(pid) for pid in pids} <= seen
    n, pid = busy.result(busy.enqueue("slowly", n=7))  # a coroutine function
    assert n == 7 and pid != os.getpid()


def test_errors_come_with_the_childs_traceback_and_are_retried(busy: Shop) -> None:
    job = busy.enqueue("break_down")
    assert busy.result(job) == 3
    assert busy.app.job(job.id).failures == 2
    first = busy.app.history(job.id)[0]
    assert first.error_kind == "exception"
    assert "in break_down" in str(first.error) and str(first.error).endswith("KeyError: 'no such thing'")


def test_progress_and_log_lines_are_seen_while_it_runs(busy: Shop) -> None:
    job = busy.enqueue("talk")
    eventually(lambda: busy.app.job(job.id).progress is not None)
    found = busy.app.job(job.id)
    assert found.progress is not None
    assert (found.state, *found.progress) == (State.RUNNING, 1.0, 2.0, "half way")
    (busy.folder / "go").touch()
    found = busy.ended(job)
    assert found.progress is not None and found.progress.done == 2.0
    assert [line.message for line in busy.app.logs(job.id)] == ["first", "last"]


def test_log_records_go_to_the_parents_loggers_and_carry_the_job(
    busy: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    from rowlock import JobLogFilter

    caplog.handler.addFilter(JobLogFilter())
    job, noisy = busy.enqueue("pid"), busy.enqueue("break_down")
    pid = busy.result(job)
    busy.result(noisy)
    (record,) = [one for one in caplog.records if one.getMessage() == "here I am"]
    assert (record.name, record.levelno, record.process) == ("shop", logging.WARNING, pid)
    said: Any = record
    assert (said.job, said.task, said.claim, said.shelf) == (job.id, "pid", 1, 5)
    (caught,) = [one for one in caplog.records if one.getMessage() == "caught"]
    assert str(caught.exc_text).endswith("RuntimeError: nothing to worry about")
    assert any(one.name == "rowlock.run" and "attempt 2" in one.getMessage() for one in caplog.records)


def test_a_record_reaches_the_parents_logger_once_whatever_the_childs_logger_does_with_it(
    busy: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: heard.append(record.getMessage()))
    for name in ("shop", "shop.loud"):  # the second one does not propagate
        monkeypatch.setattr(logging.getLogger(name), "handlers", [handler])
    busy.result(busy.enqueue("pid"))
    assert heard == ["here I am", "and here"]


def test_rows_commit_with_the_completion_in_the_child_or_not_at_all(busy: Shop) -> None:
    jobs = [
        busy.enqueue("write", text="one"),
        busy.enqueue("write", text="two", fail=True),
        busy.enqueue("write", text="three", lines=10),
    ]
    assert os.getpid() not in {busy.result(job) for job in jobs}
    assert [busy.app.job(job.id).failures for job in jobs] == [0, 1, 0]
    assert sorted(busy.query("SELECT text FROM notes")) == [("one",), ("three",), ("two",)]
    lines = [line.message for line in busy.app.logs(jobs[2].id)]  # none is lost between the two processes
    assert lines == [*map(str, range(10)), "written"]


def test_rows_commit_in_the_child_on_postgresql(
    postgres_schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, schema = postgres_schema.partition("?schema=")
    monkeypatch.syspath_prepend(tmp_path)
    app: Rowlock = imported(tmp_path, postgres_schema).app
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"CREATE TABLE {schema}.notes (text text)")
        job = app.enqueue("write", {"text": "one"})
        assert app.worker(pool="process", concurrency=1).run(until_empty=True).completed == 1
        assert other.execute(f"SELECT text FROM {schema}.notes").fetchall() == [("one",)]
    assert app.result(job.id) != os.getpid()
    app.close()


# -- what is stopped -------------------------------------------------------------------------------


def test_a_run_over_its_timeout_is_told_so(shop: Shop) -> None:
    job = shop.enqueue("too_long")
    options = {"concurrency": 1, "timeout_grace": 60.0}  # so that it is told, however busy the machine is
    Worker(shop.app, shop.app.workload(), pool="process", **options).run(until_empty=True)
    found = shop.ended(job)
    assert (found.state, found.error_kind) == (State.FAILED, "timeout")
    assert "did not stop" not in str(found.error)


def test_a_run_that_holds_the_interpreter_is_killed_and_its_place_is_free(busy: Shop) -> None:
    job = busy.enqueue("backtrack")
    (pid,) = eventually(lambda: busy.lines("backtrack"))
    assert "does not answer: something holds its interpreter" in busy.worker.stacks()
    found = busy.ended(job)
    assert (found.state, found.error_kind) == (State.FAILED, "timeout")
    assert "did not stop when told to" in str(found.error)
    eventually(lambda: gone(int(pid)))
    assert {busy.result(busy.enqueue("pid")) for _ in range(2)}.isdisjoint({int(pid)})


def test_a_cancelled_run_stops_when_told_to_or_is_killed(busy: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [busy.enqueue("obey"), busy.enqueue("deaf")]
    for job, seconds in zip(jobs, (60.0, 0.5), strict=True):
        eventually((busy.folder / f"{job.task}-{job.id}").exists)
        monkeypatch.setattr(supervisor_module, "STOP_SECONDS", seconds)
        busy.app.cancel(job.id)
        found = busy.ended(job)
        assert (found.state, found.error_kind, found.failures) == (State.CANCELLED, "cancelled", 0)
    assert "its process was killed" in str(busy.app.job(jobs[1].id).error)
    assert "killed" not in str(busy.app.job(jobs[0].id).error)
    assert busy.result(busy.enqueue("hop")) == 1


def test_a_run_whose_claim_is_lost_is_told_so(busy: Shop) -> None:
    job = busy.enqueue("obey")
    eventually((busy.folder / f"obey-{job.id}").exists)
    busy.worker.runs.lose()
    eventually(lambda: busy.app.history(job.id))
    first = busy.app.history(job.id)[0]  # in truth the claim still held: so the job goes back, and runs again
    assert (first.claim, first.event) == (1, "released")
    busy.app.cancel(job.id)
    assert busy.ended(job).state is State.CANCELLED


# -- what dies -------------------------------------------------------------------------------------


def charged(shop: Shop, jobs: list[int]) -> dict[int, int]:
    """The jobs that were charged for something, and how much."""
    eventually(lambda: all(shop.app.job(job).state.final for job in jobs), timeout=110)
    found = [shop.app.job(job) for job in jobs]
    assert {job.state for job in found} == {State.COMPLETED}
    return {job.id: job.failures for job in found if job.failures}


@pytest.mark.parametrize("how", WAYS)
def test_a_death_costs_only_the_job_that_was_running(busy: Shop, how: str) -> None:
    hop = busy.app.tasks["hop"]
    charged(busy, hop.enqueue_many([{} for _ in range(20)]))  # it is known to be quick
    jobs = hop.enqueue_many([{"how": how} if n == 100 else {} for n in range(200)])
    assert charged(busy, jobs) == {jobs[100]: 1}
    (death,) = [one for one in busy.app.history(jobs[100]) if one.event == "retry"]
    name = {"kill": "9 (SIGKILL)", "segfault": "11 (SIGSEGV)", "memory": "6 (SIGABRT)"}[how]
    assert (death.error_kind, death.error) == ("worker_died", f"its process was killed by signal {name}")


def test_quick_jobs_do_not_wait_behind_one_that_proves_slow(busy: Shop) -> None:
    """Nobody else is there to take them: they run in the other child, whoever has to notice."""
    hop = busy.app.tasks["hop"]
    charged(busy, hop.enqueue_many([{} for _ in range(20)]))
    slow, *others = hop.enqueue_many([{"seconds": 600.0}, *({} for _ in range(50))])
    assert charged(busy, others) == {}
    assert busy.app.job(slow).state is State.RUNNING
    busy.app.cancel(slow)
    eventually(lambda: busy.app.job(slow).state is State.CANCELLED)


def test_a_job_that_keeps_killing_its_process_uses_up_its_budget(
    busy: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    job, single = busy.enqueue("poison", how="exit"), busy.enqueue("once")
    found = busy.ended(job)
    assert (found.state, found.failures, found.error_kind) == (State.FAILED, 2, "worker_died")
    assert found.error == "its process ended with exit code 3; its budget of 2 attempts is used up"
    assert [line.message for line in busy.app.logs(job.id)] == ["last words", "last words"]
    found = busy.ended(single)
    assert (found.state, found.claim, found.error_kind) == (State.FAILED, 1, "worker_died")
    assert str(found.error).startswith("its process was killed by signal 9 (SIGKILL); ")
    assert f"job {job.id} (poison) failed: its process ended" in caplog.text


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", WAYS)
def test_a_hundred_deaths_are_charged_to_a_hundred_jobs(shop: Shop, how: str) -> None:
    hop = shop.app.tasks["hop"]
    jobs = hop.enqueue_many([{"how": how} if n % 20 == 10 else {} for n in range(2_000)])
    # Few ahead: what waits for a new child is given back to other workers, and there are none.
    with shop.app.worker(pool="process", concurrency=2, prefetch=20).background():
        eventually(lambda: shop.app.stats()["completed"] == 2_000, timeout=800)
    assert charged(shop, jobs) == {job: 1 for n, job in enumerate(jobs) if n % 20 == 10}


def test_a_place_that_gets_no_child_any_more_ends_the_worker(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor_module, "_FIRST_RESTART_SECONDS", 0.01)
    module = sys.modules[shop.app.tasks["deaf"].function.__module__]
    job = shop.enqueue("deaf")
    worker = shop.app.worker(pool="process", concurrency=1)
    with worker.background():
        (pid,) = eventually(lambda: shop.lines(f"deaf-{job.id}"), timeout=60)
        Path(str(module.__file__)).write_text("import no_such_thing\n")
        os.kill(int(pid), signal.SIGKILL)
        eventually(lambda: worker.ended, timeout=60)
    assert worker.ended == "stuck"
    assert "ModuleNotFoundError: No module named 'no_such_thing'" in caplog.text
    assert shop.app.job(job.id).failures == 1


# -- a child's life --------------------------------------------------------------------------------


def test_a_child_loads_its_residents_once_and_is_replaced_after_so_many_jobs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "SHUTDOWN_SECONDS", 60.0)  # on a busy machine, too
    jobs = [shop.enqueue("use") for _ in range(7)]
    worker = shop.app.worker(pool="process", concurrency=1, max_jobs_per_child=4)
    with worker.background():
        uses = [shop.result(job) for job in jobs]
        assert "load_model" in worker._residents.seconds
    assert sorted(Counter(pid for pid, _ in uses).values()) == [3, 4]
    assert [n for _, n in uses] == [1, 2, 3, 4, 1, 2, 3]
    # One at a time: two may not fit into memory.
    assert shop.lines("model") == ["load", "unload", "load", "unload"]
    with pytest.raises(ConfigurationError, match="max_jobs_per_child=0: must be a whole number >= 1"):
        shop.app.worker(max_jobs_per_child=0)


def test_threads_and_processes_serve_one_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = (
        "import os, threading\nfrom rowlock import Rowlock, resident\n"
        f"app = Rowlock('sqlite:///{tmp_path}/jobs.db')\n"
        "def who() -> int:\n    return os.getpid()\n"
        "@app.task(pool='process')\n"
        "def far(made_in: int = resident(who)) -> list[int]:\n    return [os.getpid(), made_in]\n"
        "@app.task\ndef near() -> int:\n    return os.getpid()\n"
    )
    (tmp_path / "two_pools.py").write_text(source)
    app: Rowlock = importlib.import_module("two_pools").app
    far, near = app.enqueue("far"), app.enqueue("near")
    app.worker(concurrency=1).run(until_empty=True)
    pid, made_in = app.result(far.id)
    assert pid == made_in != os.getpid() == app.result(near.id)
    app.close()


# -- a child that cannot work ------------------------------------------------------------------------


def test_an_app_that_no_child_can_import_is_refused(app: Rowlock) -> None:
    with pytest.raises(ConfigurationError, match="no module has this one as an attribute"):
        app.worker(pool="process").run(until_empty=True)


BROKEN = """
import multiprocessing
from rowlock import Rowlock, resident
app = Rowlock("sqlite:///jobs.db")
@app.task(name="use")
def nothing() -> None: ...
in_child = multiprocessing.parent_process() is not None
{more}
"""
BREAKS = {
    "resident": (
        (
            "def load():\n    raise OSError('no card')\n"
            "@app.task\ndef view(card: int = resident(load)) -> None: ..."
        ),
        "in load",
        "the resident card of task 'view' (load) could not be loaded: OSError: no card",
    ),
    "tasks": (
        "if not in_child:\n    @app.task\n    def only_here() -> None: ...",
        "ConfigurationError",
        "does not find the tasks only_here: name the modules that register them in include=[...]",
    ),
    "database": (
        "if in_child:\n    app = Rowlock('sqlite:///other.db')",
        "ConfigurationError",
        "uses sqlite:///jobs.db in the worker but sqlite:///other.db",
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_keeps_children_from_working_is_said_before_anything_is_claimed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    more, trace, reason = BREAKS[what]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    name = f"broken_{what}"
    (tmp_path / f"{name}.py").write_text(BROKEN.format(more=more))
    app: Rowlock = importlib.import_module(name).app
    job = app.enqueue("use")
    with pytest.raises(ConfigurationError) as error:
        app.worker(pool="process", concurrency=1).run()
    assert str(error.value).startswith(f"a child process cannot work for {name}:app: ")
    assert reason in str(error.value) and trace in caplog.text
    assert (app.job(job.id).state, app.job(job.id).claim) == (State.QUEUED, 0)
    app.close()


def test_an_app_that_children_cannot_import_is_told_once_and_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN.format(more="1 / (not in_child)"))
    ended = CommandLine(tmp_path)("worker", "broken:app", "--pool", "process", "-c", "2", code=1)
    *_, line, last = ended.err.strip().splitlines()
    assert last.startswith("rowlock: a child process cannot work for broken:app: ZeroDivisionError")
    assert line == "ZeroDivisionError: division by zero" and ended.err.count("Traceback") == 1


SCRIPT = """
import os
import sys
import time
from rowlock import Rowlock

app = Rowlock("sqlite:///jobs.db")


@app.task
def where(path: str) -> int:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    os.rename(path, path + ".pid")
    time.sleep(float(sys.argv[1]))
    return os.getpid()


@app.task
def backtrack(path: str) -> None:
    import re

    with open(path, "w") as file:
        file.write(str(os.getpid()))
    os.rename(path, path + ".pid")
    re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter for years


{guard}app.worker(pool="process", concurrency=int(sys.argv[2])).run(until_empty=True)
"""


def script(folder: Path, guard: str, seconds: float, children: int = 1) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT.format(guard=guard))
    return subprocess.Popen(
        [sys.executable, "script.py", str(seconds), str(children)],
        cwd=folder,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )


GUARD = 'if __name__ == "__main__":\n    '


def test_a_script_may_be_app_and_worker_if_it_guards_its_main_part(tmp_path: Path) -> None:
    with closing(Rowlock(f"sqlite:///{tmp_path}/jobs.db")) as producer:
        job = producer.enqueue("where", {"path": "a"})
        with script(tmp_path, GUARD, 0) as process:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            assert "Traceback" not in err and "rowlock:" not in err
            assert producer.result(job.id) == int((tmp_path / "a.pid").read_text()) != process.pid
        with script(tmp_path, "", 0) as process:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 1
            assert 'if __name__ == "__main__":' in err.splitlines()[-1]


def test_children_of_a_killed_worker_end_even_those_that_hold_the_interpreter(tmp_path: Path) -> None:
    with closing(Rowlock(f"sqlite:///{tmp_path}/jobs.db")) as producer:
        producer.enqueue("where", {"path": "a"})
        producer.enqueue("backtrack", {"path": "b"})
    with script(tmp_path, GUARD, 600, children=2) as process:
        names = [tmp_path / f"{path}.pid" for path in ("a", "b")]
        eventually(lambda: all(name.exists() for name in names), timeout=60)
        pids = [int(name.read_text()) for name in names]
        process.kill()
        if sys.platform == "linux":
            eventually(lambda: all(gone(pid) for pid in pids))
        else:
            eventually(lambda: gone(pids[0]))
            os.kill(pids[1], signal.SIGKILL)


def test_a_signal_to_the_whole_group_is_for_the_worker_to_decide(tmp_path: Path) -> None:
    with closing(Rowlock(f"sqlite:///{tmp_path}/jobs.db")) as producer:
        job = producer.enqueue("where", {"path": "a"})
        with script(tmp_path, GUARD, 0.5) as process:
            eventually((tmp_path / "a.pid").exists, timeout=60)
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)
        found = producer.job(job.id)
        assert (found.state, found.failures, found.claim) == (State.COMPLETED, 0, 1)
