"""Lets an outage be logged once, however many parts of a process notice it.

Each part finds out, waits and tries again for itself.
"""

from __future__ import annotations

import threading


class Outage:
    """What was said since something could be used last."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def is_new(self, what: str = "") -> bool:
        """Whether nobody has said this yet; whoever asks says it now."""
        with self._lock:
            before = len(self._said)
            self._said.add(what)
            return len(self._said) > before

    def forget(self, what: str) -> None:
        """Let this be said again."""
        with self._lock:
            self._said.discard(what)

    def ends(self) -> bool:
        """For a part that can use it again: whether it is the first, which says so."""
        with self._lock:
            was_said = bool(self._said)
            self._said.clear()
            return was_said
