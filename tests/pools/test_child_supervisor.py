"""What the thread that keeps a child process makes of a run that does not stop."""

from __future__ import annotations

import logging
import queue
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rowlock.execution.context import JobContext
from rowlock.pools.base import Run
from rowlock.pools.process.child_supervisor import STOP_SECONDS, ChildSupervisor
from rowlock.pools.process.messages import ClaimChanged, RunJob
from rowlock.pools.process.spawn import Child
from rowlock.worker.runs import Runs
from rowlock.worker.unwritten_outcomes import Unwritten
from tests.test_strategies import claim


def test_that_a_run_did_not_stop_is_said_once_while_its_child_dies(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []
    kills: list[int] = []
    child = cast(
        "Child",
        SimpleNamespace(
            process=SimpleNamespace(pid=7), served=0, send=sent.append, kill=lambda: kills.append(7)
        ),
    )
    run = Run(claim(1, 0), None, JobContext(claim(1, 0)))
    runs = Runs(Unwritten(), queue.SimpleQueue(), 2.0)
    supervisor = ChildSupervisor(1, runs, iter([run]).__next__, threading.Event(), 1)
    supervisor._send_messages(child)
    run.context.cancelled = True
    supervisor._send_messages(child)
    assert supervisor._kill_at is not None
    supervisor._kill_at -= 2 * STOP_SECONDS
    with caplog.at_level(logging.WARNING, logger="rowlock.process"):
        for _ in range(3):  # it looks every few milliseconds, and a process takes longer to die
            supervisor._send_messages(child)
    assert sent == [RunJob(run.claim), ClaimChanged(lost=False)]
    assert kills == [7]
    assert [record.message for record in caplog.records] == [
        f"{run.claim.title} did not stop within {STOP_SECONDS:g} s: process 7 is killed"
    ]
