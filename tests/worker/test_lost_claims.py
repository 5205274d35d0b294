"""Claims that came with a lost answer: given back, also by a worker that asks for more without a pause."""

from __future__ import annotations

import pytest

from rowlock import Rowlock
from rowlock.job import Ending
from rowlock.worker.lost_claims import LostClaims
from tests.stores.steps import add, end, state, take, worker


class Looks:
    """A look for strays on a real store, and how the worker stands that it is made for."""

    def __init__(self, app: Rowlock) -> None:
        self.store = app.store
        self.id = worker(self.store)
        self.asked = self.answered = 0
        self.known: set[tuple[int, int]] = set()
        self.lost_claims = LostClaims(
            lambda: self.store, lambda: self.known, asked=lambda: self.asked, answered=lambda: self.answered
        )

    def look(self) -> int:
        self.lost_claims.before_look()
        return self.lost_claims.run_once(
            self.id, [(job, claim) for job, claim, _ in self.store.held(self.id)]
        )


@pytest.fixture
def looks(app: Rowlock) -> Looks:
    return Looks(app)


def test_what_nobody_knows_at_two_looks_is_given_back(looks: Looks) -> None:
    (job,) = add(looks.store)
    take(looks.store, looks.id)
    assert [looks.look(), looks.look(), looks.look()] == [0, 1, 0]
    assert state(looks.store, job) == "queued"


def test_claims_on_their_way_are_waited_for(looks: Looks) -> None:
    add(looks.store)
    (claim,) = take(looks.store, looks.id)
    looks.asked = 1
    assert [looks.look(), looks.look()] == [0, 0]
    looks.known = {(claim.id, claim.claim)}
    looks.answered = 1
    assert [looks.look(), looks.look()] == [0, 0]
    assert state(looks.store, claim.id) == "running"


def test_strays_are_found_although_an_exchange_is_under_way_at_every_look(looks: Looks) -> None:
    add(looks.store, 2)
    (stray,) = take(looks.store, looks.id)
    looks.asked = 1
    assert looks.look() == 0
    (coming,) = take(looks.store, looks.id)
    looks.asked, looks.answered = 2, 1
    assert looks.look() == 1
    assert [state(looks.store, claim.id) for claim in (stray, coming)] == ["queued", "running"]


def test_what_ended_during_the_look_is_not_called_a_stray(
    looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    add(looks.store)
    (claim,) = take(looks.store, looks.id)
    assert looks.look() == 0
    assert end(looks.store, claim, Ending.COMPLETED)
    assert looks.lost_claims.run_once(looks.id, [(claim.id, claim.claim)]) == 0
    assert state(looks.store, claim.id) == "completed"
    assert caplog.messages == []
