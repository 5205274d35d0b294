"""Loads residents, passes them to runs, and tears them down: one set per process that runs tasks.

A resident is loaded once, whatever the number of tasks that ask for it.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from rowlock.errors import ConfigurationError
from rowlock.resident import Resident
from rowlock.task import Runnable

log = logging.getLogger("rowlock.residents")

_Load = Callable[[], Any]
replaced: dict[_Load, _Load] = {}  # by `rowlock.testing`: what is called instead


class ResidentFailed(ConfigurationError):
    """A resident could not be loaded; the worker ends before it claims anything."""


class _Loaded:
    """One object, what it took to load, and who may use it now."""

    def __init__(self, resident: Resident) -> None:
        started = time.monotonic()
        load = replaced.get(resident.load, resident.load)
        self.value = load()
        self._generator: Generator[Any, Any, Any] | None = None
        if inspect.isgenerator(self.value):
            generator: Generator[Any, Any, Any] = self.value
            self._generator, self.value = generator, next(generator)
        self.name = resident.name
        self.seconds = time.monotonic() - started
        self.lock = threading.Lock()

    def tear_down(self) -> None:
        if self._generator is not None:
            try:
                next(self._generator, None)
            except BaseException:
                log.exception("the resident %s could not be torn down", self.name)


class Residents:
    """The loaded residents of one process."""

    def __init__(self) -> None:
        self._loaded: dict[_Load, _Loaded] = {}
        self.elsewhere: dict[str, float] = {}  # what took how long to load in child processes

    def load(self, tasks: Iterable[Runnable]) -> None:
        """Load what these tasks ask for and is not there yet; raises `ResidentFailed`."""
        for task in tasks:
            for name, resident in task.residents.items():
                if resident.load in self._loaded:
                    continue
                log.info("loading %s for %s ...", resident.name, task.name)
                try:
                    self._loaded[resident.load] = _Loaded(resident)
                except BaseException as error:
                    self.close()
                    raise ResidentFailed(
                        f"the resident {name} of task {task.name!r} ({resident.name}) could not be loaded: "
                        f"{type(error).__name__}: {error}"
                    ) from error

    @property
    def seconds(self) -> dict[str, float]:
        """How long each took to load, by the name of its loader."""
        here = {one.name: round(one.seconds, 3) for one in self._loaded.values()}
        return self.elsewhere | here

    def values(self, task: Runnable) -> dict[str, Any]:
        """The objects that a task asks for, by parameter."""
        return {name: self._loaded[resident.load].value for name, resident in task.residents.items()}

    def locks(self, task: Runnable) -> list[threading.Lock]:
        """What a run of this task has to hold, always in the same order."""
        exclusive = {resident.load for resident in task.residents.values() if not resident.shared}
        return [loaded.lock for key, loaded in self._loaded.items() if key in exclusive]

    def close(self) -> None:
        """Tear down the generators among them, the last loaded first."""
        for loaded in reversed(list(self._loaded.values())):
            loaded.tear_down()
        self._loaded.clear()
        self.elsewhere.clear()
