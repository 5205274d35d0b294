"""A worker's first contact with its database: it waits for one that is down, full or locked, however long.

Nothing is claimed yet, so whoever tells it to stop is obeyed at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn

from rowlock.errors import TRANSIENT
from rowlock.outage import backoff
from rowlock.worker.signals import told_by_signals
from rowlock.worker.store_backoff import FIRST_SECONDS, MOST_SECONDS

log = logging.getLogger("rowlock.worker")


class _ToldToStop(BaseException):
    """Raised by a signal, in the middle of whatever waits."""


def when_usable(contact: Callable[[], str]) -> str | None:
    """What `contact` returns as soon as its database can be used; None if told to stop, and the process ends.

    What does not pass (a wrong password, no such database or folder, a damaged file) is raised.
    """
    with told_by_signals(_stop) as told:
        try:
            return _keep_trying(contact)
        except _ToldToStop:
            told.process_ends = True
            log.info("told to stop before the database could be used")
            return None


def _keep_trying(contact: Callable[[], str]) -> str:
    failures = 0
    told: set[type[Exception]] = set()
    while True:
        try:
            answer = contact()
        except TRANSIENT as error:
            if type(error) not in told:  # once for each kind, not per attempt
                log.error("%s; the worker waits and goes on trying", error)  # noqa: TRY400 - one line is enough
            told.add(type(error))
            time.sleep(backoff(failures, FIRST_SECONDS, MOST_SECONDS))
            failures += 1
        else:
            if told:
                log.info("the database can be used now")
            return answer


def _stop(number: int, second: bool) -> NoReturn:
    raise _ToldToStop
