"""A consumer: a named function over the rows of a user's own table, and how its rows are chosen.

Plain data with checks; it knows no database.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypedDict

from rowlock.consumers import forms, names
from rowlock.consumers.batches import answering_each
from rowlock.consumers.forms import Failed, Flag, Status
from rowlock.consumers.names import Order
from rowlock.consumers.row import from_text
from rowlock.errors import ConfigurationError
from rowlock.options import CONSUMERS, Seconds, check_keywords
from rowlock.retry import Retry
from rowlock.stores.sql.store import Store
from rowlock.task import Runnable
from rowlock.task_arguments import Binding

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_IN_A_BATCH = 1_000


class RowBinding(Binding):
    """The function's signature: a context if it asks for one, residents, and one parameter for the row."""

    def __init__(self, function: Callable[..., Any], consumer: str, many: bool) -> None:
        super().__init__(function, consumer)
        self._many = many
        if len(self._names) != 1 or self._rest or self._extra:
            raise ConfigurationError(
                f"consumer {consumer!r}: its function takes the row as its one argument, beside ctx and "
                f"residents, not {self._signature}"
            )

    def arguments(self, args: str) -> tuple[list[Any], dict[str, Any]]:
        """The row (or the list of rows), by place or by name."""
        rows = from_text(args)
        value = rows if self._many else rows[0]
        return ([value], {}) if self._by_place else ([], {self._names[0]: value})


class _Table(TypedDict):
    table: str


class ConsumerOptions(_Table, total=False):
    """Options of `@app.consumer`; each is explained there, or in `docs/consumers.md`."""

    state: str | None
    status: Status | None
    flag: Flag | None
    failed: Failed | None
    key: str
    order_by: str | Sequence[str] | None
    columns: Sequence[str] | None
    where: str | None
    due_at: str | None
    when: Callable[[], bool] | None
    timeout: Seconds | None
    retry: Retry | bool | None
    batch: int | None
    pool: str | None


class Consumer(Runnable):
    """A registered reader of a table; calling it runs its function here, with a row of the caller's."""

    kind = "consumer"

    def __init__(self, function: Callable[..., Any], name: str, **given: Unpack[ConsumerOptions]) -> None:
        check_keywords("app.consumer", given, ConsumerOptions)
        self.name = names.consumer_name(name)
        self.table = names.table(given["table"])
        self.key = names.column("key", given.get("key", "id"))
        self.form = forms.of(self.name, given)
        order_by, columns, due_at = given.get("order_by"), given.get("columns"), given.get("due_at")
        self.order = names.order_by([self.key] if order_by is None else order_by)
        self.columns = None if columns is None else _columns(columns)
        self.where = _where(given.get("where"))
        self.due_at = None if due_at is None else names.column("due_at", due_at)
        self.when = when = given.get("when")
        if when is not None and (not callable(when) or inspect.iscoroutinefunction(when)):
            raise ConfigurationError(f"when={when!r}: must be a plain function that returns true or false")
        self.batch = _batch(given.get("batch"))
        binding = RowBinding(function, self.name, many=self.batch is not None)
        super().__init__(function, binding, given.get("retry"), given.get("timeout"), given.get("pool"))
        self.plain = function
        if self.batch is not None:
            self.function = answering_each(function, self.retry, is_async=self.is_async)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """A plain call of the function, as for tests: nothing is claimed or marked."""
        return self.plain(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<consumer {self.name!r} of {'.'.join(self.table)}>"

    @property
    def position(self) -> tuple[Order, ...]:
        """The columns by which rows are ordered; the last is the key, so that no two rows are equal."""
        before = tuple(takewhile(lambda one: one[0] != self.key, self.order))
        return (*before, (self.key, dict(self.order).get(self.key, False)))

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the columns of `position` in statements: a, b, ... and, as the last, key."""
        return (*"abcdefgh"[: len(self.position) - 1], "key")

    def needed(self) -> list[tuple[str, str]]:
        """The columns that the table must have, each with the option that names it."""
        chosen = [("columns", name) for name in self.columns or ()]
        ordered = [("order_by", name) for name, _ in self.order]
        due_at = [("due_at", self.due_at)] if self.due_at is not None else []
        return [("key", self.key), *self.form.needed, *ordered, *due_at, *chosen]

    @property
    def knows_due_time(self) -> bool:
        """Whether a column says since when a row has been due, so that it can be overdue."""
        return self.due_at is not None or "created_at" in self.form.columns

    @property
    def queue(self) -> str:
        """The name under which it can be paused, and under which its rates are kept."""
        return CONSUMERS + self.name

    @property
    def queues(self) -> tuple[str, ...]:
        """The names by which its workers are paused and woken."""
        return (self.queue, wake_name(".".join(self.table)))

    @property
    def index(self) -> str:
        """The name of the index that makes its claims cheap."""
        return f"rowlock_{self.name}_due"


def wake_name(table: str) -> str:
    """The name by which the readers of a table are woken."""
    return f"table:{table}"


def wake_readers(store: Store, table: str) -> None:
    """Wake all workers that wait for rows of this table."""
    names.table(table)
    with store.database.read() as db:
        store.database.wake_readers(db, wake_name(table))


def _columns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not value:
        raise ConfigurationError(f"columns={value!r}: must be a list of columns' names, or None for all")
    return tuple(names.column("columns", one) for one in value)


def _batch(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_IN_A_BATCH:
        raise ConfigurationError(
            f"batch={value!r}: must be a whole number from 1 to {MOST_IN_A_BATCH}, or None for one row"
        )
    return value


def _where(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or "\x00" in value or "«" in value:
        raise ConfigurationError(f"where={value!r}: must be an SQL condition on the table's own columns")
    return value.strip()
