"""Takes back the claims of workers that have ended: what they left -> decide -> finish, over all sources.

`endings.py` decides; who is silent and whether this worker may say so is in `liveness.py` and the statements.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from rowlock import claim_outcomes
from rowlock.endings import Event
from rowlock.errors import DataRefused, StoreMoved
from rowlock.job import Ending, Outcome
from rowlock.liveness import Lease
from rowlock.stores.base import Rescue
from rowlock.stores.source import DeadHolder, HeldClaim, Source
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.refusals import Refusals, key_of
from rowlock.stores.sql.session import Session

_REFUSED_AGAIN_SECONDS = 60.0  # between tries to take back from a dead worker what was refused before


class Rescuing:
    """The claims of workers that have ended, of all sources that this process knows."""

    def __init__(self, database: Database, refusals: Sequence[Refusals]) -> None:
        self._database = database
        self._refusals = refusals
        self._refused_at = 0.0  # when to look again at what dead workers hold because it was refused

    def retire(self, worker: str, now: float | None = None) -> None:
        """End a worker in good order; what it still holds goes back, free of charge."""
        holder = DeadHolder(worker, "stopped")
        try:
            with self._database.write(now) as tx:
                tx.run("retire_worker", worker=worker)  # first: what comes back is for others, who are told
                for one in self._refusals:
                    self._take_back(tx, one.source, holder)
        except DataRefused:
            with self._database.write(now) as tx:
                tx.run("retire_worker", worker=worker)
            for one in self._refusals:
                self._take_back_apart(one, holder, now)

    def rescue(
        self,
        worker: str,
        careful_age: float,
        now: float | None = None,
        may_rescue: Callable[[], bool] = lambda: True,
    ) -> Rescue:
        """Take back the claims of silent workers, unless the rescuer itself has been silent.

        `may_rescue` is asked inside the transaction: its own beat may be fresh again while the others, frozen
        together with it, have not come to theirs yet.
        """
        include_refused = self._is_time_for_refused(now)
        with self._database.read(now) as db:
            # The holders first: a consumer's table that is looked at for the first time is tried in a
            # transaction of its own, which would wait for the one below.
            if not self._holders(db, include_refused) and not db.rows("silent_workers"):
                return Rescue()
        try:
            with self._database.write(now) as tx:
                silent = self._declare_dead(tx, worker, careful_age, may_rescue)
                taken = [
                    (holder.id, self._take_back(tx, one.source, holder))
                    for one, holder in self._holders(tx, include_refused)
                ]
        except StoreMoved:  # the jobs are elsewhere by now: a worker of rows goes on to see to its own
            self._refusals = [one for one in self._refusals if not one.source.is_jobs]
            return self.rescue(worker, careful_age, now, may_rescue) if self._refusals else Rescue()
        except DataRefused:
            with self._database.write(now) as tx:
                silent = self._declare_dead(tx, worker, careful_age, may_rescue)
            with self._database.read(now) as db:
                holders = self._holders(db, include_refused)
            taken = [(holder.id, self._take_back_apart(one, holder, now)) for one, holder in holders]
        counts = Counter(ending for _, ends in taken for ending in ends)
        back = counts.total() - counts[Ending.FAILED] - counts[Ending.CANCELLED]
        return Rescue(
            workers=sorted({*(silent or ()), *(name for name, ends in taken if ends)}),
            requeued=back,
            failed=counts[Ending.FAILED],
            cancelled=counts[Ending.CANCELLED],
            waited=silent is None,
        )

    def _declare_dead(
        self, tx: Session, worker: str, careful_age: float, may_rescue: Callable[[], bool]
    ) -> list[str] | None:
        """Declare the silent dead; None if that is not for this worker to say now.

        If everyone froze together (a stuck lock, a suspended machine), the others need a moment.
        """
        own_beat = tx.row("beat_age", worker=worker)
        if own_beat is None or own_beat[0] > careful_age or not may_rescue():
            return None
        if self._database.kept_others_waiting(careful_age):
            return None
        return [name for (name,) in tx.rows("declare_dead")]

    def _holders(self, db: Session, include_refused: bool) -> list[tuple[Refusals, DeadHolder]]:
        return [
            (one, holder) for one in self._refusals for holder in one.source.dead_holders(db, include_refused)
        ]

    def _take_back(self, tx: Session, source: Source, holder: DeadHolder) -> list[Ending]:
        """Decide on each claim of a dead worker; returns how they ended, but for those settled already."""
        outcomes = _all_decided(source.left_by(tx, holder.id), holder)
        lost = self._finish(tx, source, holder, outcomes)
        return [one.ending for one in outcomes if one not in lost]

    def _take_back_apart(self, refusals: Refusals, holder: DeadHolder, now: float | None) -> list[Ending]:
        """The same, each by itself; what is refused fails, or stays where it is and is tried again."""
        with self._database.read(now) as db:
            outcomes = _all_decided(refusals.source.left_by(db, holder.id), holder)

        def write(some: Sequence[Outcome]) -> list[Outcome]:
            with self._database.write(now) as tx:
                return self._finish(tx, refusals.source, holder, some)

        written = refusals.write_apart(holder.id, outcomes, write, now)
        gone = {key_of(one) for one in written.lost} | set(written.unwritable)
        failed = {key_of(one) for one in written.refused}
        return [
            Ending.FAILED if key_of(one) in failed else one.ending
            for one in outcomes
            if key_of(one) not in gone
        ]

    def _finish(
        self, tx: Session, source: Source, holder: DeadHolder, outcomes: Sequence[Outcome]
    ) -> list[Outcome]:
        """Write the outcomes and tell others what came back; returns those that were settled already."""
        lost = source.finish(tx, holder.id, outcomes)
        source.announce(tx, [one for one in outcomes if one not in lost and one.ending is not Ending.FAILED])
        return lost

    def _is_time_for_refused(self, now: float | None) -> bool:
        """True once a minute: then the claims are looked at, too, that could not be taken back before."""
        moment = time.monotonic()
        if now is None and moment < self._refused_at:
            return False
        self._refused_at = moment + _REFUSED_AGAIN_SECONDS
        return True


def _all_decided(held: Sequence[HeldClaim], holder: DeadHolder) -> list[Outcome]:
    event = Event.STOPPED if holder.ended == "stopped" else Event.WORKER_DIED
    known = holder.lease is not None and holder.beat_at is not None
    died_by = Lease(holder.lease or 0.0).died_by(holder.beat_at or 0.0) if known else None
    return [_decided(one, event, died_by) for one in held]


def _decided(held: HeldClaim, event: Event, died_by: float | None = None) -> Outcome:
    """What becomes of a claim that its worker left behind.

    Each may have killed it. Next time it runs without company for as long as it may have lived this time (up
    to a minute): if it kills again, it takes nobody along.
    """
    if held.refused is not None:  # it has run, and that was an attempt, however its worker ended
        return claim_outcomes.decided(held.undecided, Event.UNWRITABLE, held.facts, held.retry, held.refused)
    started = held.undecided.started
    lived = died_by - started if died_by is not None and started is not None else 0.0
    facts = msgspec.structs.replace(held.facts, lived=lived)
    outcome = claim_outcomes.decided(held.undecided, event, facts, held.retry)
    return msgspec.structs.replace(outcome, rescued=event is Event.WORKER_DIED)
