"""The tasks that a worker or a relay has met and does not know: their jobs go back, and are left to others.

Who else knows them, the store looks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rowlock.claim_outcomes import put_off
from rowlock.job import Claim, Outcome
from rowlock.registry import Registry

log = logging.getLogger("rowlock.worker")

_MOST_LEFT_OUT = 500  # names of tasks that are left out of a claim


class UnknownTasks:
    """Those that one worker has met."""

    def __init__(self, registry: Registry[Any], who: str = "this worker") -> None:
        self._registry = registry
        self._who = who
        self._names: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """What to leave out of claims; a task that was registered since is known."""
        if self._names:
            self._names = {name for name in self._names if self._registry.find(name) is None}
        return tuple(sorted(self._names))

    def sort_out(self, claims: Sequence[Claim]) -> tuple[Sequence[Claim], list[Outcome]]:
        """The claims of known tasks, and what becomes of the others."""
        unknown = {name for name in {claim.task for claim in claims} if self._registry.find(name) is None}
        if not unknown:
            return claims, []
        for name in sorted(unknown - self._names)[: _MOST_LEFT_OUT - len(self._names)]:
            log.warning("%s knows no task %r; from now on it leaves its jobs to others", self._who, name)
            self._names.add(name)
        foreign = [claim for claim in claims if claim.task in unknown]
        # One that cannot be left out has to wait, or it would come back at once.
        outcomes = [put_off(claim, unless_known=claim.task in self._names) for claim in foreign]
        return [claim for claim in claims if claim.task not in unknown], outcomes
