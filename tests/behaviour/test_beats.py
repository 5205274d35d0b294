"""A worker that has not beaten for long: others may take it for dead, so it must not take anything on."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from rowlock.errors import StoreBusy
from tests.consumers.lab import Lab
from tests.eventually import eventually

LEASE = 0.6


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)
def test_a_worker_whose_last_beat_is_old_beats_before_it_claims(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a freeze of the whole machine: what it claimed at once could be taken from it at once."""
    app = lab.app(lease=LEASE)
    beat, silenced, tries = app.store.beat, threading.Event(), list[float]()

    def heard(*given: Any, **named: Any) -> Any:
        if silenced.is_set():
            tries.append(time.monotonic())
            raise StoreBusy("somebody holds the lock")
        return beat(*given, **named)

    work = app.task(name="work")(lambda: None)
    monkeypatch.setattr(app.store, "beat", heard)
    with app.worker().background():
        app.result(work.enqueue().id, timeout=30)
        silenced.set()
        eventually(lambda: tries and tries[-1] - tries[0] > LEASE / 2)
        job = work.enqueue()
        seen = len(tries)
        eventually(lambda: len(tries) > seen + 3)
        assert app.job(job.id).claim == 0
        silenced.clear()
        app.result(job.id, timeout=30)
