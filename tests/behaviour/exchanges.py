"""A view of the exchanges that an app's workers make with their store, and a way to interfere with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rowlock import Rowlock
from tests.eventually import eventually


class Exchanges:
    """All of one app's: `before` and `after` are called in the thread that makes one."""

    def __init__(self, app: Rowlock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.last = time.monotonic()
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self._exchange = app.store.exchange
        monkeypatch.setattr(app.store, "exchange", self._seen)

    def _seen(self, *given: Any, **named: Any) -> Any:
        self.before()
        got = self._exchange(*given, **named)
        self.count += 1
        self.last = time.monotonic()
        self.after()
        return got

    def rest(self) -> None:
        """Wait until there has been none for a moment: the worker waits."""
        eventually(lambda: time.monotonic() - self.last > 0.1)
