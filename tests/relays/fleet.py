"""A relay, its workers and Redis, as a team of engineers runs them; here all in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rq import Queue
from rq.serializers import JSONSerializer

from rowlock import Rowlock
from rowlock.options import CONSUMERS
from rowlock.outage import Outage
from rowlock.relays.base import Relay
from rowlock.relays.redis_connection import connect
from rowlock.relays.rq import RowlockWorker
from rowlock.relays.rq_target import Names, RqTarget
from rowlock.relays.workload import workload_for
from rowlock.worker.worker import Worker
from tests.servers.redis import RedisServer


@contextmanager
def relaying(relay: Relay) -> Iterator[Relay]:
    """A relay in a thread of this program while the block runs."""
    relay.start()
    try:
        yield relay
    finally:
        relay.finish()


class Fleet:
    """One app's way through one Redis."""

    def __init__(self, app: Rowlock, server: RedisServer) -> None:
        self.app = app
        self.server = server
        self.redis = server.client()
        self._as_rq = connect(server.url)
        self.names = Names(str(getattr(app.store, "install_id")()))  # noqa: B009 - not in the protocol
        self._outage = Outage()
        self._relays: list[Relay] = []

    def relay(self, *queues: str, **chosen: Any) -> Relay:
        """A relay that a test drives cycle by cycle."""
        workload = workload_for(self.app, queues)
        target = RqTarget(workload, self.server.url)
        chosen = {"strategy": "FIFO" if workload.consumer else "PRIORITY", "outage": self._outage, **chosen}
        made = Relay(self.app, workload, target, **chosen)
        self._relays.append(made)
        return made

    @contextmanager
    def worker(self, *queues: str) -> Iterator[Worker]:
        """An RQ worker in the background of this process."""
        receiver = RowlockWorker([], connection=connect(self.server.url), outage=self._outage)
        made = receiver.worker_for(self.app, workload_for(self.app, queues))
        try:
            with made.background():
                yield made
        finally:
            receiver.close()

    @contextmanager
    def working(self, *queues: str) -> Iterator[Worker]:
        """A worker and a relay, as `--via rq` has them."""
        with self.worker(*queues) as worker, relaying(self.relay(*queues)):
            yield worker

    def queue(self, name: str = "default") -> Queue:
        """RQ's queue of this name, as anybody at Redis sees it."""
        names = Names(self.names.install, of_rows=name.startswith(CONSUMERS))
        return Queue(names.queue(name), connection=self._as_rq, serializer=JSONSerializer)

    def waiting(self, name: str = "default") -> list[str]:
        return list(self.redis.lrange(self.queue(name).key, 0, -1))

    def popped(self, name: str = "default") -> list[str]:
        return list(self.redis.lrange(f"{self.queue(name).key}:intermediate", 0, -1))

    def hashes(self) -> list[str]:
        return sorted(self.redis.keys("rq:job:*"))

    def pop(self, names: Sequence[str] = ("default",)) -> Any:
        """Pop an RQ job as a worker does, which then dies: it comes to no start."""
        found = Queue.dequeue_any(
            [self.queue(name) for name in names],
            None,
            connection=self._as_rq,
            serializer=JSONSerializer,
        )
        return None if found is None else found[0]

    def close(self) -> None:
        for relay in self._relays:
            relay.close()
        self.redis.close()
        self._as_rq.close()
