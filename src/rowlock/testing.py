"""Help for tests of code that uses rowlock: run what is queued, put something cheap in a resident's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from rowlock.app import Rowlock
from rowlock.execution.residents import replaced
from rowlock.worker.counts import Tally


@contextmanager
def resident_replaced(load: Callable[[], Any], value: Any) -> Iterator[None]:
    """While the block runs, tasks that ask for `resident(load)` get `value`, in workers of this process."""
    with patch.dict(replaced, {load: lambda: value}):
        yield


def run_all(app: Rowlock, **options: Any) -> Tally:
    """Run all that is due, here and now, in one thread; returns what was done."""
    options.setdefault("concurrency", 1)
    return app.worker(**options).run(until_empty=True)
