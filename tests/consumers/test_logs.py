"""What log lines say about the runs of consumers: the consumer, and the key of the row."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from rowlock import Fail, JobContext, Retry, Rowlock
from rowlock.cli.logs import JsonLines, TextLines
from rowlock.consumers.row import Row
from rowlock.running.context import JobLogFilter
from tests.consumers.lab import Lab

log = logging.getLogger("lab")


def consume(lab: Lab, caplog: pytest.LogCaptureFixture, function: Any, **chosen: Any) -> list[str]:
    """Let a consumer of a row with the key 17 run; returns the lines about it."""
    lab.create()
    lab.fill(17, 17)
    app: Rowlock = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", **chosen)(function)
    with caplog.at_level(logging.INFO):
        app.consume("birdnet", until_empty=True)
    return [line for record in caplog.records if "17" in (line := record.getMessage())]


def test_a_retry_and_a_failure_name_the_consumer_and_the_row(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    def birdnet(ctx: JobContext, recording: Row) -> None:
        if ctx.attempt == 1:
            raise OSError("busy")
        raise Fail("no sound in it")

    lines = consume(lab, caplog, birdnet, retry=Retry(max_attempts=3, base=0.0))
    assert lines == [
        "consumer birdnet, row 17, attempt 1: OSError: busy; again in 0.0 s",
        "consumer birdnet, row 17 failed: no sound in it",
    ]


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


def test_a_batch_is_named_by_its_first_row(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def birdnet(recordings: list[Row]) -> None:
        raise Fail("no sound in them")

    lab.create()
    lab.fill(16, 17)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", batch=2)(birdnet)
    with caplog.at_level(logging.INFO):
        app.consuming("birdnet", concurrency=1).run(until_empty=True)
    assert "consumer birdnet, row 16 and 1 more failed: no sound in them" in caplog.messages


def test_lines_of_the_users_own_code_carry_the_row(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(JobLogFilter())

    def birdnet(recording: Row) -> None:
        log.info("listening to 17")

    consume(lab, caplog, birdnet)
    (record,) = [record for record in caplog.records if record.name == "lab"]
    claim = record.claim  # type: ignore[attr-defined]
    assert TextLines().format(record).endswith(f"INFO lab [birdnet row 17, claim {claim}]: listening to 17")
    line = json.loads(JsonLines().format(record))
    assert (line["job"], line["row"], line["task"], line["claim"]) == (None, "17", "birdnet", claim)
