"""The heartbeat by itself, tick by tick, at given moments."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from rowlock import Rowlock
from rowlock.errors import StoreBusy
from rowlock.liveness import Lease, Liveness
from rowlock.stores.base import Bell
from rowlock.worker.heartbeat import Heartbeat
from rowlock.worker.profile import Profile
from rowlock.worker.progress_reports import ProgressReports


class Beats:
    """A heartbeat on a real store, without its thread, and what it said."""

    def __init__(self, app: Rowlock) -> None:
        self.rung: list[str] = []
        self.errors: list[Exception] = []
        options = Profile("w", (), "PRIORITY", 1.0)
        self.liveness = Liveness(Lease(app.settings.lease))
        parts = (self.liveness, cast(Bell, self), cast(ProgressReports, self))
        self.heartbeat = Heartbeat(app.workload(), options, *parts)
        self.heartbeat.register()
        options.strategy = "FIFO"
        self.start = self.heartbeat._tried_at  # when that was

    def put(self, _: None) -> None:
        self.rung.append(self.heartbeat.id)

    def run_once(self, worker: str) -> None:
        if self.errors:
            raise self.errors.pop()

    def tasks(self) -> list[str]:
        return ["segment"]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Rowlock]:
    made = Rowlock(f"sqlite:///{tmp_path / 'jobs.db'}", lease=6.0)
    yield made
    made.close()


@pytest.fixture
def beats(app: Rowlock) -> Beats:
    return Beats(app)


def strategy(app: Rowlock) -> str:
    return app.store.workers()[0].strategy


def test_it_beats_once_per_interval(app: Rowlock, beats: Beats) -> None:
    beats.heartbeat.run_once(beats.start + 0.5)
    assert strategy(app) == "PRIORITY"  # as it was registered
    beats.heartbeat.run_once(beats.start + 1.5)
    assert strategy(app) == "FIFO"


def test_a_late_beat_is_logged_once_with_what_runs(beats: Beats, caplog: pytest.LogCaptureFixture) -> None:
    beats.heartbeat.run_once(beats.start + 5)
    assert "s late" in caplog.text and "Running: segment" in caplog.text
    caplog.clear()
    beats.heartbeat.run_once(beats.start + 6.1)
    assert caplog.text == ""


def test_it_may_rescue_while_it_beats_in_time(beats: Beats) -> None:
    assert beats.liveness.may_rescue(beats.start)
    beats.heartbeat.run_once(beats.start + 1.5)
    assert beats.liveness.may_rescue(beats.start + 3.4)


def test_after_a_pause_it_rescues_nobody_until_others_had_time_to_beat(beats: Beats) -> None:
    assert not beats.liveness.may_rescue(beats.start + 5)  # frozen, and not yet beaten again
    beats.heartbeat.run_once(beats.start + 5)
    assert not beats.liveness.may_rescue(beats.start + 5.9)
    assert beats.liveness.may_rescue(beats.start + 6.1)


def test_a_beat_that_cannot_be_written_does_not_count(
    app: Rowlock, beats: Beats, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*values: object) -> bool:
        raise StoreBusy("locked")

    with monkeypatch.context() as patched:
        patched.setattr(app.store, "beat", busy)
        beats.heartbeat.run_once(beats.start + 2)
    assert not beats.liveness.may_claim(beats.start + 4)
    beats.heartbeat.run_once(beats.start + 4)
    assert beats.liveness.may_claim(beats.start + 4)


def test_a_death_is_told_with_the_id_that_died(app: Rowlock, beats: Beats) -> None:
    app.store.retire("w")
    beats.heartbeat.run_once(beats.start + 2)
    assert beats.rung == ["w"]
    assert not beats.liveness.may_claim(beats.start + 2)


def test_trouble_is_logged_and_the_beating_goes_on(
    app: Rowlock, beats: Beats, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for moment in (0.1, 0.2):
            beats.errors = [StoreBusy("locked")]
            beats.heartbeat.run_once(beats.start + moment)
        assert caplog.text.count("goes on trying") == 1
        beats.errors = [ValueError("a bug")]
        beats.heartbeat.run_once(beats.start + 0.3)
        assert "a bug" in caplog.text
    beats.heartbeat.run_once(beats.start + 1.5)
    assert strategy(app) == "FIFO"
