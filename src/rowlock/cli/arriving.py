"""A worker's first contact with its database: it waits for one that is down, full or locked, however long.

Nothing is claimed yet, so whoever tells it to stop is obeyed at once.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import NoReturn

from rowlock.errors import TRANSIENT
from rowlock.worker.signals import told_by_signals
from rowlock.worker.worker import Worker

log = logging.getLogger("rowlock.cli")

_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 4.0


class _ToldToStop(BaseException):
    """Raised by a signal, in the middle of whatever waits."""


def registered(worker: Worker, check: Callable[[], None]) -> str | None:
    """Register the worker as soon as its database can be used; returns its id, or None if told to stop.

    `check` looks at what is there, before that. What does not pass (a wrong password, no such database or
    folder, a damaged file) is raised.
    """
    try:
        with told_by_signals(_stop):
            return _keep_trying(worker, check)
    except _ToldToStop:
        log.info("told to stop before the database could be used")
        return None


def _keep_trying(worker: Worker, check: Callable[[], None]) -> str:
    wait = _BACKOFF_FIRST
    told: set[type[Exception]] = set()
    while True:
        try:
            check()
            id = worker.register()
        except TRANSIENT as error:
            if type(error) not in told:  # once for each kind, not per attempt
                log.error("%s; the worker waits and goes on trying", error)  # noqa: TRY400 - one line is enough
            told.add(type(error))
            time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the workers, hides nothing
            wait = min(_BACKOFF_MOST, wait * 2)
        else:
            if told:
                log.info("the database can be used now")
            return id


def _stop(number: int, again: bool) -> NoReturn:
    raise _ToldToStop
