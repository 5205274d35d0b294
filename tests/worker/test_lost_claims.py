"""Claims that came with a lost answer: given back, at once and only those."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.errors import StoreUnreachable
from rowlock.job import ClaimRequest, Ending
from rowlock.liveness import Lease, Liveness
from rowlock.worker.exchanger import Exchanger
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.maintenance_schedule import MaintenanceSchedule
from rowlock.worker.poll_timing import PollTiming
from rowlock.worker.profile import Profile
from rowlock.worker.unwritten_outcomes import Batch, Unwritten
from tests.stores.steps import add, end, state


class Looks:
    """The exchanges of a worker with a real store, the last of which lost its answer on the way."""

    def __init__(self, app: Rowlock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = app.store
        options = Profile(None, (), "FIFO", 1.0)
        liveness = Liveness(Lease(app.settings.lease))
        self.heartbeat = Heartbeat(app.workload(), options, liveness, queue.SimpleQueue())
        turns = MaintenanceSchedule(app, app.workload(), self.heartbeat)
        polls = PollTiming(app.workload(), options, self.heartbeat, turns, queue.SimpleQueue())
        self.unwritten = Unwritten()
        self.exchanger = Exchanger(self.store, self.heartbeat, polls, self.unwritten)
        exchange = self.store.exchange

        def lost(*given: Any, **named: Any) -> None:
            self.claims = exchange(*given, **named).claims
            raise StoreUnreachable("the connection was lost")

        self.jobs = add(self.store, 2)
        with monkeypatch.context() as patched:
            patched.setattr(self.store, "exchange", lost)
            with pytest.raises(StoreUnreachable):
                self.exchanger.exchange(Batch(), ClaimRequest(count=2, strategy="FIFO"))

    def states(self) -> list[str]:
        return [state(self.store, job) for job in self.jobs]


@pytest.fixture
def looks(app: Rowlock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    made = Looks(app, monkeypatch)
    yield made
    made.heartbeat.leave()


def test_what_nobody_knows_is_given_back_free_of_charge(
    looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    assert looks.states() == ["running", "running"]
    assert looks.exchanger.release_lost_claims(()) == 2
    assert looks.states() == ["queued", "queued"]
    assert caplog.messages[0].startswith("2 claims were made, but the database's answer was lost: given back")


def test_what_runs_or_waits_to_be_written_is_not(looks: Looks) -> None:
    runs, ended = looks.claims
    looks.unwritten.add(ended.ended(Ending.COMPLETED))
    assert looks.exchanger.release_lost_claims({(runs.id, runs.claim)}) == 0
    assert looks.states() == ["running", "running"]
    looks.exchanger.prepare()  # given to an exchange, and not known to be written
    assert looks.exchanger.release_lost_claims({(runs.id, runs.claim)}) == 0


def test_what_ended_during_the_look_is_not_called_lost(
    looks: Looks, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = looks.store.held(looks.heartbeat.id)
    for claim in looks.claims:
        assert end(looks.store, claim, Ending.COMPLETED)
    monkeypatch.setattr(looks.store, "held", lambda worker: held)
    assert looks.exchanger.release_lost_claims(()) == 0
    assert looks.states() == ["completed", "completed"] and caplog.messages == []


def test_nothing_is_asked_unless_an_answer_was_lost(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    looks.exchanger.release_lost_claims(())
    monkeypatch.setattr(looks.store, "held", None)  # a call would raise
    assert looks.exchanger.release_lost_claims(()) == 0  # a moment after the last look
    assert looks.exchanger.lost_claims.expected
