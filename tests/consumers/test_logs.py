"""What log lines say about the runs of consumers: the consumer, and the key of the row."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rowlock import JobContext, Rowlock
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab


def consume(lab: Lab, caplog: pytest.LogCaptureFixture, function: Any, **chosen: Any) -> list[str]:
    """Let a consumer of a row with the key 17 run; returns the lines about it."""
    lab.create()
    lab.fill(17, 17)
    app: Rowlock = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", **chosen)(function)
    with caplog.at_level(logging.INFO):
        app.consume("birdnet", until_empty=True)
    return [line for record in caplog.records if "17" in (line := record.getMessage())]


@pytest.mark.parametrize("together", [False, True], ids=["by itself", "in a transaction"])
def test_what_a_run_keeps_is_logged_with_its_row(
    lab: Lab, caplog: pytest.LogCaptureFixture, together: bool
) -> None:
    def birdnet(ctx: JobContext, recording: Row) -> None:
        ctx.log("heard", species="Turdus merula")
        if together:
            with ctx.transaction() as tx:
                lab.detect(tx, recording.id, "birdnet")

    lines = consume(lab, caplog, birdnet)
    assert lines == ['consumer birdnet, row 17: heard {"species":"Turdus merula"}']
