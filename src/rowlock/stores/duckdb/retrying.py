"""Transactions that clashed with another are made again: after a moment, a bounded number of times, counted.

DuckDB lets no transaction wait for another: who changes a row that another has changed is refused.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from rowlock.stores.duckdb.faults import Clash

F = TypeVar("F", bound=Callable[..., Any])
_TRIES = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1  # seconds


def retried(verb: F, together: Callable[[], AbstractContextManager[None]], clashed: Callable[[], None]) -> F:
    """Make a verb again if its transaction was undone by a clash; each is told to `clashed`."""

    @functools.wraps(verb)
    def again(*given: Any, **named: Any) -> Any:
        for tried in range(1, _TRIES):
            try:
                with together():
                    return verb(*given, **named)
            except Clash:
                clashed()
                pause = min(_FIRST_PAUSE * 2**tried, _LONGEST_PAUSE)
                time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - so that two do not meet again
        return verb(*given, **named)

    return again  # type: ignore[return-value]
