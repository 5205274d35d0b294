"""A wake-up channel that listens to nothing: an idle wait ends when the bell rings or time is up."""

from __future__ import annotations

from rowlock.stores.base import Wake


class BellWake(Wake):
    """Waits for the bell alone; `alive` says whether all work rings it, or polling has to find some."""

    def __init__(self, alive: bool) -> None:
        self._alive = alive

    @property
    def alive(self) -> bool:
        return self._alive
