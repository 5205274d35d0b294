"""The heartbeat by itself, tick by tick, at given moments."""

from __future__ import annotations

import logging
import time

import pytest

from rowlock import Rowlock
from rowlock.errors import StoreBusy
from rowlock.worker.heartbeat import Heartbeat
from tests.stores.steps import worker


class Beats:
    """A heartbeat on a real store, and what it said."""

    def __init__(self, app: Rowlock) -> None:
        self.id = worker(app.store, "w", lease=6.0)
        self.deaths: list[str] = []
        self.store_backoff: list[Exception] = []
        self.heartbeat = Heartbeat(
            app.store,
            worker=lambda: self.id,
            strategy=lambda: "FIFO",
            lease=6.0,
            on_death=self.deaths.append,
            on_tick=self.tick,
            running=lambda: ["segment"],
        )
        self.start = time.monotonic()

    def tick(self) -> None:
        if self.store_backoff:
            raise self.store_backoff.pop()


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


def test_it_is_steady_while_it_beats_in_time(beats: Beats) -> None:
    assert beats.heartbeat.steady(beats.start)
    beats.heartbeat.run_once(beats.start + 1.5)
    assert beats.heartbeat.steady(beats.start + 3.4)


def test_after_a_pause_it_is_not_steady_until_others_had_time_to_beat(beats: Beats) -> None:
    assert not beats.heartbeat.steady(beats.start + 5)  # frozen, and not yet beaten again
    beats.heartbeat.run_once(beats.start + 5)
    assert not beats.heartbeat.steady(beats.start + 5.9)
    assert beats.heartbeat.steady(beats.start + 6.1)


def test_a_short_lease_does_not_make_it_steady_sooner_than_a_busy_machine_allows(
    app: Rowlock, beats: Beats
) -> None:
    hasty = Heartbeat(
        app.store, worker=lambda: beats.id, strategy=lambda: "FIFO", lease=0.6, on_death=beats.deaths.append
    )
    hasty.run_once(beats.start + 2)
    assert not hasty.steady(beats.start + 2.15)
    hasty.run_once(beats.start + 2.2)
    assert not hasty.steady(beats.start + 2.25)
    assert hasty.steady(beats.start + 2.35)


def test_a_death_is_told_with_the_id_that_died(app: Rowlock, beats: Beats) -> None:
    app.store.retire(beats.id)
    beats.heartbeat.run_once(beats.start + 2)
    assert beats.deaths == ["w"]


def test_trouble_is_logged_and_the_beating_goes_on(
    app: Rowlock, beats: Beats, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for moment in (0.1, 0.2):
            beats.store_backoff = [StoreBusy("locked")]
            beats.heartbeat.run_once(beats.start + moment)
        assert caplog.text.count("goes on trying") == 1
        beats.store_backoff = [ValueError("a bug")]
        beats.heartbeat.run_once(beats.start + 0.3)
        assert "a bug" in caplog.text
    beats.heartbeat.run_once(beats.start + 1.5)
    assert strategy(app) == "FIFO"
