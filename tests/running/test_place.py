"""What a place of a process pool makes of the board that its child writes on."""

from __future__ import annotations

import multiprocessing
import threading
from types import SimpleNamespace
from typing import cast

from rowlock.job import Claim
from rowlock.running.context import JobContext
from rowlock.running.pools.base import Run
from rowlock.running.pools.board import Board
from rowlock.running.pools.place import Place, Pool
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
