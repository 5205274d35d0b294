"""What a child process makes of its parent's messages."""

from __future__ import annotations

from typing import cast

from rowlock import Rowlock
from rowlock.execution.residents import Residents
from rowlock.job import Ending
from rowlock.pools.process.child import ChildRuns, MessageSender
from rowlock.pools.process.messages import ClaimChanged, RunEnded, RunJob, Shutdown, ToParent
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
