"""Hints that there may be work: they shorten a wait, and nothing else."""

from __future__ import annotations

import queue
import threading
import uuid

import pytest

from rowlock.stores.base import Bell, Wake
from rowlock.stores.sql.store import Store
from tests.eventually import eventually
from tests.stores.steps import add, take, worker


def asleep(store: Store, who: str) -> tuple[Wake, Bell]:
    """A poller that has found nothing and has said, if it has to, that it goes to sleep."""
    bell: Bell = queue.SimpleQueue()
    wake = store.wake(lambda: who, lambda: bell.put(None))
    eventually(lambda: wake.alive)
    wake.before_claim(idle=True)
    assert take(store, who) == []
    wake.wait(bell, 0.01, lively=True)
    while not bell.empty():
        bell.get()
    wake.before_claim(idle=True)
    assert take(store, who) == []
    return wake, bell


@pytest.mark.file_mode
def test_a_sleeper_hears_of_a_job_that_somebody_else_enqueues(store: Store) -> None:
    who = worker(store, f"sleeper {uuid.uuid4()}")  # others are told by their names in the same database
    wake, bell = asleep(store, who)
    sleeper = threading.Thread(target=wake.wait, args=(bell, 600.0, True), daemon=True)
    sleeper.start()
    producer = threading.Thread(target=add, args=(store,))
    producer.start()
    producer.join()
    sleeper.join(timeout=60)
    assert not sleeper.is_alive()
    wake.close()


def test_a_wait_without_a_hint_lasts_as_long_as_it_was_to(store: Store) -> None:
    who = worker(store, f"sleeper {uuid.uuid4()}")  # others are told by their names in the same database
    wake, bell = asleep(store, who)
    sleeper = threading.Thread(target=wake.wait, args=(bell, 600.0, True), daemon=True)
    sleeper.start()
    sleeper.join(timeout=0.3)
    assert sleeper.is_alive()
    bell.put(None)  # which ends it at once
    sleeper.join(timeout=60)
    assert not sleeper.is_alive()
    wake.close()
