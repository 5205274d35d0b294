"""When a child hands in what has ended: at once if its parent has a processor and an ear for it."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from rowlock import Rowlock
from rowlock.execution.residents import Residents
from rowlock.job import Claim
from rowlock.pools.process import child, spawn
from rowlock.pools.process.child import ChildRuns, MessageSender
from rowlock.pools.process.messages import RunJobs, RunsEnded, Shutdown, ToParent
from rowlock.pools.process.shared_status import SharedStatus

app = Rowlock("sqlite:///never-opened.db")  # of a module, where children would find it


@app.task
def nothing() -> None:
    """Takes no time."""


class Parent:
    """Hears what a child says, or lets it lie in the pipe."""

    def __init__(self, status: SharedStatus, listens: bool) -> None:
        self.status, self.listens = status, listens
        self.sent: list[list[int]] = []

    def send(self, message: ToParent) -> None:
        assert isinstance(message, RunsEnded)
        self.sent.append([one.number for one in message.ended])
        if self.listens:
            self.status.heard = message.ended[-1].number


def claim(number: int, task: str) -> Claim:
    moment = time.time()
    return Claim(
        id=number,
        claim=1,
        task=task,
        queue="default",
        args_json="{}",
        priority=0,
        failures=0,
        max_attempts=3,
        created=moment,
        due=moment,
        taken=moment,
        claimed_by="w",
    )


@pytest.mark.parametrize(
    ("listens", "send_interval", "sent"),
    [
        (True, 0.0, [[1], [2], [3], [4]]),
        (False, 0.0, [[1], [2, 3, 4]]),
        (True, 3600.0, [[1], [2, 3, 4]]),
    ],
    ids=["at once", "when the last was heard", "together where the children take all processors"],
)
def test_outcomes_of_a_batch_are_sent(
    monkeypatch: pytest.MonkeyPatch, listens: bool, send_interval: float, sent: list[list[int]]
) -> None:
    # A machine that was just started: the monotonic clock counts from there.
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: 0.01))
    status = SharedStatus(multiprocessing.get_context("spawn"))
    parent = Parent(status, listens)
    runs = ChildRuns(cast("MessageSender", parent), status, send_interval)
    runs.receive(RunJobs(1, [claim(number, "nothing") for number in (1, 2, 3, 4)]))
    runs.receive(Shutdown())
    runs.work(app, Residents())
    assert parent.sent == sent


@pytest.mark.parametrize(("children", "waits"), [(1, False), (3, False), (4, True), (9, True)])
def test_they_wait_only_if_the_worker_has_no_processor_of_its_own(
    monkeypatch: pytest.MonkeyPatch, children: int, waits: bool
) -> None:
    monkeypatch.setattr(spawn, "_processors", lambda: 4)
    plan = spawn.plan_for(app, [], children)
    assert (plan.send_interval > 0) is waits


@pytest.mark.parametrize(
    ("share", "processors"),
    [
        ("50000 100000", 0.5),
        ("100000 100000", 1),
        ("max 100000", None),
        ("6400000 100000", None),
        (None, None),
    ],
)
def test_the_processors_are_those_that_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str | None, processors: float | None
) -> None:
    file = tmp_path / "cpu.max"
    if share is not None:
        file.write_text(f"{share}\n")
    monkeypatch.setattr(spawn, "_SHARE", file)
    all_of_them = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert spawn._processors() == (all_of_them if processors is None else processors)
