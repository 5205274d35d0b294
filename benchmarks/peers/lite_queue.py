"""litequeue: a queue of messages in SQLite, with pop and done. Set to FULL here; its own choice is NORMAL."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from benchmarks.apps import add


class LiteQueuePeer:
    """A `LiteQueue` whose messages are JSON calls of `add`."""

    durability = "WAL, synchronous=FULL set by us, it chooses NORMAL itself"
    difference = "two commits a job: pop, done; no result is stored, no fence, no priorities"

    def __init__(self, path: Path) -> None:
        self._queue: Any = importlib.import_module("litequeue").LiteQueue(str(path))
        self._queue.conn.execute("PRAGMA synchronous = FULL")

    def enqueue(self, a: int, b: int) -> None:
        self._queue.put(json.dumps({"task": "add", "args": {"a": a, "b": b}}))

    def drain(self) -> int:
        done = 0
        while (message := self._queue.pop()) is not None:
            add(**json.loads(message.data)["args"])
            self._queue.done(message.message_id)
            done += 1
        return done

    def close(self) -> None:
        self._queue.close()


def open_peer(path: Path) -> LiteQueuePeer:
    """The adapter, on a new file."""
    return LiteQueuePeer(path)
