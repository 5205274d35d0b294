"""`rowlock demo`: a small real workload, written as a user of the library would write it, and how it looks.

Nothing in it is special: what it does, a user's program could do.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rowlock import Fail, Job, JobContext, Retry, Rowlock
from rowlock.cli import show, target
from rowlock.cli.failing import CommandFailed
from rowlock.cli.options import option

if TYPE_CHECKING:
    from rowlock.insights import Stats

commands = typer.Typer()

_FEWEST = 10
_MONTHS = 12
_State = Literal["scheduled", "queued", "running", "completed", "failed"]
_STATES: dict[_State, str] = {
    "queued": "queued",
    "running": "running",
    "scheduled": "waiting to retry",
    "completed": "completed",
    "failed": "failed",
}
_BAR = 40


@commands.command(rich_help_panel="Work")
def demo(
    jobs: Annotated[int, option("NUMBER", "How many jobs.", "--jobs", "-n")] = 300,
    concurrency: Annotated[
        int, option("NUMBER", "How many at once.", "--concurrency", "--workers", "-c")
    ] = 4,
    database: Annotated[
        str | None, option("URL", "A new file; else one in the system's folder for such.", "--database", "-d")
    ] = None,
) -> None:
    """See rowlock work: some hundred jobs on SQLite, some of which fail and are tried again.

    Example: rowlock demo
    Or: rowlock demo --jobs 1000 -c 8
    """
    if jobs < _FEWEST:
        raise typer.BadParameter(f"--jobs {jobs}: at least {_FEWEST} are needed")
    if database is None:
        database = os.path.join(tempfile.mkdtemp(prefix="rowlock-demo-"), "demo.db")
    app = Rowlock(target.as_url(database), poll_interval=0.5)
    if os.path.exists(target.address(app)):
        raise CommandFailed(f"{target.address(app)} exists already; the demo needs a new file: name another")

    worker = app.worker(concurrency=concurrency)
    report = _enqueue_workload(app, jobs)
    began = time.monotonic()
    with worker.background(), _display(jobs) as draw:
        try:
            while _unfinished(stats := app.stats()):
                draw(stats, app.job(report))
                time.sleep(0.1)
        except KeyboardInterrupt:
            worker.stop(now=True)
            raise
        draw(stats, app.job(report))
    took = time.monotonic() - began

    retries = sum(minute.retried for minute in app.store.minutes(since=0))
    came_back = next(
        job.id for job in app.jobs(state="completed", task="send_mail", limit=1000) if job.failures
    )
    app.close()
    where, rate = target.address(app), (stats["completed"] + stats["failed"]) / took
    show.say(
        f"\n{stats['completed']} completed, {retries} retried, {stats['failed']} failed for good "
        f"in {took:.1f} s: {rate:.0f} jobs/s"
    )
    show.say(f"\nThe queue is in {where}. Look at it:")
    for words in (("jobs", "--state", "failed"), ("job", str(came_back)), ("queues",), ("doctor",)):
        show.say(f"  {show.command(*words, '-d', where)}")


def _unfinished(stats: Stats) -> int:
    """How many jobs wait or run, also those that wait for their next attempt."""
    return stats["scheduled"] + stats["queued"] + stats["running"]


def _enqueue_workload(app: Rowlock, jobs: int) -> int:
    """Register the demo's tasks on the app and enqueue so many jobs; returns the id of the long one."""

    @app.task(queue="images")
    def resize(photo: int, milliseconds: int) -> str:
        time.sleep(milliseconds / 1000)
        return f"photo-{photo}-small.jpg"

    @app.task(queue="mail", retry=Retry(max_attempts=4, backoff="constant", base=0.5))
    def send_mail(ctx: JobContext, to: str, hangs_up: int) -> str:
        time.sleep(0.02)
        if ctx.attempt <= hangs_up:
            raise ConnectionError(f"the mail server hung up (attempt {ctx.attempt})")
        ctx.log("delivered", to=to, attempt=ctx.attempt)
        return "delivered"

    @app.task(queue="payments")
    def charge_card(order: int) -> None:
        raise Fail(f"order {order}: the card was declined")

    @app.task(priority=50)
    def yearly_report(ctx: JobContext) -> dict[str, int]:
        for month in range(_MONTHS):
            ctx.progress(month, _MONTHS, f"month {month + 1}")
            time.sleep(0.4)
        return {"pages": 12}

    mails, cards = jobs // 5, max(1, jobs // 100)
    luck = random.Random(jobs)  # noqa: S311 - the same demo each time
    photos = jobs - mails - cards - 1
    for priority in (-10, 0, 10):
        resize.configure(priority=priority).enqueue_many(
            {"photo": photo, "milliseconds": luck.choice((10, 30, 80, 120))}
            for photo in range(1 + priority // 10, photos, 3)
        )
    # The first mail never gets through, the second at its second attempt.
    hang_ups = [9, 1, *luck.choices((0, 0, 0, 1, 2), k=mails - 2)]
    send_mail.enqueue_many(
        {"to": f"customer-{number}@example.org", "hangs_up": times} for number, times in enumerate(hang_ups)
    )
    charge_card.enqueue_many({"order": order} for order in range(cards))
    return yearly_report.enqueue().id


# -- what it looks like ------------------------------------------------------------------------------


@contextmanager
def _display(jobs: int) -> Iterator[Callable[[Stats, Job], None]]:
    """A function that draws how the demo stands: bars on a terminal, a line per second elsewhere."""
    began = time.monotonic()
    next_line = 0.0

    def print_line(stats: Stats, report: Job) -> None:
        nonlocal next_line
        elapsed = time.monotonic() - began
        if elapsed < next_line and _unfinished(stats):
            return
        next_line = elapsed + 1.0
        counts = "  ".join(f"{words} {stats[state]:>3}" for state, words in _STATES.items())
        show.say(f"{elapsed:4.1f} s  {counts}", at_once=True)

    if not show.console().is_interactive:
        yield print_line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(bar_width=_BAR), MofNCompleteColumn()
    with Progress(*columns, console=show.console()) as progress:
        bars = {
            state: progress.add_task(f"[{show.style(state)}]{words}", total=jobs)
            for state, words in _STATES.items()
        }
        months = progress.add_task("yearly report", total=_MONTHS)

        def move_bars(stats: Stats, report: Job) -> None:
            for state, bar in bars.items():
                progress.update(bar, completed=stats[state])
            done = report.progress.done if report.progress else 0
            progress.update(months, completed=_MONTHS if report.state.final else done)

        yield move_bars
