"""A copy that is interrupted goes on where it was, and the queue that arrives is the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rowlock import Rowlock
from rowlock.copying import copier
from rowlock.copying.checks import side_of
from rowlock.copying.report import CopyProgress
from rowlock.errors import StoreMoved
from rowlock.job import NewJob
from rowlock.stores.base import Retention
from rowlock.stores.sql.copying import JOB_COLUMNS
from tests.copying.queues import Pair, fill, shown
from tests.stores.steps import run_sql
from tests.stores.steps import table as table_of

ROOT = Path(__file__).parents[2]


class Interrupted(BaseException):
    """Stands for whatever ends a process."""


def prepared(pair: Pair, finished: int = 12, waiting: int = 8) -> list[tuple[object, ...]]:
    """A queue of several pages; returns what is to arrive of those jobs that did not run."""
    fill(pair.source)
    inserted = pair.source.store.insert([NewJob(task="cut", queue="default", args='{"n": 1}')] * finished)
    for one in inserted:
        pair.source.cancel(one.id)
    pair.source.store.insert([NewJob(task="cut", queue="default", args='{"n": 2}')] * waiting)
    return at_rest(pair.source)


def at_rest(app: object) -> list[tuple[object, ...]]:
    return [one for one in shown(app) if one[0].task not in ("running", "asked")]  # type: ignore[arg-type]


def kill_9(pair: Pair, after: int, page: int) -> None:
    pair.close()
    command = [sys.executable, "-m", "tests.copying.killed", *pair.urls, str(after), str(page)]
    ended = subprocess.run(command, cwd=ROOT, check=False, timeout=1000, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    pair.open()


def goes_on(pair: Pair, after: int, closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = prepared(pair)
    kill_9(pair, after, page=6)
    if closed:
        with pytest.raises(StoreMoved, match=r"is being moved to .* run it again: it goes on where it was"):
            pair.source.enqueue("cut")
    else:
        pair.source.cancel(pair.source.enqueue("cut"))
        expected = at_rest(pair.source)
    monkeypatch.setattr(copier, "PAGE", 6)
    report = pair.copy()
    assert report.agrees, report.counts
    assert report.resumed and report.ids_kept and report.released == 2
    assert at_rest(pair.target) == expected
    with pytest.raises(StoreMoved, match="has moved to"):
        pair.source.enqueue("cut")


@pytest.mark.skipif(sys.platform == "win32", reason="uses SIGKILL")
def test_a_copy_that_is_killed_goes_on_where_it_was(some_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on(some_pair, 5, True, monkeypatch)


@pytest.mark.skipif(sys.platform == "win32", reason="uses SIGKILL")
@pytest.mark.parametrize("after", [2, 0], ids=["while the source is in use", "when it was just closed"])
def test_also_if_it_is_killed_early(files: Pair, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on(files, after, after == 0, monkeypatch)


def test_wherever_it_is_interrupted_the_same_arrives(files: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "PAGE", 3)
    monkeypatch.setattr(copier, "BATCH_BYTES", 20)
    expected, stops = prepared(files), 0

    def stop(progress: CopyProgress) -> None:
        raise Interrupted

    while True:  # one batch further each time
        try:
            report = files.copy(tell=stop)
            break
        except Interrupted:
            stops += 1
    assert stops > 20 and report.agrees and at_rest(files.target) == expected


def test_what_happens_between_two_tries_is_copied_too(files: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "PAGE", 3)
    prepared(files)

    def stop(progress: CopyProgress) -> None:
        if progress.done >= 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        files.copy(tell=stop)
    _, first, *_, last = sorted(job.id for job in files.target.jobs(limit=1000))
    files.source.retry(first)  # it was copied when it had ended
    files.source.store.prune(Retention(0.0, 0.0), first, last - first)  # these were copied, and are gone
    late = files.source.enqueue("late").id
    report = files.copy()
    assert report.agrees and files.target.job(first).state == "queued"
    assert {job.id for job in files.target.jobs(limit=1000)} == {
        job.id for job in files.source.jobs(limit=1000)
    }
    assert files.target.job(late).task == "late"


def test_an_interrupted_copy_can_be_given_up(files: Pair) -> None:
    prepared(files)
    kill_9(files, 0, page=1000) if sys.platform != "win32" else files.copier()._close("moving")
    with pytest.raises(StoreMoved, match="is being moved"):
        files.source.enqueue("cut")
    files.copier().open_again()
    assert files.source.enqueue("cut").state == "queued"


def finished(app: Rowlock, jobs: int, doubled: int) -> None:
    """Fill a queue with completed jobs, which are then doubled so many times."""
    app.store.insert([NewJob(task="cut", queue="default", args='{"n": 1}')] * jobs)
    table, columns = table_of(app.store, "rowlock_jobs"), ", ".join(JOB_COLUMNS[2:])
    completed = f"UPDATE {table} SET state = 'completed', finished_at = created_at, result = '{{}}'"
    run_sql(app.store, completed)
    for more in (jobs * 2**times for times in range(doubled)):
        values = f"id + {more}, position + {more}, {columns}"
        run_sql(app.store, f"INSERT INTO {table} (id, position, {columns}) SELECT {values} FROM {table}")
    side = side_of(app.store)
    with side.writing() as tx:
        side.lock_numbers(tx)
        side.set_last_number(tx, jobs * 2**doubled)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform == "win32", reason="uses SIGKILL")
def test_a_million_finished_jobs_arrive_though_the_copy_is_killed(every_pair: Pair) -> None:
    import resource  # POSIX only

    pair = every_pair
    finished(pair.source, 15_625, doubled=6)  # a million
    waiting = pair.source.store.insert([NewJob(task="cut", queue="default", args="{}")] * 1000)
    kill_9(pair, 150, page=2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    report = pair.copy()
    took = time.monotonic() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    sys.stdout.write(
        f"\n{pair.urls[0][:6]} to {pair.urls[1][:6]}: the last 700,000 in {took:.0f} s, {grown:.0f} MB more\n"
    )
    assert (
        report.agrees
        and report.resumed
        and report.ids_kept
        and grown < (500 if "duckdb" in "".join(pair.urls) else 100)
    )
    assert pair.target.job(waiting[-1].id).state == "queued" and waiting[-1].id == 1_001_000
