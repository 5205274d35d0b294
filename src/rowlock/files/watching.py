"""Tells of changes in a folder tree as they happen, where `watchfiles` is installed; never relied upon.

What it misses is found by the next scan, so whatever goes wrong here is logged and no more.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from types import TracebackType
from typing import Any

log = logging.getLogger("rowlock.ingest")

_DEBOUNCE, _STEP, _LOOK = 100, 20, 2_000  # milliseconds
_AGAIN = 5.0  # seconds until a watcher that failed is started again
_told_missing = False


class FolderWatcher:
    """A thread that puts the paths which have changed into a queue."""

    def __init__(self, folder: str, changed: queue.SimpleQueue[str | None]) -> None:
        self._folder = folder
        self._changed = changed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def __enter__(self) -> FolderWatcher:
        watch = _watchfiles()
        if watch is not None:
            self._thread = threading.Thread(
                target=self._run, args=(watch,), name=f"rowlock watches {self._folder}", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self, watch: Any) -> None:
        while not self._stop.is_set():
            try:
                which, is_first = os.stat(self._folder).st_ino, True
                for changes in watch(
                    self._folder,
                    watch_filter=None,
                    debounce=_DEBOUNCE,
                    step=_STEP,
                    rust_timeout=_LOOK,
                    yield_on_timeout=True,
                    stop_event=self._stop,
                    raise_interrupt=False,
                ):
                    if is_first:  # what came between the last scan and this watch was seen by neither
                        is_first = False
                        self._changed.put(None)
                    for _, path in changes:
                        self._changed.put(os.path.relpath(path, self._folder).replace(os.sep, "/"))
                    if not changes and os.stat(self._folder).st_ino != which:
                        self._changed.put(None)
                        break  # the folder was made anew: what is watched is the old one
            except Exception as error:  # a name that is not UTF-8, no more watches, the folder is gone
                text = str(error)
                if text not in self._told:
                    self._told.add(text)
                    level = (
                        logging.DEBUG if "decode path" in text else logging.WARNING
                    )  # the scan tells a name
                    said = "%s: the watcher failed and is started again; scans go on: %s"
                    log.log(level, said, self._folder, text)
                self._changed.put(None)  # something may have been missed
                self._stop.wait(_AGAIN)


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
