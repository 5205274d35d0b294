"""What the model of consumers' claims believes of a claim, and of the end of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rowlock.job import Claim, Ending
from tests.consumers.cells import LATE
from tests.stores.modelling import Expected


@dataclass
class Held(Expected):
    """What the model believes of one claim: a job's life, as long as the claim is there."""

    isolate: int = 0
    since: float = 0.0  # when it was claimed
    batch: int | None = None
    done: float | None = None

    @property
    def row(self) -> tuple[Any, ...]:
        """What the database has to say of it."""
        if self.state != "running":
            return self.claim, None, self.failures, self.isolate, self.done, self.batch, None, self.run_at
        return self.claim, self.holder, self.failures, self.isolate, self.done, self.batch, 1, None

    def ready(self, now: float) -> bool:
        return self.state != "running" and self.run_at <= now


@dataclass(frozen=True)
class Taken:
    """A claim in the hands of a worker, and the numbers of its rows: one, or several of a batch."""

    consumer: str
    claim: Claim
    numbers: dict[int, int]


@dataclass(frozen=True)
class End:
    """How the run of one row ends."""

    ending: Ending
    charge: int = 0
    delay: float | None = None
    error: str | None = None
    result: Any = None

    @staticmethod
    def chosen(ending: Ending, lightly: bool, result: Any = None) -> End:
        """Lightly: a retry that is not charged, or a row that is given back for later."""
        if ending is Ending.RETRY:
            return End(ending, charge=int(not lightly), delay=LATE, error="oh")
        if ending is Ending.FAILED:
            return End(ending, charge=1, error="oh")
        if ending is Ending.RELEASED:
            return End(ending, delay=LATE if lightly else None)
        return End(ending, result=result if ending is Ending.COMPLETED else None)

    @staticmethod
    def answered(answer: Any, failures: int, attempts: int) -> End:
        """What becomes of one row of a batch: what it came to, or whether it failed for ever or for now."""
        if not isinstance(answer, bool):
            return End(Ending.COMPLETED, result=answer)
        last = answer or failures + 1 >= attempts
        return End.chosen(Ending.FAILED if last else Ending.RETRY, lightly=False)
