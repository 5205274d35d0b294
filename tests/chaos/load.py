"""Producers whose every call is written down: acknowledged, refused or left unknown; and what is there.

Threads of the test's own process, on an app of their own; each job carries a number that nobody else has.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path
from types import TracebackType

from rowlock.errors import OutcomeUnknown, StoreError
from rowlock.stores.postgres.lost_answers import LOOKED_UP
from tests.chaos.database import rows
from tests.chaos.work import Settings, make_app
from tests.eventually import eventually

_PAUSE = 0.02
_NUMBERED = 1e-9  # a job's number is what it sleeps, in nanoseconds: any task of the storm can carry it


class Load:
    """Enqueues one by one, in small batches (a statement) and in large ones (COPY), until the block ends."""

    def __init__(self, url: str, folder: Path) -> None:
        self.app = make_app(Settings(url, str(folder), lease=60.0, concurrency=1))
        self.acknowledged: dict[int, int] = {}  # number: id
        self.refused: set[int] = set()
        self.unknown: set[int] = set()
        self.calls: Counter[str] = Counter()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._produce, args=[size], daemon=True) for size in (1, 1, 5, 30)
        ]

    @property
    def ids(self) -> list[int]:
        with self._lock:
            return list(self.acknowledged.values())

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        self.app.close()
        assert not any(thread.is_alive() for thread in self._threads), "a producer hangs"
        assert self._failures == []

    def grow(self, by: int, timeout: float = 60.0) -> None:
        """Wait until so many more calls were acknowledged."""
        wanted = self.calls["acknowledged"] + by
        eventually(
            lambda: self.calls["acknowledged"] >= wanted or self._failures, timeout, "nothing is enqueued"
        )

    def _produce(self, size: int) -> None:
        task = self.app.tasks["apply"]
        while not self._stop.is_set():
            numbers = [next(self._numbers) for _ in range(size)]
            jobs = [{"seconds": number * _NUMBERED} for number in numbers]
            try:
                ids = [task.enqueue(**jobs[0]).id] if size == 1 else list(task.enqueue_many(jobs))
            except OutcomeUnknown:
                self.unknown.update(numbers)
                self.calls["unknown"] += 1
            except StoreError:
                self.refused.update(numbers)
                self.calls["refused"] += 1
            except BaseException as error:  # anything else would be a bug: the test shows it
                self._failures.append(error)
                return
            else:
                with self._lock:
                    self.acknowledged.update(zip(numbers, ids, strict=True))
                    self.calls["acknowledged"] += 1
            self._stop.wait(_PAUSE * size)

    def must_be_true(self, url: str) -> None:
        """Each call's answer was right: one job for what was acknowledged, none for what was refused."""
        there: dict[int, list[int]] = defaultdict(list)
        for id, seconds in rows(url, "SELECT id, args ->> 'seconds' FROM rowlock_jobs"):
            there[round(float(seconds) / _NUMBERED)].append(id)
        assert {number: [id] for number, id in self.acknowledged.items() if there[number] != [id]} == {}
        assert [number for number in self.refused if there[number]] == []
        assert [number for number in self.unknown if len(there[number]) > 1] == []


class LookUps(logging.Handler):
    """Counts what was looked up after a lost answer, here and in the workers' log."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log
        self._here: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == LOOKED_UP:
            self._here.append(record.getMessage())

    def __enter__(self) -> LookUps:
        logging.getLogger("rowlock.postgres").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("rowlock.postgres").removeHandler(self)

    def lines(self, words: str) -> list[str]:
        """The lines of the workers' log with these words."""
        text = self._log.read_text() if self._log.exists() else ""
        return [line for line in text.splitlines() if words in line]

    def counted(self) -> Counter[str]:
        """By what was asked for, and how it was answered."""
        found: Counter[str] = Counter()
        for line in [*self._here, *self.lines("it was looked up: ")]:
            what = "commits" if "COMMIT" in line else "enqueues"
            answer = line.rpartition("it was looked up: ")[2]
            if what == "enqueues":
                answer = "written" if answer.startswith("job") else "not written"
            found[f"{what} {answer}"] += 1
        found["exchanges"] = len(self.lines("what was written is looked up"))
        return found
