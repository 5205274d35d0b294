"""What a worker is given: an app, which is the same for all work, and a workload, which is what to work on.

What users call on their app is added in `app.py`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rowlock.enqueuing import Destination, joined
from rowlock.errors import ConfigurationError
from rowlock.execution.context import local_context
from rowlock.registry import Registry
from rowlock.stores.base import Retention
from rowlock.stores.sql.store import Store
from rowlock.task import Task

if TYPE_CHECKING:
    from rowlock.execution.hooks import Hook
    from rowlock.execution.residents import Residents
    from rowlock.settings import Settings
    from rowlock.stores.duckdb.owner import Owner

_DAY = 86_400.0


class Workload(NamedTuple):
    """The jobs of an app, or the rows of one of its consumers, and the functions that run them."""

    store: Store  # over that source
    registry: Registry[Any]  # of tasks, or of the consumer
    queues: Sequence[str] = ()  # of the jobs, none named: all; of rows, the names to pause and to wake by
    consumer: str | None = None  # whose rows these are
    needs_maintenance: bool = True  # by this worker, and not by a relay


class App:
    """What workers, pollers, pools and relays need of an app, whatever they work on.

    Settings and store are made when they are first asked for.
    """

    def __init__(self, include: Sequence[str], arguments: Mapping[str, Any]) -> None:
        if isinstance(include, str):
            raise ConfigurationError(f"include={include!r}: must be a list of module names")
        self._include = tuple(include)
        self.registry: Registry[Task[..., Any]] = Registry()
        self.given = dict(arguments)  # settings; None: not given
        self.hooks: list[Hook] = []  # the generators around every run
        self._home = os.getcwd()
        self._imported_as: str | None = None  # the `module:app` that a command was given
        self._settings: Settings | None = None
        self._owner: Owner | None = None  # what this process has a DuckDB file open with
        self._store: Store | None = None
        self._first_store: dict[str, Store] = {}
        self._residents: Residents | None = None  # of calls outside any worker

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The registered tasks by name, without aliases."""
        return self.registry.tasks

    def load_tasks(self) -> None:
        """Import the modules of `include`, so that their tasks and consumers are registered."""
        for module in self._include:
            importlib.import_module(module)

    def workload(self, queues: Sequence[str] = (), *, consumer: str | None = None) -> Workload:
        """What to give a worker: the jobs of these queues (none named: of all), or the rows of a consumer."""
        raise NotImplementedError

    @property
    def settings(self) -> Settings:
        """The settings in force: arguments, then environment, then defaults."""
        if self._settings is None:
            from rowlock.settings import load

            self._settings = load(**self.given)
        return self._settings

    @property
    def store(self) -> Store:
        """The store at the app's URL; opened by its first call."""
        if self._store is None:
            from rowlock.stores.address import owned_store, store_for

            timeout = self.settings.busy_timeout
            if self._owner is not None:
                made = owned_store(self._owner, busy_timeout=timeout)
            else:
                try:
                    made = store_for(self.settings.database_url, home=self._home, busy_timeout=timeout)
                except ConfigurationError as error:
                    if self.given["database_url"] is not None:
                        raise
                    raise ConfigurationError(f"ROWLOCK_DATABASE_URL: {error}") from None
            # Threads may come here together, and must leave with the same one. Not a lock: a fork may copy
            # that while it is held.
            self._store = self._first_store.setdefault("it", made)
        return self._store

    @property
    def retention(self) -> Retention:
        """How long finished jobs are kept."""
        return Retention(self.settings.keep_completed_days * _DAY, self.settings.keep_failed_days * _DAY)

    def destination(self, connection: object | None) -> Destination:
        """Where jobs are written: on a user's connection, in the running task's transaction, or as usual."""
        if connection is not None:
            from rowlock.stores.sql.user_connection_kinds import borrow

            return Destination(self.store, borrow(connection))
        destination = joined.get()
        if destination is None or not destination.open:
            return Destination(self.store)
        # The store of a consumer's run is another one, over the same database.
        is_same = destination.store.database is self.store.database
        return destination if is_same else Destination(self.store)

    def call_task(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a task's function outside any worker, with residents that are loaded here, once."""
        context = [local_context(task.name)] if task.binding.takes_context else []
        residents = {}
        if task.residents:
            from rowlock.execution.residents import Residents

            self._residents = self._residents or Residents()
            self._residents.load([task])
            residents = self._residents.values(task)
        return task.function(*context, *args, **{**residents, **kwargs})
