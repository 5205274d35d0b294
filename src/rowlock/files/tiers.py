"""Janitors as one service: they run one after the other, in the order in which they are declared."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rowlock.files.service import ErrorBackoff, Stop

if TYPE_CHECKING:
    from rowlock.files.janitor import Janitor

log = logging.getLogger("rowlock.janitor")


class Tiers:
    """Janitors of one process."""

    name = "janitors"

    def __init__(self, janitors: Sequence[Janitor]) -> None:
        self._janitors = list(janitors)

    def check(self) -> None:
        """Raise if the user has to change something first."""
        for one in self._janitors:
            one.check()

    def loop(self, stop: Stop) -> None:
        """Run each when its interval is over, until told to stop."""
        due = {one.name: time.monotonic() for one in self._janitors}
        backoff = {one.name: ErrorBackoff(one.title) for one in self._janitors}
        while not stop.told:
            for one in self._janitors:
                if not stop.told and time.monotonic() >= due[one.name]:
                    wait = self._run(one, stop, backoff[one.name])
                    due[one.name] = time.monotonic() + wait
            stop.wait(min(due.values()) - time.monotonic())

    def _run(self, one: Janitor, stop: Stop, backoff: ErrorBackoff) -> float:
        """One run; returns the seconds until the next."""
        try:
            done = one.run_once(stop=stop)
        except Exception as error:  # a database or a disk that comes back
            return backoff.failed(error)
        backoff.succeeded()
        if done.deleted:
            log.info("%s: %d rows deleted, %d bytes freed", one.title, len(done.deleted), done.freed)
        return one.interval
