"""`resident(load)`: an expensive object that a task asks for, loaded once per worker process.

Only the marker that stands in a signature; the loading is in `execution/residents.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar, overload

from rowlock.errors import ConfigurationError

T = TypeVar("T")


class Resident:
    """What stands as the default of a parameter: how to load the object, and whether runs may share it."""

    def __init__(self, load: Callable[[], Any], shared: bool) -> None:
        self.load = load  # two parameters with the same loader get the same object
        self.shared = shared

    @property
    def name(self) -> str:
        """The name of what loads it."""
        return getattr(self.load, "__qualname__", repr(self.load))

    def __repr__(self) -> str:
        return f"resident({self.name})"


@overload
def resident(load: Callable[[], Generator[T, None, None]], *, shared: bool = False) -> T: ...
@overload
def resident(load: Callable[[], Iterator[T]], *, shared: bool = False) -> T: ...
@overload
def resident(load: Callable[[], T], *, shared: bool = False) -> T: ...
def resident(load: Callable[[], Any], *, shared: bool = False) -> Any:
    """The default of a parameter that gets an object loaded once per worker process, before its first claim.

    `load` returns the object, or is a generator that yields it once and tears it down after that. One run at
    a time uses it, unless `shared`.
    """
    if not callable(load):
        raise ConfigurationError(f"resident({load!r}): must be given a function that loads the object")
    return Resident(load, shared)
