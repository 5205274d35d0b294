"""Keeps a session or connection as it is that a task closes or commits before it has returned.

rowlock commits it together with the job, after that. What cannot be held is refused when it happens.
"""

from __future__ import annotations

from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any

from rowlock.errors import Fail

_ENDED_TOO_EARLY = """\
the session was committed, rolled back or closed before {}. Write, with no commit of your own:
    {}"""


def ended_too_early(is_checkpoint: bool, lines: str) -> str:
    """What a task is told that ends its session by itself, with the two lines to write."""
    if is_checkpoint:
        before, block = "the checkpoint's block had ended; rowlock commits it then", "checkpoint"
    else:
        before = "the task had returned; rowlock commits it together with the job, after that"
        block = "transaction"
    return _ENDED_TOO_EARLY.format(before, lines.format(block))


class HeldConnection:
    """Refuses the commit of a psycopg connection, which also its `with` block makes, and closes it instead.

    That undoes what was written; the block does not close a connection that it could not commit.
    """

    def __init__(self, given: Any, refusal: str) -> None:
        self._given = given
        self._refusal = refusal
        given.commit = self._arefuse if iscoroutinefunction(given.commit) else self._refuse

    def _refuse(self) -> None:
        self._given.close()
        raise Fail(self._refusal)

    async def _arefuse(self) -> None:
        await self._given.close()
        raise Fail(self._refusal)

    def let_go(self) -> None:
        """It may be committed again."""
        vars(self._given).pop("commit", None)

    finish = let_go  # nothing was put off


class HeldSession:
    """Takes note of `close()` until it is let go of, and refuses to be committed meanwhile."""

    def __init__(self, given: Any, refusal: str) -> None:
        self._given = given
        self._refusal = refusal
        self._is_held = True
        self._close_asked = False
        given.close = self._close  # both call it at the end of their `with` block
        # Not by its `commit`, which the blocks of `Session.begin()` and `engine.begin()` do not call.
        self._listener = (given, "before_commit" if hasattr(given, "get_bind") else "commit", self._refuse)
        import_module("sqlalchemy").event.listen(*self._listener)

    def _close(self) -> None:
        self._close_asked = True

    def _refuse(self, given: Any) -> None:
        if not given.in_nested_transaction():  # savepoints are the task's own
            raise Fail(self._refusal)

    def let_go(self) -> None:
        """It may be committed, rolled back and closed again."""
        if self._is_held:
            self._is_held = False
            vars(self._given).pop("close", None)
            import_module("sqlalchemy").event.remove(*self._listener)

    def finish(self) -> None:
        """Close it, if the task has asked for that."""
        self.let_go()
        if self._close_asked:
            self._close_asked = False
            self._given.close()
