"""What ingest and janitor have in common as services: how they are run, errors that pass, and a good end.

What a run does is theirs.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rowlock.errors import TRANSIENT, ConfigurationError, RowlockError
from rowlock.options import check_seconds
from rowlock.worker.signals import told_by_signals

log = logging.getLogger("rowlock.files")

_BACKOFF_FIRST, _BACKOFF_MOST = 1.0, 30.0
_SHORTEST = 0.01


class Service(Protocol):
    """A declared ingest or janitor."""

    name: str
    interval: float

    def check(self) -> None:
        """Raise if something has to be mended first."""
        ...

    def loop(self, stop: Stop) -> None:
        """Run until told to stop."""
        ...


class Stop:
    """Told once, it ends loops; whoever waits for something else meanwhile is told by its bell."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._bells: list[Callable[[], None]] = []

    @property
    def told(self) -> bool:
        """Whether it is time to end."""
        return self._told.is_set()

    def tell(self) -> None:
        """End all loops; safe in a signal handler."""
        self._told.set()
        for ring in self._bells:
            ring()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until told; returns whether it was told."""
        return self._told.wait(max(0.0, seconds))

    @contextmanager
    def ringing(self, bell: queue.SimpleQueue[Any]) -> Iterator[None]:
        """While the block runs, put None into this queue when told."""

        def ring() -> None:
            bell.put(None)

        self._bells.append(ring)
        try:
            yield
        finally:
            self._bells.remove(ring)


class Troubles:
    """Errors that pass: each kind is told once, until a run goes well again, and the pauses grow."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._told: set[type[BaseException]] = set()
        self._wait = _BACKOFF_FIRST

    def happened(self, error: Exception) -> float:
        """Log it if it is new; returns the seconds until the next try."""
        if type(error) not in self._told:
            self._told.add(type(error))
            known = isinstance(error, RowlockError)
            log.error("%s: %s; it is tried again", self._title, error, exc_info=None if known else error)
        wait = self._wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads services, hides nothing
        self._wait = min(_BACKOFF_MOST, self._wait * 2)
        return wait

    def over(self) -> None:
        """A run went well."""
        if self._told:
            log.info("%s: works again", self._title)
        self._told.clear()
        self._wait = _BACKOFF_FIRST


def check_services(services: Sequence[Service]) -> None:
    """Raise what somebody has to mend; a database that is down or busy for now is waited for later."""
    for service in services:
        try:
            service.check()
        except TRANSIENT as error:
            log.warning("%s: %s", service.name, error)


def run_services(services: Sequence[Service], stop: Stop) -> None:
    """Run all of them, each in a thread of its own, until told to stop; the first signal stops them well."""
    check_services(services)

    def on_signal(number: int, again: bool) -> None:
        if again:
            raise KeyboardInterrupt
        stop.tell()

    with told_by_signals(on_signal):
        if len(services) == 1:
            services[0].loop(stop)
            return
        threads = [
            threading.Thread(target=service.loop, args=(stop,), name=f"rowlock {service.name}", daemon=True)
            for service in services
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # in pieces: a signal is not heard during a join on every system
                thread.join(timeout=0.5)


def interval_of(value: Any, what: str = "interval") -> float:
    """Seconds between two runs, checked."""
    found = check_seconds(what, value)
    if found is None or found < _SHORTEST:
        raise ConfigurationError(f"{what}={value!r}: must be {_SHORTEST:g} seconds or more")
    return found


def monotonic() -> float:
    """The clock that nobody sets."""
    return time.monotonic()
