"""Who writes to a DuckDB file in one process: one at a time, in the order in which they came."""

from __future__ import annotations

import signal
import threading
from functools import partial

import pytest

from rowlock.stores.duckdb.locks import FairLock
from tests.eventually import eventually


def test_whoever_wants_the_lock_again_at_once_comes_after_those_who_wait() -> None:
    lock, order = FairLock(), list[str]()

    def write(name: str) -> None:
        assert lock.acquire(60.0)
        order.append(name)
        lock.release()

    assert lock.acquire(0.0)
    threads = []
    for number, name in enumerate(("first", "second"), 2):
        threads.append(threading.Thread(target=partial(write, name)))
        threads[-1].start()
        eventually(lambda number=number: len(lock.queue) == number)
    lock.release()
    write("again")
    for thread in threads:
        thread.join(60.0)
    assert order == ["first", "second", "again"]


def test_who_gives_up_is_passed_over() -> None:
    lock = FairLock()
    assert lock.acquire(0.0)
    assert not lock.acquire(0.0) and not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0.0)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="uses a timer of POSIX")
@pytest.mark.parametrize("its_turn", [False, True])
def test_who_is_interrupted_is_passed_over(its_turn: bool) -> None:
    def interrupt(*_: object) -> None:
        if its_turn:
            lock.release()
        raise KeyboardInterrupt

    lock = FairLock()
    assert lock.acquire(0.0)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(60.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    if not its_turn:
        lock.release()
    assert lock.acquire(0.0)
