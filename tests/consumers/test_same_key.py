"""A row that is deleted while it is worked on, and another that is inserted under its key meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rowlock import Fail, JobContext, Retry, Status
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab

STATE: dict[str, Any] = {"state": "analysis_state"}
STATUS: dict[str, Any] = {"status": Status("path", due="rec-1")}
OLD, NEW = 1.0, 2.0  # the times by which the two rows are told apart


def well(ctx: JobContext, detect: Callable[[Any], None]) -> None:
    """The run of the old row ends as it should."""


def together(ctx: JobContext, detect: Callable[[Any], None]) -> None:
    with ctx.transaction() as tx:
        detect(tx)


def badly(ctx: JobContext, detect: Callable[[Any], None]) -> None:
    raise Fail("no sound in it")


def for_now(ctx: JobContext, detect: Callable[[Any], None]) -> None:
    raise OSError("busy")


def consume(lab: Lab, form: dict[str, Any], end: Any) -> list[tuple[float, int]]:
    """While the old row is worked on, it is replaced; returns which rows were seen, at which attempt."""
    lab.create(1)
    seen: list[tuple[float, int]] = []

    def birdnet(ctx: JobContext, recording: Row) -> None:
        seen.append((recording.time, ctx.attempt))
        if recording.time == OLD:
            lab.execute(f"DELETE FROM {lab.table}")
            lab.execute(f"INSERT INTO {lab.table} (id, time, path) VALUES (1, {NEW}, 'rec-1')")
            end(ctx, lambda tx: lab.detect(tx, recording.time, "birdnet"))

    app = lab.app()
    app.consumer("birdnet", table=lab.table, retry=Retry(max_attempts=3, base=0.0), **form)(birdnet)
    app.consume("birdnet", until_empty=True)
    assert lab.claims() == []
    return seen


@pytest.mark.parametrize("end", [well, together, badly])
def test_with_a_status_column_the_new_row_is_worked_on_itself(lab: Lab, end: Any) -> None:
    """It is not running, so it is not what the old run had: nothing of that is kept."""
    assert consume(lab, STATUS, end) == [(OLD, 1), (NEW, 1)]
    assert lab.execute(f"SELECT path FROM {lab.table}") == [("completed",)]
    assert lab.detections() == []


@pytest.mark.parametrize(
    ("end", "mark"),
    [(well, True), (together, True), (badly, {"failed": "no sound in it", "attempts": 1})],
)
def test_with_a_state_column_the_new_row_gets_the_old_ones_mark(lab: Lab, end: Any, mark: Any) -> None:
    """Not wished for, but a claim shows nowhere in the row: docs/consumers.md says what to do about it."""
    assert consume(lab, STATE, end) == [(OLD, 1)]
    assert lab.marks("birdnet") == {1: mark}


@pytest.mark.parametrize("form", [STATE, STATUS], ids=["state", "status"])
def test_the_new_row_has_what_the_old_one_left_of_its_attempts(lab: Lab, form: dict[str, Any]) -> None:
    assert consume(lab, form, for_now) == [(OLD, 1), (NEW, 2)]
