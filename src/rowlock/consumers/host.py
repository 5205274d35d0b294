"""What a worker holds instead of an app when it runs a consumer: one task, and rows as its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from rowlock.consumers.consumer import Consumer, wake_name
from rowlock.consumers.store import ConsumerStore
from rowlock.retry import Retry
from rowlock.stores.base import Store
from rowlock.task import Task

if TYPE_CHECKING:
    from rowlock.insights import ConsumerRecord


class App(Protocol):
    """What it needs of the app."""

    @property
    def store(self) -> Store:
        """The store at the app's URL."""
        ...


class ConsumerHost:
    """One consumer of an app; all that is not about tasks and rows is the app's own."""

    def __init__(self, app: App, consumer: Consumer) -> None:
        self.origin = app
        self.consumer = consumer
        self.store = cast("Store", ConsumerStore(app.store, consumer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.origin, name)

    @property
    def queues(self) -> tuple[str, ...]:
        """The names under which its workers are known: to be paused, and to be woken."""
        return (self.consumer.queue, wake_name(".".join(self.consumer.table)))

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The consumer itself."""
        return {self.consumer.name: self._task}

    @property
    def _task(self) -> Task[..., Any]:
        return cast("Task[..., Any]", self.consumer)

    def find_task(self, name: str) -> Task[..., Any] | None:
        """The consumer, if that is its name."""
        return self._task if name == self.consumer.name else None

    def retry_policy(self, task: str) -> Retry | None:
        """The consumer's own."""
        return self.consumer.retry if task == self.consumer.name else None

    def ended_condition(self, failed_too: bool) -> str:
        """The SQL condition on a row of the table that this consumer is done with it, or has failed on it."""
        written = cast("ConsumerStore", self.store).table.statements
        done = written["done_condition"]
        return f"({done} OR {written['failed_condition']})" if failed_too else f"({done})"

    def record(self, exact: bool = False) -> ConsumerRecord:
        """How it stands, for front ends; `exact` also counts what is done, which reads the whole table."""
        from rowlock.consumers.overview import record

        return record(self, exact)

    def task_facts(self) -> dict[str, Any]:
        """What a worker's row says about it."""
        return {self.consumer.name: {"max_attempts": self.consumer.retry.max_attempts}}
