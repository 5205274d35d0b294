"""What a place of a process pool makes of the board that its child writes on."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rowlock.job import Claim
from rowlock.running.context import JobContext
from rowlock.running.pools.base import Run
from rowlock.running.pools.board import Board
from rowlock.running.pools.place import GRACE, Place, Pool
from rowlock.running.pools.spawning import Child
from tests.running.test_child import claim


def limited(one: Claim) -> Run:
    context = JobContext(one, 60.0, reporting=threading.Lock())
    return Run(one, None, context, 0.001)


def test_only_the_run_that_a_child_is_in_can_be_over_its_timeout() -> None:
    board = Board(multiprocessing.get_context("spawn"))
    child = cast("Child", SimpleNamespace(board=board))
    place = Place(1, cast("Pool", SimpleNamespace(lock=threading.Lock())))
    first, second = (limited(claim(number, "nothing")) for number in (1, 2))
    place.add(first)
    place.add(second)
    board.begin(1)
    place._look(child)
    assert first.context.deadline is not None
    board.begin(2)  # the first has ended, and its outcome waits for that of the second
    place._look(child)
    assert first.context.deadline is None
    assert second.context.deadline is not None


def test_that_a_run_did_not_stop_is_said_once_while_its_child_dies(caplog: pytest.LogCaptureFixture) -> None:
    board = Board(multiprocessing.get_context("spawn"))
    sent: list[Any] = []
    kills: list[int] = []
    child = SimpleNamespace(board=board, pid=7, send=sent.append, kill=lambda: kills.append(7))
    pool = SimpleNamespace(lock=threading.Lock(), put_back=lambda runs: None)
    place = Place(1, cast("Pool", pool))
    place.child = cast("Child", child)
    run = limited(claim(1, "nothing"))
    place.add(run)
    board.begin(1)
    run.context.cancelled = True
    place._tell(place.child)
    run.context.began_at(time.monotonic() - 2 * GRACE)
    place._told[1] -= 2 * GRACE
    with caplog.at_level(logging.WARNING, logger="rowlock.process"):
        for _ in range(3):  # the place looks every few milliseconds, and a process takes longer to die
            place._tell(place.child)
    assert len(sent) == 1
    assert kills == [7]
    assert [record.message for record in caplog.records] == [
        f"{run.claim.title} did not stop within {GRACE:g} s: process 7 is killed"
    ]
