"""What runs in the storm: a nursery that forks workers and producers, and the tasks they know.

Started as `python -m tests.chaos.work SETTINGS`. A fork takes milliseconds where a new interpreter takes half
a second, so that a worker which is killed every 200 ms can be replaced at once on a small machine.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rowlock import Fail, JobContext, Retry, Rowlock
from tests.chaos.database import effects_table
from tests.chaos.history import EventLog

POISON_BUDGET = 3


@dataclass(frozen=True)
class Settings:
    """What the harness tells its processes."""

    url: str
    folder: str
    lease: float
    concurrency: int

    def dump(self) -> str:
        return json.dumps(asdict(self))


def make_app(settings: Settings, newer: bool = True) -> Rowlock:
    """The app of every process; an older version lacks the task `newest`."""
    app = Rowlock(settings.url, lease=settings.lease)
    log = EventLog(Path(settings.folder) / "events")
    effects = effects_table(settings.url)
    often = Retry(max_attempts=100, backoff="constant", base=0.05)

    @app.task(retry=often)
    def apply(ctx: JobContext, seconds: float = 0.0, raises: int = 0, fails: bool = False) -> int:
        log.write(ctx.id, ctx.claim, "start", ctx.job.claimed_by)
        time.sleep(seconds)  # noqa: TID251 - this is the work
        try:
            with ctx.transaction() as tx:
                tx.execute(f"INSERT INTO {effects} (job, claim) VALUES ({ctx.id}, {ctx.claim})")
                if fails:
                    raise Fail("on purpose")
                if ctx.claim <= raises:
                    raise RuntimeError("on purpose")
        finally:
            log.write(ctx.id, ctx.claim, "end", ctx.job.claimed_by)
        return ctx.claim

    @app.task(retry=often)
    def plain(ctx: JobContext, seconds: float = 0.0) -> int:
        log.write(ctx.id, ctx.claim, "start", ctx.job.claimed_by)
        time.sleep(seconds)  # noqa: TID251 - this is the work
        log.write(ctx.id, ctx.claim, "end", ctx.job.claimed_by)
        return ctx.claim

    @app.task(retry=Retry(max_attempts=POISON_BUDGET, base=0.0))
    def poison(ctx: JobContext, deadly: bool = True) -> None:
        log.write(ctx.id, ctx.claim, "start", ctx.job.claimed_by)
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        log.write(ctx.id, ctx.claim, "end", ctx.job.claimed_by)

    if newer:

        @app.task
        def newest(ctx: JobContext) -> None:
            log.write(ctx.id, ctx.claim, "start", ctx.job.claimed_by)
            log.write(ctx.id, ctx.claim, "end", ctx.job.claimed_by)

    return app


def work(settings: Settings, name: str, newer: bool = True) -> None:
    """A worker, until it is told to end."""
    make_app(settings, newer).worker(concurrency=settings.concurrency, worker_id=name).run()


def produce(settings: Settings, name: str, count: int, seed: int, seconds: float, faults: bool) -> None:
    """Enqueue about `count` jobs in batches; ids are written down when the store has acknowledged them."""
    app = make_app(settings)
    draw = random.Random(seed)
    while count > 0:
        batch = min(count, draw.randint(1, 20))
        count -= batch
        if draw.random() < 0.25:
            ids = list(app.tasks["plain"].enqueue_many([{"seconds": seconds}] * batch))
        else:
            jobs = [_kind(draw, seconds, faults) for _ in range(batch)]
            ids = list(app.tasks["apply"].enqueue_many(jobs))
        _append(Path(settings.folder) / "acknowledged", "".join(f"{id}\n" for id in ids))


def _kind(draw: random.Random, seconds: float, faults: bool) -> dict[str, Any]:
    batch = draw.random() if faults else 1.0
    if batch < 0.05:
        return {"fails": True}
    if batch < 0.1:
        return {"raises": draw.randint(1, 2)}
    return {"seconds": round(draw.uniform(0.0, 2 * seconds), 4)}


def _append(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, text.encode())
    os.close(file)


_ROLES: dict[str, Callable[..., None]] = {"work": work, "produce": produce}


def nursery(settings: Settings) -> None:
    """Fork what the lines on stdin ask for; say on stdout who began and who ended."""
    children: dict[int, str] = {}

    def reap(number: int = 0, frame: FrameType | None = None) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                _say(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))
                children.pop(ended[0], None)

    signal.signal(signal.SIGCHLD, reap)
    _warm_up(settings)
    _say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        role, name = order.pop("role"), order["name"]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # first who began, then that it ended
        if not (pid := os.fork()):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(2, 1)
            _ROLES[role](settings, **order)
            return
        children[pid] = name
        _say(began=name, pid=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever asked for them is gone, and hears nothing more
    for pid in list(children):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _warm_up(settings: Settings) -> None:
    """Import what a worker imports, and open nothing: a child must not inherit a connection."""
    import rowlock.execution.transaction
    import rowlock.worker.poller
    import rowlock.worker.worker  # noqa: F401

    make_app(settings).worker()


def _say(**what: object) -> None:
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    told = Settings(**json.loads(sys.argv[1]))
    logging.basicConfig(
        level=logging.WARNING,
        filename=Path(told.folder) / "workers.log",
        format="%(asctime)s %(process)d %(name)s %(message)s",
    )
    nursery(told)
