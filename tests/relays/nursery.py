"""Forks workers with a relay each, as `--via rq` has them: `python -m tests.relays.nursery URL REDIS`.

Each line on stdin, "jobs" or "rows", is one more worker; its process id is printed. A fork takes milliseconds
where a new interpreter takes a second, so that workers which are killed every second get some work done.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import redis.exceptions

from rowlock import JobContext, Retry, Rowlock, Status
from rowlock.relays.via import ViaRq

LEASE = 1.5
OFTEN = Retry(max_attempts=1000, backoff="constant", base=0.05)


def tables(url: str) -> tuple[str, str]:
    """The names of the rows' and of the effects' table, in the schema of the queue."""
    schema = url.rpartition("schema=")[2]
    return f"{schema}.storm_rows", f"{schema}.storm_effects"


def make_app(url: str, redis_url: str) -> Rowlock:
    app = Rowlock(url, lease=LEASE, poll_interval=0.2)
    os.environ["REDIS_URL"] = redis_url
    rows, effects = tables(url)

    @app.task(retry=OFTEN)
    def apply(ctx: JobContext, n: int) -> int:
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO {effects} (what) VALUES ('job {n}')")
            time.sleep(0.002)  # noqa: TID251 - this is the work
        return n

    @app.consumer("storm", table=rows, status=Status("status"), retry=OFTEN)
    def storm(ctx: JobContext, row: Any) -> None:
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO {effects} (what) VALUES ('row {row.id}')")

    return app


def work(app: Rowlock, what: str) -> None:
    while True:
        try:
            via = ViaRq(app, ["consumer:storm"] if what == "rows" else [], grace=5.0)
        except redis.exceptions.RedisError:  # without Redis it ends at the start, and is started again
            time.sleep(0.1)  # noqa: TID251 - as a supervisor does
            continue
        with via.ending():
            via.worker.run()


def main(url: str, redis_url: str) -> None:
    app = make_app(url, redis_url)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.setpgrp()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            try:
                work(app, line.strip())
            finally:
                os._exit(0)
        print(pid, flush=True)  # noqa: T201
    os.killpg(0, signal.SIGKILL)  # whoever wanted them is gone, however that ended


if __name__ == "__main__":
    main(*sys.argv[1:])
