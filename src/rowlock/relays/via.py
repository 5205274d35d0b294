"""A worker and its relay in one process: `--via rq`; and relays alone, one for each source of work.

Only puts the parts together, starts and ends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rowlock.options import CONSUMERS
from rowlock.outage import Outage
from rowlock.relays.base import Relay
from rowlock.relays.redis_connection import check, connect
from rowlock.relays.rq import RowlockWorker
from rowlock.relays.rq_target import RqTarget, check_version
from rowlock.relays.workload import workload_for
from rowlock.worker.worker import Worker


class ViaRq:
    """A worker that gets its work by way of RQ, and the relay that brings it there."""

    def __init__(
        self,
        app: Any,
        names: Sequence[str],
        *,
        strategy: str = "PRIORITY",
        grace: float,
        worker_id: str | None = None,
    ) -> None:
        url = app.settings.redis_url
        workload = workload_for(app, names)
        outage = Outage()  # of Redis, which both would notice
        self.relay = Relay(app, workload, RqTarget(workload, url), strategy=strategy, outage=outage)
        self._receiver = RowlockWorker([], connection=connect(url), ready=self._start_relay, outage=outage)
        self.worker: Worker = self._receiver.worker_for(app, workload, grace=grace, worker_id=worker_id)

    def _start_relay(self) -> None:
        self.relay.start(on_failure=self.worker.stop)  # without its relay it would wait for work for ever

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the relay and the receiver with the block; they begin when the worker is ready."""
        try:
            yield
        finally:
            self._receiver.close()
            self.relay.finish()


class Relays:
    """The relays of an app, each with a thread of its own: one for its jobs, one for each consumer."""

    def __init__(self, app: Any, names: Sequence[str], *, strategy: str = "PRIORITY") -> None:
        app.load_tasks()
        jobs = [name for name in names if not name.startswith(CONSUMERS)]
        consumers = [name for name in names if name.startswith(CONSUMERS)]
        if not names:
            consumers = [CONSUMERS + name for name in sorted(app.consumers)]
        sources = [[name] for name in consumers] + ([jobs] if jobs or (app.tasks and not names) else [])
        self.relays = []
        outage = Outage()
        for source in sources or [[]]:
            workload = workload_for(app, source)
            order = "FIFO" if workload.consumer else strategy
            target = RqTarget(workload, app.settings.redis_url)
            self.relays.append(Relay(app, workload, target, strategy=order, outage=outage))

    def run(self, until_empty: bool = False) -> None:
        """Relay until told to stop, until nothing is due or running, or until one of them fails."""
        failures: list[Exception] = []
        for relay in self.relays:
            relay.start(until_empty, on_failure=self.stop)
        for relay in self.relays:
            try:
                relay.join()
            except Exception as error:  # the others have to take back what they handed over
                failures.append(error)
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """End all of them; from any thread, or from a signal handler."""
        for relay in self.relays:
            relay.stop()


def check_rq(url: str) -> None:
    """Raise, in one line, if RQ is too old or Redis cannot be used."""
    check_version()
    with connect(url) as connection:
        check(connection, url)
