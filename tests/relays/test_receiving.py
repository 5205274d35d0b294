"""The store of a worker behind a relay, and the thread that puts messages there."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rowlock import Rowlock
from rowlock.job import ClaimRequest
from rowlock.relays.messages import JOBS, Message
from rowlock.relays.receiving import ReceivingStore
from tests.stores.steps import worker as register


class EmptyMailbox:
    """Nothing waits there; it keeps the messages that the database has decided on."""

    def __init__(self) -> None:
        self.decided: list[Message] = []

    def take_now(self) -> Message | None:
        return None

    def settled(self, message: Message, begun: bool) -> None:
        self.decided.append(message)


class AskedEvent(threading.Event):
    """An event that is set; another thread does something at the moment at which somebody asks."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile: list[Callable[[], None]] = [meanwhile]
        self.set()

    def is_set(self) -> bool:
        while self._meanwhile:
            self._meanwhile.pop()()
        return super().is_set()


def test_a_message_that_comes_while_the_worker_looks_for_one_is_not_lost(app: Rowlock) -> None:
    mailbox = EmptyMailbox()
    store = ReceivingStore(app.workload(), mailbox)
    message = Message("install", JOBS, row="7", id=7, claim=1)
    store.wanted = AskedEvent(lambda: store.put(message))
    who = register(app.store)
    for _ in range(2):
        store.exchange(who, request=ClaimRequest(count=1))
    assert mailbox.decided == [message]
