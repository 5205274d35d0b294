"""The tasks of one app by name and alias.

Only registered tasks ever run: nothing is imported by a name that comes from a job.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from rowlock.errors import ConfigurationError
from rowlock.task import Runnable

Some = TypeVar("Some", bound=Runnable)


class Registry(Generic[Some]):
    """Names and aliases to tasks; false while it is empty. A consumer's worker has one with that consumer."""

    def __init__(self) -> None:
        self._by_name: dict[str, Some] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def tasks(self) -> Mapping[str, Some]:
        """The tasks by name, without aliases."""
        return {name: task for name, task in list(self._by_name.items()) if name == task.name}

    def add(self, task: Some) -> Some:
        """Register a task under its name and aliases; two different ones of a name are refused."""
        names = (task.name, *task.aliases)
        for name in names:
            other = self._by_name.get(name)
            if other is not None and not _same_function(other, task):
                raise ConfigurationError(
                    f"two different tasks want the name {name!r}: {_place(other)} and {_place(task)}; "
                    "give one of them name=..."
                )
        self._by_name.update(dict.fromkeys(names, task))
        return task

    def find(self, name: str) -> Some | None:
        """The task of that name or alias, or None."""
        return self._by_name.get(name)

    def facts(self) -> dict[str, Any]:
        """What a worker's row says about the tasks it knows."""
        return {name: {"max_attempts": task.retry.max_attempts} for name, task in list(self._by_name.items())}

    def no_such_task(self, name: str, elsewhere: Iterable[str]) -> str:
        """A sentence that names the closest task that there is."""
        from difflib import get_close_matches  # only for mistakes

        known = sorted({*self._by_name, *elsewhere})
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known ones are: {', '.join(known)}"
        return f"there is no task {name!r}; {hint}"


def _same_function(one: Runnable, other: Runnable) -> bool:
    """True if both come from the same place in the code: a module that was imported again."""
    mine, theirs = (inspect.unwrap(task.function).__code__ for task in (one, other))
    return (mine.co_filename, mine.co_firstlineno) == (theirs.co_filename, theirs.co_firstlineno)


def _place(task: Runnable) -> str:
    return f"{task.function.__module__}.{task.function.__qualname__}"
