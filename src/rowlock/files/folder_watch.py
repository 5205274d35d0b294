"""Tells of changes in a folder tree as they happen, where `watchfiles` is installed; never relied upon.

What it misses is found by the next scan, so whatever goes wrong here is logged and no more.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("rowlock.ingest")

_DEBOUNCE, _STEP, _LOOK = 100, 20, 2_000  # milliseconds
_AGAIN = 5.0  # seconds until a watcher that failed is started again
_told_missing = False


@contextmanager
def watching(folder: str, changed: queue.SimpleQueue[str | None]) -> Iterator[None]:
    """While the block runs, a thread puts paths that have changed into a queue, None if some were missed."""
    watch, stop = _watchfiles(), threading.Event()
    if watch is None:
        yield
        return
    thread = threading.Thread(
        target=_watch, args=(watch, folder, changed, stop), name=f"rowlock watches {folder}", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


def _watch(watch: Any, folder: str, changed: queue.SimpleQueue[str | None], stop: threading.Event) -> None:
    told: set[str] = set()
    while not stop.is_set():
        try:
            which, is_first = os.stat(folder).st_ino, True
            for changes in watch(
                folder,
                watch_filter=None,
                debounce=_DEBOUNCE,
                step=_STEP,
                rust_timeout=_LOOK,
                yield_on_timeout=True,
                stop_event=stop,
                raise_interrupt=False,
            ):
                if is_first:  # what came between the last scan and this watch was seen by neither
                    is_first = False
                    changed.put(None)
                for _, path in changes:
                    changed.put(os.path.relpath(path, folder).replace(os.sep, "/"))
                if not changes and os.stat(folder).st_ino != which:
                    changed.put(None)
                    break  # the folder was made anew: what is watched is the old one
        except Exception as error:  # a name that is not UTF-8, no more watches, the folder is gone
            text = str(error)
            if text not in told:
                told.add(text)
                # Of a name, the scan tells.
                level = logging.DEBUG if "decode path" in text else logging.WARNING
                said = "%s: the watcher failed and is started again; scans go on: %s"
                log.log(level, said, folder, text)
            changed.put(None)  # something may have been missed
            stop.wait(_AGAIN)


def _watchfiles() -> Any:
    """Its function, or None with a hint, said once."""
    global _told_missing  # noqa: PLW0603 - once per process
    try:
        from watchfiles import watch
    except ImportError:
        if not _told_missing:
            _told_missing = True
            log.warning(
                "watchfiles is not installed, so new files are found by scans alone, every interval: "
                "pip install 'rowlock[files]'"
            )
        return None
    return watch
