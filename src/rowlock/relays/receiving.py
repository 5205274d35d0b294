"""The other side of a relay: a worker that begins claims when a message about them arrives.

To the worker it looks like its store, so all that it does with a claim is as ever. Knows no target.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from rowlock.job import ClaimRequest, ExchangeResult, Outcome, Report
from rowlock.monitoring import Minute
from rowlock.relays.messages import Message
from rowlock.stores.base import Wake
from rowlock.stores.sql.store import Store
from rowlock.workload import Workload

log = logging.getLogger("rowlock.relay")


class Mailbox(Protocol):
    """Where messages come from, as the target has them."""

    def take_now(self) -> Message | None:
        """The next message, if there is one and it can be had without waiting; never raises."""
        ...

    def settled(self, message: Message, begun: bool) -> None:
        """The database has decided on this message: it is to be forgotten. Never raises."""
        ...


class ReceivingStore(Store):
    """A store that claims nothing by itself: it begins the claims of which messages tell.

    Whoever ends a run asks for the next message. If there is none, `wanted` lets another thread wait for one
    and `put` it here.
    """

    def __init__(self, workload: Workload, mailbox: Mailbox) -> None:
        store = workload.store
        super().__init__(store.database, store.source)
        self._queues = () if workload.consumer else tuple(workload.queues)
        self._mailbox = mailbox
        self.message: Message | None = None  # it stays until the database has decided on it
        self.wanted = threading.Event()  # the worker is idle: the other thread may wait for a message
        self._ring: Callable[[], None] = lambda: None  # lets the worker ask for a message now
        self._store = store
        self.exchange, self.wake = self._exchange, self._wake
        # One run at a time has no neighbours that it could take along; messages tell of all that is due.
        self.isolated_waiting = lambda queues, unknown=(): False
        self.next_needed = lambda worker, now=None: None

    def _exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        request: ClaimRequest | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        resent: bool = False,
    ) -> ExchangeResult:
        """Hand back outcomes and begin what the next message tells of, in one transaction."""
        message = self._next() if request is not None and request.count > 0 else None
        written: dict[str, Any] = {
            "outcomes": _put_off(outcomes),
            "reports": reports,
            "minutes": minutes,
            "now": now,
            "resent": resent,
        }
        if message is None:
            writes = outcomes or reports or minutes
            return self._store.exchange(worker, **written) if writes else ExchangeResult()
        # By the database's word: whoever can write to Redis may put any id into any list.
        got = self._store.start(worker, message.key, self._queues, **written)
        self.message = None
        if not got.claims:
            log.info("%s is not to be begun here, or not any more: dropped", message.title)
            self._ring()  # the next message may be a good one: a dead relay leaves many that are not
        self._mailbox.settled(message, bool(got.claims))
        return got

    def put(self, message: Message) -> None:
        """Give the worker a message, which it has asked for; from another thread."""
        self.message = message
        self.wanted.clear()
        self._ring()

    def _next(self) -> Message | None:
        # Asked in this order: a message that `put` leaves between the two looks would be overwritten.
        if not self.wanted.is_set() and self.message is None:
            # One round trip instead of two threads that wake each other, and one transaction instead of two:
            # the outcome of the last run and the start of the next.
            self.message = self._mailbox.take_now()
            if self.message is None:
                self.wanted.set()
        return self.message

    @property
    def announces_all_work(self) -> bool:
        """Messages do."""
        return True

    def _wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        """Messages ring; nobody has to listen to the database."""
        self._ring = ring
        return Wake()


def _put_off(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """A task that is not known here always waits: it would be handed to this very worker again at once."""
    return [msgspec.structs.replace(one, unless_known=False) if one.unless_known else one for one in outcomes]
