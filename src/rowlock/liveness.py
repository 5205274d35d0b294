"""When a worker counts as alive: the arithmetic of its lease, and the states that follow from its beats.

Knows no store and no threads; moments are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
import time
from enum import Enum

import msgspec

# Seconds; with a lease of 2 s, workers that were frozen together may need longer than one beat, s/6.
_RECOVERY_AT_LEAST = 1.0


class Lease(msgspec.Struct, frozen=True):
    """How long a silent worker keeps its claims, and every span that follows from that."""

    seconds: float

    @property
    def beat_every(self) -> float:
        """Seconds between two beats."""
        return self.seconds / 6

    @property
    def rescue_below(self) -> float:
        """The age of its own beat, as the store has it, up to which a worker may rescue others' claims."""
        return self.seconds / 3

    @property
    def claim_below(self) -> float:
        """The age of its own beat up to which a worker may claim.

        Above it the worker was frozen, or the database was: a pause of 3/4 of the lease that all share can
        make others look dead. A busy machine with a short lease must not count as that.
        """
        return self.seconds / 2

    @property
    def recovery(self) -> float:
        """Seconds that the others get to beat after a pause that they may have shared."""
        return max(self.beat_every, min(_RECOVERY_AT_LEAST, self.seconds / 2))

    @property
    def reachable_for(self) -> float:
        """The age of a beat up to which a sleeping worker is worth a wake-up."""
        return self.seconds / 4

    @property
    def look_for_losses_every(self) -> float:
        """Seconds between a relay's looks for claims that its target has lost."""
        return self.seconds / 4

    def died_by(self, beat: float) -> float:
        """The moment by which the worker that beat last at `beat` had died: else it had beaten again."""
        return beat + self.beat_every


class WorkerState(Enum):
    """What a worker may do, by its beats."""

    NEW = "new"  # not registered: not yet, or not any more
    ALIVE = "alive"
    LATE = "late"  # the last beat is old: it neither claims nor rescues
    RECOVERING = "recovering"  # it beats again after a pause: it claims, but does not call others dead yet
    DEAD = "dead"  # the store says so: it registers under another id, its runs are lost


class Liveness:
    """One worker's state. The heartbeat reports, everybody else asks; safe from any thread."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._said = WorkerState.NEW  # ALIVE here means: registered, and not declared dead
        self._beat_at = -math.inf
        self._recovered_at = -math.inf

    def registered(self, moment: float) -> None:
        """The store has a row for this worker, and it is as fresh as a beat."""
        if self._said is WorkerState.DEAD:
            self.beaten(moment)
        else:
            self._beat_at = moment
        self._said = WorkerState.ALIVE

    def beaten(self, moment: float) -> None:
        """A beat has been written."""
        if moment - self._beat_at > self.lease.claim_below:
            # First, or another thread could read ALIVE in between.
            self._recovered_at = moment + self.lease.recovery
        self._beat_at = moment

    def declared_dead(self) -> None:
        """The store calls this worker dead."""
        self._said = WorkerState.DEAD

    def retired(self) -> None:
        """The worker has left, or is another process now: it has no row, and may register again."""
        self._said = WorkerState.NEW

    @property
    def is_registered(self) -> bool:
        """Whether the store has known this worker since it last came, though it may call it dead by now."""
        return self._said in (WorkerState.ALIVE, WorkerState.DEAD)

    def state(self, moment: float | None = None) -> WorkerState:
        """The state at this moment."""
        if self._said is not WorkerState.ALIVE:
            return self._said
        moment = time.monotonic() if moment is None else moment
        if moment - self._beat_at > self.lease.claim_below:
            return WorkerState.LATE
        return WorkerState.RECOVERING if moment < self._recovered_at else WorkerState.ALIVE

    def may_claim(self, moment: float | None = None) -> bool:
        """False if others may take this worker for dead: what it claimed could be taken from it at once."""
        return self.state(moment) in (WorkerState.ALIVE, WorkerState.RECOVERING)

    def may_rescue(self, moment: float | None = None) -> bool:
        """False while this worker cannot tell a dead one from one that was frozen together with it."""
        return self.state(moment) is WorkerState.ALIVE
