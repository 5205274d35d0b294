"""Rows out of attempts whose mark is a word of the user's own, and a switch that the user has."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from rowlock import ConfigurationError, Fail, Flag, Rowlock, insights
from rowlock.consumers import overview
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest, Ending
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually
from tests.stores.steps import worker as register


def fails_on_two(recording: Row) -> None:
    if recording.id == 2:
        raise Fail("no such file")


def make(lab: Lab, failed: Any, function: Any = fails_on_two) -> Rowlock:
    app = lab.app()
    app.consumer("birdnet", table=lab.table, state="analysis_state", failed=failed)(function)
    return app


def crashed(error: str, attempts: int) -> str:
    return f"crashed: {error} ü {attempts}"


def stand(app: Rowlock) -> tuple[int, int, int]:
    (found,) = insights.consumers(app, exact=True)
    return found.due, found.done, found.failed


@pytest.mark.parametrize(
    ("failed", "mark"),
    [
        (crashed, "crashed: no such file ü 1"),
        (lambda error, _: {"why": [error, None], "n": 1.5}, {"why": ["no such file", None], "n": 1.5}),
        (lambda error, _: False, False),
        (lambda error, attempts: attempts, 1),
    ],
)
def test_a_row_out_of_attempts_gets_the_users_own_mark(lab: Lab, failed: Any, mark: Any) -> None:
    lab.create(3)
    app = make(lab, failed)
    store_of(app, "birdnet").source.table.indexes.create()
    app.consume("birdnet", until_empty=True)
    assert lab.marks("birdnet") == {1: True, 2: mark, 3: True}
    assert stand(app) == (0, 2, 1)
    assert store_of(app, "birdnet").prune(0, 0, 10) == (0, 0)  # type: ignore[arg-type]
    assert overview.retry_failed(app.consumer_source("birdnet")) == 1
    assert lab.marks("birdnet")[2] is None
    assert stand(app) == (1, 2, 0)


def test_a_row_that_others_reset_is_due_with_all_of_its_attempts(lab: Lab) -> None:
    lab.create(2)
    app = make(lab, crashed)
    app.consume("birdnet", until_empty=True)
    lab.set_state(2, None)
    assert stand(app) == (1, 1, 0)
    store, worker = store_of(app, "birdnet"), register(app.store)
    (claim,) = store.exchange(worker, request=ClaimRequest(count=5)).claims
    assert (claim.row, claim.failures) == ("2", 0)
    done = json.dumps("crashed: no such file ü 1")  # the same word, as a result
    store.exchange(worker, [claim.ended(Ending.COMPLETED, result=done)])
    assert stand(app) == (0, 2, 0)


def test_words_that_others_wrote_count_as_done(lab: Lab) -> None:
    lab.create(2)
    app = make(lab, crashed)
    app.consume("birdnet", until_empty=True)
    lab.set_state(2, '{"birdnet": "failed_file_missing"}')
    assert stand(app) == (0, 2, 0)
    assert overview.retry_failed(app.consumer_source("birdnet")) == 0
    assert lab.marks("birdnet")[2] == "failed_file_missing"


@pytest.mark.parametrize("failed", [lambda error, attempts: None, lambda error: "x", lambda *_: object()])
def test_a_mark_that_cannot_be_is_logged_and_the_usual_one_set(
    lab: Lab, failed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lab.create(2)
    app = make(lab, failed)
    with caplog.at_level(logging.ERROR, "rowlock.consumer"):
        app.consume("birdnet", until_empty=True)
    assert "failed=" in caplog.text
    assert lab.marks("birdnet")[2] == {"failed": "no such file", "attempts": 1}
    assert stand(app) == (0, 1, 1)


def test_rows_are_claimed_only_while_the_users_switch_is_on(lab: Lab) -> None:
    lab.create(2)
    app, on = lab.app(), [False]
    app.consumer("birdnet", table=lab.table, state="analysis_state", when=lambda: on[0])(fails_on_two)
    assert app.consume("birdnet", until_empty=True).completed == 0
    with app.consuming("birdnet").background() as worker:
        eventually(lambda: worker.polls.empty > 2)
        assert lab.marks("birdnet") == {1: None, 2: None}
        on[0] = True
        eventually(lambda: lab.marks("birdnet")[1] is True)


def test_the_switch_is_asked_once_per_claim_and_an_error_is_logged_once(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.create(1)
    app, asked = lab.app(), []

    def switch() -> bool:
        asked.append(1)
        raise OSError("no such switch")

    app.consumer("birdnet", table=lab.table, state="analysis_state", when=switch)(fails_on_two)
    store, worker = store_of(app, "birdnet"), register(app.store)
    for _ in range(3):
        assert store.exchange(worker, request=ClaimRequest(count=5)).claims == []
    store.exchange(worker)
    assert len(asked) == 3
    assert caplog.text.count("when= raised") == 1


def test_what_they_cannot_be_is_refused(app: Rowlock) -> None:
    async def switch() -> bool:
        return True

    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"state": "s", "failed": "word"}, "failed='word'"),
        ({"flag": Flag("f"), "failed": crashed}, "failed=... is for state"),
        ({"state": "s", "when": True}, "when=True"),
        ({"state": "s", "when": switch}, "when="),
    )
    for chosen, words in wrong:
        with pytest.raises(ConfigurationError, match=words):
            app.consumer("birdnet", table="recordings", **chosen)(fails_on_two)
