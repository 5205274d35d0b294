"""Where RQ keeps ids, and how a relay brings them there: one pipeline for each batch.

Carries ids only. Who takes them from there is in `rq.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import rq
from rq import Queue
from rq.serializers import JSONSerializer

from rowlock.errors import ConfigurationError
from rowlock.job import Claim, ClaimKey
from rowlock.options import CONSUMERS
from rowlock.relays.messages import JOBS, Message, message_of
from rowlock.relays.redis_connection import check, connect, explaining
from rowlock.settings import without_password
from rowlock.workload import Workload

OLDEST = (2, 0)  # the oldest RQ with which the tests pass
FUNCTION = "rowlock.relays.rq.run"  # the one name that every RQ job of ours has; never imported by it
_KEPT_SECONDS = 7 * 86_400  # for which Redis keeps what a crash left; what waited longer is sent again

Id = str | bytes  # RQ's, of a job


def check_version(found: str = rq.__version__) -> None:
    """Raise if the installed RQ is too old."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigurationError(f"RQ {found} is too old: the relay needs {oldest} or later (rowlock[rq])")


class Names:
    """How the queues and jobs of one database are called in RQ: two may share a Redis."""

    def __init__(self, install: str, of_rows: bool = False) -> None:
        self.install = install
        self._of_rows = of_rows
        self.prefix = f"rowlock-{install}-"
        self.of_consumers = f"{self.prefix}consumer-"
        self._id = re.compile(rf"rowlock-{re.escape(install)}-(?:job-([0-9]{{1,18}})|row)-([0-9]{{1,18}})")

    def queue(self, name: str) -> str:
        """RQ's name of a queue of jobs, or of a consumer's; no two have the same."""
        if self._of_rows:
            return self.of_consumers + name.removeprefix(CONSUMERS)
        mark = "queue-" if name.startswith(("consumer-", "queue-")) else ""
        return f"{self.prefix}{mark}{name}"

    def id(self, message: Message) -> str:
        """RQ's id of a claim."""
        if message.source == JOBS:
            return f"{self.prefix}job-{message.id}-{message.claim}"
        return f"{self.prefix}row-{message.claim}"

    def key(self, id: str) -> ClaimKey | None:
        """The claim of which this is RQ's id; None: it is none of ours."""
        found = self._id.fullmatch(id)
        return None if found is None else (int(found[1] or found[2]), int(found[2]))


def names_for(workload: Workload) -> Names:
    """How what there is to do is called in RQ."""
    return Names(workload.store.install_id(), of_rows=workload.consumer is not None)


class RqTarget:
    """Sends claims to RQ's queues, one pipeline for each batch."""

    name = "RQ"

    def __init__(self, workload: Workload, url: str) -> None:
        self._redis = connect(url)
        self._names = names_for(workload)
        self._where = without_password(url)
        self._left: dict[str, set[Id]] = {}  # by queue: ids that were popped before the last look

    def check(self) -> None:
        """Raise if Redis cannot be reached, or cannot be written to."""
        check(self._redis, self._where)

    def waiting(self, name: str) -> int:
        """How many claims of this queue nobody has popped."""
        with explaining(self._where):
            length: Any = self._redis.llen(self._queue(name).key)
            return int(length)

    def send(self, claims: Sequence[Claim]) -> None:
        """Hand these over, all of one queue, in this order."""
        messages = [message_of(self._names.install, claim) for claim in claims]
        queue = self._queue(claims[0].queue)
        prepared = [
            Queue.prepare_data(
                FUNCTION,
                args=message.arguments(),
                timeout=-1,
                result_ttl=0,
                failure_ttl=0,
                description=f"{message.title} ({claim.task})",
                job_id=self._names.id(message),
            )
            for claim, message in zip(claims, messages, strict=True)
        ]
        with explaining(self._where), self._redis.pipeline() as pipeline:
            pipeline.sadd(Queue.redis_queues_keys, queue.key)  # which RQ does not do here before 2.1
            queue.enqueue_many(prepared, pipeline=pipeline)
            for message in messages:
                pipeline.expire(_hash(self._names.id(message)), _KEPT_SECONDS)
            pipeline.execute()

    def kept(self, names: Collection[str]) -> set[ClaimKey]:
        """The claims that still wait in RQ's queues.

        What was popped before the last look, and is still in RQ's list of such ids, was left there by a
        worker that died: its entry and its hash are removed. The database knows what became of the claim.
        """
        kept: set[ClaimKey] = set()
        with explaining(self._where):
            for name in names:
                queue = self._queue(name)
                with self._redis.pipeline(transaction=False) as pipeline:
                    pipeline.lrange(queue.key, 0, -1)
                    pipeline.lrange(intermediate(queue), 0, -1)
                    waiting, popped = pipeline.execute()
                kept.update(key for id in texts(waiting) if (key := self._names.key(id)))
                left: set[Id] = set(popped)  # as they are: some may be no text
                self._remove(queue, left & self._left.get(name, set()))
                self._left[name] = left
        return kept

    def remove(self, claims: Sequence[Claim]) -> None:
        """Forget about these: they were taken back."""
        by_queue: dict[str, list[Id]] = {}
        for claim in claims:
            id = self._names.id(message_of(self._names.install, claim))
            by_queue.setdefault(claim.queue, []).append(id)
        with explaining(self._where):
            for name, ids in by_queue.items():
                self._remove(self._queue(name), ids)

    def close(self) -> None:
        """Close the connections; a later use opens new ones."""
        self._redis.close()

    def _remove(self, queue: Queue, ids: Iterable[Id]) -> None:
        with self._redis.pipeline() as pipeline:
            for id in ids:
                forget(pipeline, queue, id)
                pipeline.lrem(queue.key, 0, cast("str", id))
            pipeline.execute()

    def _queue(self, name: str) -> Queue:
        return Queue(self._names.queue(name), connection=self._redis, serializer=JSONSerializer)


def forget(pipeline: Any, queue: Queue, id: Id) -> None:
    """Remove what RQ keeps of an id that was popped: its entry, with one queue, and its hash."""
    pipeline.lrem(intermediate(queue), 0, id)
    pipeline.delete(_hash(id))


def _hash(id: Id) -> Id:
    return b"rq:job:" + id if isinstance(id, bytes) else f"rq:job:{id}"


def intermediate(queue: Queue) -> str:
    """The list of ids that were popped and not removed; RQ keeps it for workers with one queue."""
    return f"{queue.key}:intermediate"


def texts(values: Iterable[Any]) -> list[str]:
    """What Redis answered, as text; what is none is made into some, for it is compared only."""
    return [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in values]
