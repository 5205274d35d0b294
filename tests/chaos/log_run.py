"""Writers beside readers that never all leave the log, as a program: says how large the log became.

    python -m tests.chaos.log_run DATABASE LIBRARY SCALE SLOW WRITES

The library is sqlite3, Python's own, or apsw, which is newer. SCALE divides rowlock's limits of the log, SLOW
is how many seconds the slowest reader reads.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos import other_sqlite

_MANY, _MOMENT = 6, 0.02  # readers that hold a snapshot for so many seconds: there is always one of them
_JOBS = 40  # in one write


@contextmanager
def readers(path: str, slow: float) -> Iterator[None]:
    """Read from several threads while the block runs."""
    import sqlite3

    stop = threading.Event()

    def read(hold: float, pause: float) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        while not stop.is_set():
            connection.execute("BEGIN")
            connection.execute("SELECT max(id) FROM rowlock_jobs").fetchone()
            stop.wait(hold)
            connection.execute("COMMIT")
            stop.wait(pause)
        connection.close()

    threads = [threading.Thread(target=read, args=(_MOMENT, _MOMENT / 4)) for _ in range(_MANY)]
    threads.append(threading.Thread(target=read, args=(slow, slow / 3)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def write(path: str, writes: int) -> dict[str, float]:
    """Two threads enqueue and claim; returns the largest log seen (bytes) and the longest call (seconds)."""
    from rowlock.stores.sqlite import SqliteStore
    from tests.stores.steps import new, take, worker

    logs, calls = [0], [0.0]

    def work(name: str) -> None:
        store = SqliteStore(path, busy_timeout=30)
        me = worker(store, name)
        for _ in range(writes // 2):
            began = time.monotonic()
            store.insert([new(args=f'"{"x" * 1000}"') for _ in range(_JOBS)])
            calls.append(time.monotonic() - began)
            take(store, me, _JOBS // 2, may_isolate=False)
            logs.append(os.stat(f"{path}-wal").st_size)
        store.close()

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"log": max(logs), "longest": max(calls)}


def main(path: str, library: str, scale: str, slow: str, writes: str) -> None:
    """Run it, and print what was seen as JSON."""
    if library == "apsw":
        other_sqlite.VFS = "unix"
        other_sqlite.take_the_place_of_sqlite3()
    from rowlock.stores.sqlite import SqliteStore, connections, wal_checkpoints

    wal_checkpoints._LARGE //= int(scale)
    wal_checkpoints._TOO_LARGE //= int(scale)
    connections._LARGEST_LOG //= int(scale)
    store = SqliteStore(path)
    store.open()
    with readers(path, float(slow)):
        seen = write(path, int(writes))
    store.close()
    print(json.dumps({**seen, "database": os.stat(path).st_size}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
