"""A claim in the hands of a poller's user, who says how it ended.

The worker does not use it: its outcomes go back in batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rowlock import codec
from rowlock.endings import Event, after_error, ended
from rowlock.errors import InvalidPayload
from rowlock.headline import storable
from rowlock.job import Claim, Ending, Outcome
from rowlock.options import check_seconds
from rowlock.retry import Retry


class ManualClaim(Claim, frozen=True, kw_only=True):
    """A claim with `complete`, `fail` and `release`.

    Each is False if nothing of it is kept: the claim was lost meanwhile, or the database refused it (then the
    job has failed with what was said).
    """

    settle: Callable[[Outcome], bool]
    retry: Retry
    limit: int

    def complete(self, result: Any = None) -> bool:
        """End the job as completed."""
        try:
            text = codec.encode(result, f"the result of {self.task}", self.limit)
        except InvalidPayload as error:
            return self.settle(ended(self, Event.RESULT, self.retry, storable(str(error))))
        return self.settle(self.ended(Ending.COMPLETED, result=text))

    def fail(self, error: BaseException | str) -> bool:
        """End this attempt with an error: tried again while the budget lasts, else failed."""
        raised = error if isinstance(error, BaseException) else RuntimeError(error)
        return self.settle(after_error(self, raised, self.retry))

    def release(self, delay: float | None = None) -> bool:
        """Give the job back without charge, at once or after a delay."""
        return self.settle(ended(self, Event.RELEASED, self.retry, wait=check_seconds("delay", delay)))
