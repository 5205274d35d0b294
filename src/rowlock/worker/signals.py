"""Signals to a stop: the first asks for a good end, the second for one at once. SIGUSR1 asks for the stacks.

Portable: SIGBREAK where Windows has it, no SIGUSR1 there; nothing at all outside the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGBREAK")


@contextmanager
def told_by_signals(
    stop: Callable[[int, bool], None], show: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """While the block runs, call `stop(number, again)` at each signal; `again` is False for the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        stop(number, received > 1)

    wanted = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.signal(number, handle) for number in wanted}
    if hasattr(signal, "SIGUSR1"):
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, lambda number, frame: show())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
