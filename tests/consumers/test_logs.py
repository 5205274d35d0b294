"""What log lines say about the runs of consumers: the consumer, and the key of the row."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from typing import Any, cast

import pytest

from rowlock import Fail, JobContext, Outcome, Retry, Rowlock
from rowlock.cli.logs import JsonLines, TextLines
from rowlock.consumers.row import Row
from rowlock.errors import ClaimLost
from rowlock.execution.context import JobLogFilter
from rowlock.stores.sql.store import Store
from rowlock.worker.poller import Poller
from tests.consumers.cells import nothing
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import take

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


def test_an_outcome_that_came_too_late_names_the_row(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    claims: list[int] = []

    def birdnet(ctx: JobContext, recording: Row) -> None:
        if not claims:
            lab.lose_claims()
        claims.append(ctx.claim)

    lines = consume(lab, caplog, birdnet)
    lost = f"consumer birdnet, row 17: claim {claims[0]} was lost, its outcome completed is dropped"
    assert lines == [lost]


def test_a_transaction_that_came_too_late_names_the_row(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    claims: list[int] = []

    def birdnet(ctx: JobContext, recording: Row) -> None:
        if not claims:
            lab.lose_claims()
        claims.append(ctx.claim)
        with ctx.transaction() as tx:
            lab.detect(tx, recording.id, "birdnet")

    lines = consume(lab, caplog, birdnet)
    assert lines[0] == f"claim {claims[0]} of consumer birdnet, row 17 was lost; what it wrote is undone"
    assert lab.count_detections() == 1


def test_a_run_that_is_told_of_its_loss_hears_the_row(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def birdnet(ctx: JobContext, recording: Row) -> None:
        ctx.lost = True
        try:
            ctx.progress(1)
        except ClaimLost as error:
            heard.append(str(error).replace(str(ctx.claim), "N", 1))

    consume(lab, caplog, birdnet)
    assert heard == ["claim N of consumer birdnet, row 17 was lost; its result will not be kept"]


def test_hooks_that_raise_are_logged_with_the_row(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.create()
    lab.fill(17, 17)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(base=0.0))(nothing)

    @app.around
    def hook(ctx: JobContext) -> Generator[None, Outcome, None]:
        if ctx.attempt == 1:
            raise ValueError("no session")
        yield
        raise ValueError("cannot report")

    app.consume("birdnet", until_empty=True)
    hooks = [line for line in caplog.messages if "hook" in line]
    assert hooks == [
        "consumer birdnet, row 17: a hook raised before the run",
        "consumer birdnet, row 17: a hook raised after the run",
    ]


def test_a_coroutine_that_blocks_all_others_is_named_by_its_row(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> bool:
        return "consumer birdnet, row 17 blocks the event loop" in caplog.text

    async def birdnet(recording: Row) -> None:
        eventually(told)

    consume(lab, caplog, birdnet)
    assert told() and lab.marks("birdnet") == {17: True}


def test_claims_that_nobody_knows_of_are_named_by_their_rows(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.create()
    lab.fill(16, 17)
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state")(nothing)
    poller = Poller(app, worker_id="w", workload=app.workload(consumer="birdnet"))
    poller._heartbeat.ensure()
    take(cast("Store", store_of(app, "birdnet")), "w", 2)
    poller._exchanger.lost_claims.expect()  # as after a lost answer
    assert poller._exchanger.release_lost_claims(()) == 2
    assert caplog.messages[-1].endswith("consumer birdnet, row 16; consumer birdnet, row 17")
    assert lab.claims() == []
    poller.close()


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


def test_a_row_whose_key_is_the_empty_text_is_not_called_a_job(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(JobLogFilter())
    lab.create(key="TEXT PRIMARY KEY")
    lab.execute(f"INSERT INTO {lab.table} (id, time) VALUES ('', 1)")

    def birdnet(recording: Row) -> None:
        log.info("listening")
        raise Fail("no sound in it")

    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state")(birdnet)
    with caplog.at_level(logging.INFO):
        app.consume("birdnet", until_empty=True)
    assert "consumer birdnet, row  failed: no sound in it" in caplog.messages
    (record,) = [record for record in caplog.records if record.name == "lab"]
    assert (record.job, record.row) == (None, "")  # type: ignore[attr-defined]
