"""What a worker is given: an app, which is the same for all work, and a workload, which is what to work on.

Only the two shapes; an app makes its workloads in `app_base.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rowlock.registry import Registry
from rowlock.stores.base import Retention
from rowlock.stores.sql.store import Store

if TYPE_CHECKING:
    from rowlock.execution.hooks import Hook
    from rowlock.settings import Settings


class Workload(NamedTuple):
    """The jobs of an app, or the rows of one of its consumers, and the functions that run them."""

    store: Store  # over that source
    registry: Registry[Any]  # of tasks, or of the consumer
    queues: Sequence[str] = ()  # of the jobs, none named: all; of rows, the names to pause and to wake by
    consumer: str | None = None  # whose rows these are
    needs_maintenance: bool = True  # by this worker, and not by a relay


class App(Protocol):
    """What workers, pollers, pools and relays need of an app, whatever they work on."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        ...

    @property
    def retention(self) -> Retention:
        """How long finished jobs are kept."""
        ...

    @property
    def hooks(self) -> Sequence[Hook]:
        """The generators around every run."""
        ...

    def load_tasks(self) -> None:
        """Import the modules that register tasks."""
        ...

    def workload(self, queues: Sequence[str] = (), *, consumer: str | None = None) -> Workload:
        """The jobs of these queues (none named: of all), or the rows of a consumer."""
        ...
