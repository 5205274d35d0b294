"""A few bytes that a child and its parent share: which run it is in, which it must not begin, what was read.

Stays readable after the child has crashed, and while something holds its interpreter.
"""

from __future__ import annotations

import ctypes
import time
from multiprocessing.context import SpawnContext
from typing import Any

_LOCK_TIMEOUT_SECONDS = (
    0.2  # seconds; the child holds the lock for a microsecond, unless it was killed just then
)


class _Fields(ctypes.Structure):
    _fields_ = (
        ("begun", ctypes.c_int64),
        ("began", ctypes.c_double),
        ("taken_from", ctypes.c_int64),
        ("taken_to", ctypes.c_int64),
        ("heard", ctypes.c_int64),
    )


class SharedStatus:
    """Runs have numbers that only grow; the child goes through them in this order."""

    def __init__(self, context: SpawnContext) -> None:
        self._fields: Any = context.RawValue(_Fields)
        self._lock = context.Lock()

    def begin(self, number: int) -> bool:
        """The child begins this run; False if it was taken back."""
        fields = self._fields
        with self._lock:
            if fields.taken_from <= number < fields.taken_to:
                return False
            fields.began = time.monotonic()
            fields.begun = number
            return True

    def look(self) -> tuple[int, float]:
        """The run that the child began last, and when; 0 if it has begun none."""
        return self._fields.begun, self._fields.began

    @property
    def heard(self) -> int:
        """The last run whose outcome the parent has read."""
        number: int = self._fields.heard
        return number

    @heard.setter
    def heard(self, number: int) -> None:
        self._fields.heard = number

    def take_back(self, before: int) -> int:
        """Of the runs with numbers below this, none begins any more; returns the last that has begun."""
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):  # killed between two instructions: whoever
            return before  # notices that it is dead has more to say about its runs
        try:
            begun: int = self._fields.begun
            self._fields.taken_from, self._fields.taken_to = begun + 1, before
        finally:
            self._lock.release()
        return begun
