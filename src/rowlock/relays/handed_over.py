"""What a relay has sent to its target and nobody has begun: taken back when it is lost or to be cancelled.

Knows neither how a relay chooses what to send nor what the target is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import msgspec

from rowlock.job import Claim, ClaimKey, Ending, Outcome
from rowlock.relays.messages import TargetError
from rowlock.relays.target import Target
from rowlock.stores.sql.store import Store

log = logging.getLogger("rowlock.relay")


class HandedOver:
    """The claims that one relay has sent, as far as it knows that nobody has begun them."""

    def __init__(self, store: Store, target: Target) -> None:
        self._store = store
        self._target = target
        self._claims: dict[ClaimKey, Claim] = {}
        self._gone: dict[ClaimKey, Claim] = {}  # begun or ended since; the target may have some
        self._missing: set[ClaimKey] = set()  # of these, what the target did not have at the last look
        self.taken_back = 0

    def __len__(self) -> int:
        return len(self._claims)

    def clear(self) -> None:
        """Forget them: they are another incarnation's."""
        self._let_go(list(self._claims))

    def send(self, relay: str, claims: Sequence[Claim]) -> None:
        """Send these; if that cannot be done they are queued again, and it raises."""
        by_key = {(claim.id, claim.claim): claim for claim in claims}
        self._claims.update(by_key)
        try:
            for queue in dict.fromkeys(claim.queue for claim in claims):
                self._target.send([claim for claim in claims if claim.queue == queue])
        except TargetError:  # some may be there all the same: who begins one finds its claim taken back
            self._take_back(relay, list(by_key))
            raise

    def end_unwanted(self, relay: str, now: float) -> bool:
        """End what somebody asked to cancel and nobody has begun; forget what has begun.

        What is past its deadline to start is queued again for maintenance to fail; returns whether any is.
        """
        held = self._store.held(relay)
        self._let_go(self._claims.keys() - {(id, number) for id, number, _ in held})
        asked = {(id, number) for id, number, to_be_cancelled in held if to_be_cancelled}
        late = {key for key, claim in self._claims.items() if claim.deadline and claim.deadline <= now}
        if unwanted := {key: self._claims[key] for key in asked | late if key in self._claims}:
            self._take_back(relay, list(unwanted))
            self._remove(list(unwanted.values()))
        return bool(late)

    def take_back_lost(self, relay: str, queues: Collection[str]) -> None:
        """Take back what the target has lost, or has given to somebody who died before the start.

        Only after two looks: at the first one, somebody may just have taken it and be about to begin. What
        ended unbegun, because it was overdue, is removed from the target.
        """
        held = {(id, number) for id, number, _ in self._store.held(relay)}
        kept = self._target.kept(queues)
        self._remove([claim for key, claim in self._gone.items() if key in kept])
        self._gone.clear()
        missing = held - kept
        lost = sorted(missing & self._missing)
        self._missing = missing.difference(lost)
        if lost:
            claims = [claim for key in lost if (claim := self._claims.get(key))]
            count = self._take_back(relay, lost)
            self._remove(claims)
            log.log(
                logging.WARNING if count else logging.DEBUG,
                "%d claims were lost in %s before anybody began them: back in their queues, free of charge",
                count,
                self._target.name,
            )

    def remove_all(self) -> None:
        """Forget them, here and in the target."""
        self._remove([*self._claims.values(), *self._gone.values()])
        self._claims.clear()
        self._gone.clear()

    def _let_go(self, keys: Collection[ClaimKey]) -> None:
        """These are not the relay's any more; whoever began one has taken it from the target."""
        for key in keys:
            self._gone[key] = msgspec.structs.replace(self._claims.pop(key), args_json="")  # may be large

    def _take_back(self, relay: str, keys: Sequence[ClaimKey]) -> int:
        """Release claims that nobody has begun; returns how many these are."""
        begun = self._store.exchange(relay, [_released(key, self._claims.get(key)) for key in keys]).lost
        for key in keys:
            self._claims.pop(key, None)
        self.taken_back += len(keys) - len(begun)
        return len(keys) - len(begun)

    def _remove(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        try:
            self._target.remove(claims)
        except TargetError as error:  # whoever takes one finds that it is not to be begun
            log.debug("could not remove what was taken back: %s", error)


def _released(key: ClaimKey, claim: Claim | None) -> Outcome:
    """What takes a claim back, unless somebody has begun it; None: its answer was lost before it was sent."""
    plain = Outcome(id=key[0], claim=key[1], ending=Ending.RELEASED, not_begun=True)
    if claim is None:
        return plain
    return msgspec.structs.replace(plain, task=claim.task, queue=claim.queue, row=claim.row)
