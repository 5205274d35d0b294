"""One process of a fleet that kills itself at a step: `python -m tests.relays.crashing STEP URL REDIS`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from rowlock import Rowlock
from rowlock.job import Claim
from rowlock.relays.base import Relay
from rowlock.relays.messages import Message
from rowlock.relays.redis_connection import connect
from rowlock.relays.rq import RowlockWorker
from rowlock.relays.rq_target import RqTarget
from tests.relays.fleet import relaying

STEPS = ("claimed", "handed over", "popped", "started")
LEASE = 2.0


def make_app(url: str) -> Rowlock:
    app = Rowlock(url, lease=LEASE, poll_interval=0.1)
    app.task(name="work")(lambda: "done")
    return app


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingTarget(RqTarget):
    """Dies before it sends, or right after."""

    step = ""

    def send(self, claims: Sequence[Claim]) -> None:
        if self.step == "claimed":
            die()
        super().send(claims)
        if self.step == "handed over":
            die()


class DyingWorker(RowlockWorker):
    """Dies when it has popped an id, or when it has begun the claim."""

    step = ""

    def _message(self, job: Any, queue: Any) -> Message | None:
        if self.step == "popped":
            die()
        return super()._message(job, queue)

    def settled(self, message: Message, begun: bool) -> None:
        die()


def main(step: str, url: str, redis_url: str) -> None:
    app = make_app(url)
    target = DyingTarget(app.workload(), redis_url)
    target.step = step
    relay = Relay(app, app.workload(), target)
    if step in STEPS[:2]:
        relay.start()
        relay.join()
    worker = DyingWorker([], connection=connect(redis_url))
    worker.step = step
    with relaying(relay):
        worker.worker_for(app, app.workload()).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
