"""Signals to a stop: the first asks for a good end, the second for one at once. SIGUSR1 asks for the stacks.

Portable: SIGBREAK where Windows has it, no SIGUSR1 there; nothing at all outside the main thread.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODES = {"grace": 3, "stuck": 4}  # of a worker's process, by how the worker ended
_STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]


class Told:
    """What becomes of the signals when the block is over."""

    process_ends = False  # True: nothing, until `leave_with`; closing is not broken off by them


@contextmanager
def told_by_signals(
    stop: Callable[[int, bool], None], show: Callable[[], None] = lambda: None
) -> Iterator[Told]:
    """While the block runs, call `stop(number, second)` at each signal; `second` is False for the first.

    Afterwards signals do what they did before, unless the block says that the process ends.
    """
    told = Told()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    received, over = 0, False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if not over:
            stop(number, received > 1)

    before = {number: signal.signal(number, handle) for number in _STOPS}
    if hasattr(signal, "SIGUSR1"):
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, lambda number, frame: show())
    try:
        yield told
    finally:
        over = True
        for number, handler in before.items():
            if not told.process_ends:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def leave_with(code: int) -> None:
    """All is closed: from now on a signal ends the process at once, with its own exit code."""
    if threading.current_thread() is threading.main_thread():
        for number in _STOPS:
            signal.signal(number, lambda *_: os._exit(code))
        atexit.register(_ignore)  # Python gives up its handlers some time before the process is gone


def _ignore() -> None:
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
