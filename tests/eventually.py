"""Waiting in tests: look again until it is true or the deadline has passed; never a bare sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 10.0, message: str = "") -> T:
    """Return the predicate's first truthy value; fail with the message when the time is up."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(message or f"not true within {timeout:g} s: {predicate}")
        time.sleep(0.01)  # noqa: TID251 - the one place that waits
