"""Keeps a SQLAlchemy session or connection open that a task closes before it has returned.

rowlock commits it together with the job, after that. What cannot be held is refused when it happens.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rowlock.errors import Fail

ENDED_TOO_EARLY = """\
the session was committed, rolled back or closed before the task had returned; rowlock commits it together \
with the job, after that. Write, with no commit of your own:
    with SessionLocal() as db, ctx.transaction(db):
        db.add(...)"""


class HeldSession:
    """Takes note of `close()` until it is let go of, and refuses a session's commit meanwhile."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._is_session = hasattr(given, "in_nested_transaction") and hasattr(given, "get_bind")
        self._is_held = True
        self._close_asked = False
        given.close = self._close  # both call it at the end of their `with` block
        if self._is_session:  # also `with Session.begin() as db`, which does not call its `commit`
            import_module("sqlalchemy").event.listen(given, "before_commit", self._refuse)

    def _close(self) -> None:
        self._close_asked = True

    def _refuse(self, session: Any) -> None:
        if not session.in_nested_transaction():  # savepoints are the task's own
            raise Fail(ENDED_TOO_EARLY)

    def let_go(self) -> None:
        """It may be committed, rolled back and closed again."""
        if self._is_held:
            self._is_held = False
            vars(self._given).pop("close", None)
            if self._is_session:
                import_module("sqlalchemy").event.remove(self._given, "before_commit", self._refuse)

    def finish(self) -> None:
        """Close it, if the task has asked for that."""
        self.let_go()
        if self._close_asked:
            self._close_asked = False
            self._given.close()
