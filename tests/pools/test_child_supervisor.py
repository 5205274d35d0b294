"""What a place of a process pool makes of the board that its child writes on."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rowlock.execution.context import JobContext
from rowlock.job import Claim
from rowlock.pools.base import Run
from rowlock.pools.process.child_supervisor import STOP_SECONDS, ChildSupervisor, Pool
from rowlock.pools.process.shared_status import SharedStatus
from rowlock.pools.process.spawn import Child
from tests.pools.test_child import claim


def limited(one: Claim) -> Run:
    context = JobContext(one, 60.0, reporting=threading.Lock())
    return Run(one, None, context, 0.001)


def test_only_the_run_that_a_child_is_in_can_be_over_its_timeout() -> None:
    status = SharedStatus(multiprocessing.get_context("spawn"))
    child = cast("Child", SimpleNamespace(status=status))
    supervisor = ChildSupervisor(1, cast("Pool", SimpleNamespace(lock=threading.Lock())))
    first, second = (limited(claim(number, "nothing")) for number in (1, 2))
    supervisor.add(first)
    supervisor.add(second)
    status.begin(1)
    supervisor._check_progress(child)
    assert first.context.deadline is not None
    status.begin(2)  # the first has ended, and its outcome waits for that of the second
    supervisor._check_progress(child)
    assert first.context.deadline is None
    assert second.context.deadline is not None


def test_that_a_run_did_not_stop_is_said_once_while_its_child_dies(caplog: pytest.LogCaptureFixture) -> None:
    status = SharedStatus(multiprocessing.get_context("spawn"))
    sent: list[Any] = []
    kills: list[int] = []
    child = SimpleNamespace(status=status, pid=7, send=sent.append, kill=lambda: kills.append(7))
    pool = SimpleNamespace(lock=threading.Lock(), put_back=lambda runs: None)
    supervisor = ChildSupervisor(1, cast("Pool", pool))
    supervisor.child = cast("Child", child)
    run = limited(claim(1, "nothing"))
    supervisor.add(run)
    status.begin(1)
    run.context.cancelled = True
    supervisor._send_changes(supervisor.child)
    run.context.began_at(time.monotonic() - 2 * STOP_SECONDS)
    supervisor._changed[1] -= 2 * STOP_SECONDS
    with caplog.at_level(logging.WARNING, logger="rowlock.process"):
        for _ in range(3):  # the place looks every few milliseconds, and a process takes longer to die
            supervisor._send_changes(supervisor.child)
    assert len(sent) == 1
    assert kills == [7]
    assert [record.message for record in caplog.records] == [
        f"{run.claim.title} did not stop within {STOP_SECONDS:g} s: process 7 is killed"
    ]
