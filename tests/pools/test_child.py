"""What a child process makes of its parent's messages."""

from __future__ import annotations

import threading
from typing import cast

from rowlock import Rowlock
from rowlock.execution.residents import Residents
from rowlock.job import Ending
from rowlock.pools.process.child import ChildRuns, MessageSender
from rowlock.pools.process.messages import ClaimChanged, Reported, RunEnded, RunJob, Shutdown, ToParent
from tests.test_strategies import claim

app = Rowlock("sqlite:///never-opened.db")  # of a module, where children would find it


class Parent:
    """Keeps what a child says."""

    def __init__(self) -> None:
        self.sent: list[ToParent] = []

    def send(self, message: ToParent) -> None:
        self.sent.append(message)


def test_a_change_that_comes_before_the_run_has_begun_reaches_it() -> None:
    @app.task(name="asks")
    def asks(ctx: object) -> None:
        ctx.check_cancelled()  # type: ignore[attr-defined]

    parent = Parent()
    runs = ChildRuns(cast("MessageSender", parent))
    runs.app, runs.workload = app, app.workload()
    runs.receive(RunJob(claim(1, 0, task="asks")))
    runs.receive(ClaimChanged(lost=False))
    runs.receive(Shutdown())
    runs.work(Residents())
    (ended,) = parent.sent
    assert isinstance(ended, RunEnded) and ended.outcome.ending is Ending.CANCELLED


def test_reports_do_not_wait_while_a_transaction_opens() -> None:
    """It waits for an answer that the reporting thread receives."""

    @app.task(name="speaks")
    def speaks() -> None: ...

    parent = Parent()
    runs = ChildRuns(cast("MessageSender", parent))
    runs.app, runs.workload = app, app.workload()
    runs.receive(RunJob(claim(1, 0, task="speaks")))
    assert runs._current is not None
    with runs:
        runs._current.log("a line")
        reporting = threading.Thread(target=runs.send_report, daemon=True)
        reporting.start()
        reporting.join(10)
        assert not reporting.is_alive() and not parent.sent
    runs.send_report()
    (reported,) = parent.sent
    assert isinstance(reported, Reported) and [line.message for line in reported.report.lines] == ["a line"]
