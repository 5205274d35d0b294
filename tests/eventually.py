"""Waiting in tests: look again until it is true or the deadline has passed; never a bare sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 50.0, message: str = "") -> T:
    """Return the predicate's first truthy value; fail with the message when the time is up."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(message or f"not true within {timeout:g} s: {predicate}")
        time.sleep(0.01)  # noqa: TID251 - the one place that waits


def least(measure: Callable[[], float], enough: float, rounds: int = 6) -> float:
    """The first measurement that is small enough, else the smallest of all rounds.

    For counts that grow while the machine is busy with others: jobs that look slow are not claimed ahead.
    """
    found = []
    for _ in range(rounds):
        found.append(measure())
        if found[-1] <= enough:
            break
    return min(found)


@contextmanager
def time_lost() -> Iterator[Callable[[], float]]:
    """Count the seconds by which short waits were too long: what a busy machine adds to a measured time."""
    lost, over = 0.0, threading.Event()

    def count() -> None:
        nonlocal lost
        before = time.monotonic()
        while not over.wait(0.02):
            now = time.monotonic()
            lost += now - before - 0.02
            before = now

    counter = threading.Thread(target=count)
    counter.start()
    try:
        yield lambda: lost
    finally:
        over.set()
        counter.join()
