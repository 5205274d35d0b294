"""Two callers at one store, in an exact order: what one does in the middle of what the other does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from rowlock.errors import StoreBusy
from rowlock.stores.address import store_for
from rowlock.stores.sql.store import Store

_IMPATIENT = 0.02  # seconds that the second caller waits for a lock before it counts as held up


@contextmanager
def rival_of(url: str) -> Iterator[Store]:
    """A second caller, which does not wait for locks: it is told at once that it would have to."""
    with closing(store_for(url, busy_timeout=_IMPATIENT)) as store:
        store.open()
        yield store


class Meanwhile:
    """Does something at one moment of a call; if the database makes it wait, right after the call."""

    def __init__(self, act: Callable[[], object], is_time: Callable[[str], bool]) -> None:
        self._act = act
        self._is_time = is_time
        self._waits = False
        self.happened = False

    def about_to(self, what: str) -> None:
        """Called before each step; the name is that of a statement, or `read` or `write` for a session."""
        if not self.happened and self._is_time(what):
            self.happened = True
            try:
                self._act()
            except StoreBusy:
                self._waits = True

    def at_the_end(self) -> None:
        if self._waits:
            self._act()


@contextmanager
def meanwhile(store: Store, moment: str | int, act: Callable[[], object]) -> Iterator[Meanwhile]:
    """Let `act` happen once while the block calls the store: before its nth step, or before a named one.

    Steps are the beginnings of sessions (`read`, `write`) and the named statements in them.
    """
    steps = iter(range(10**6))

    def is_time(what: str) -> bool:
        return next(steps) == moment if isinstance(moment, int) else what == moment

    thing = Meanwhile(act, is_time)
    opened = ("read", "write")
    for name in opened:
        setattr(store.database, name, _Opening(getattr(store.database, name), name, thing))
    try:
        yield thing
    finally:
        for name in opened:
            delattr(store.database, name)  # the class's own is seen again
    thing.at_the_end()


class _Opening:
    """`database.read` or `database.write`, watched."""

    def __init__(self, original: Callable[..., Any], step: str, thing: Meanwhile) -> None:
        self._original = original
        self._step = step
        self._thing = thing

    @contextmanager
    def __call__(self, now: float | None = None) -> Iterator[Any]:
        self._thing.about_to(self._step)
        with self._original(now) as session:
            yield _Watched(session, self._thing)


class _Watched:
    """A session whose every statement is told before it is run."""

    def __init__(self, session: Any, thing: Meanwhile) -> None:
        self._session = session
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if name not in ("run", "rows", "row", "each", "take", "ask"):
            return found

        def told(statement: str, *given: Any, **values: Any) -> Any:
            self._thing.about_to(statement)
            return found(statement, *given, **values)

        return told
