"""Lease arithmetic and the states of a worker, at given moments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rowlock
from rowlock.liveness import Lease, Liveness, WorkerState

NEW, ALIVE, LATE = WorkerState.NEW, WorkerState.ALIVE, WorkerState.LATE
RECOVERING, DEAD = WorkerState.RECOVERING, WorkerState.DEAD


@pytest.fixture
def liveness() -> Liveness:
    """A worker with a lease of 6 s that registered at 100."""
    made = Liveness(Lease(6.0))
    made.registered(100.0)
    return made


def test_every_span_follows_from_the_lease() -> None:
    lease = Lease(60.0)
    assert (lease.beat_every, lease.rescue_below, lease.claim_below) == (10.0, 20.0, 30.0)
    assert (lease.recovery, lease.reachable_for, lease.died_by(1000.0)) == (10.0, 15.0, 1010.0)


@pytest.mark.parametrize(
    ("seconds", "recovery"), [(600.0, 100.0), (6.0, 1.0), (3.0, 1.0), (2.0, 1.0), (0.6, 0.3)]
)
def test_a_short_lease_leaves_others_the_time_that_a_busy_machine_takes(
    seconds: float, recovery: float
) -> None:
    assert Lease(seconds).recovery == pytest.approx(recovery)


def test_the_spans_are_in_their_order_for_every_lease() -> None:
    """One missed beat does not stop its claims; it stops claiming long before others may take them."""
    for seconds in (0.1, 1.0, 6.0, 60.0, 600.0):
        lease = Lease(seconds)
        assert lease.beat_every < lease.reachable_for < lease.rescue_below < lease.claim_below < seconds
        assert lease.beat_every <= lease.recovery <= max(lease.beat_every, seconds / 2)


def test_a_new_worker_may_do_nothing_before_it_is_registered() -> None:
    liveness = Liveness(Lease(6.0))
    assert liveness.state(100.0) is NEW
    assert not liveness.is_registered and not liveness.may_claim(100.0) and not liveness.may_rescue(100.0)
    liveness.registered(100.0)
    assert liveness.state(100.0) is ALIVE
    assert liveness.is_registered and liveness.may_claim(100.0) and liveness.may_rescue(100.0)


def test_beats_in_time_keep_it_alive(liveness: Liveness) -> None:
    for moment in (101.0, 102.5, 105.4):
        liveness.beaten(moment)
        assert liveness.state(moment + 2.9) is ALIVE


def test_after_a_pause_it_is_late_then_settling_then_alive(liveness: Liveness) -> None:
    assert liveness.state(103.1) is LATE
    assert not liveness.may_claim(103.1) and not liveness.may_rescue(103.1)
    liveness.beaten(105.0)
    assert liveness.state(105.9) is RECOVERING
    assert liveness.may_claim(105.9) and not liveness.may_rescue(105.9)
    assert liveness.state(106.1) is ALIVE
    assert liveness.may_rescue(106.1)


def test_while_it_settles_it_can_be_late_again(liveness: Liveness) -> None:
    liveness.beaten(110.0)
    assert liveness.state(113.1) is LATE


def test_who_was_declared_dead_does_nothing_until_it_has_registered_and_settled(liveness: Liveness) -> None:
    liveness.beaten(110.0)
    liveness.declared_dead()
    assert liveness.state(110.0) is DEAD
    assert liveness.is_registered and not liveness.may_claim(110.0) and not liveness.may_rescue(110.0)
    liveness.registered(110.1)
    assert liveness.state(110.1) is RECOVERING
    assert liveness.state(111.1) is ALIVE


def test_who_learns_of_its_death_before_it_has_beaten_settles_all_the_same(liveness: Liveness) -> None:
    liveness.declared_dead()
    liveness.registered(120.0)
    assert liveness.state(120.9) is RECOVERING


def test_who_left_may_come_again_and_has_nothing_to_settle(liveness: Liveness) -> None:
    liveness.retired()
    assert liveness.state(100.1) is NEW
    assert not liveness.is_registered and not liveness.may_claim(100.1)
    liveness.registered(500.0)
    assert liveness.state(500.0) is ALIVE


def test_no_statement_computes_a_span_of_its_own() -> None:
    for path in Path(rowlock.__file__).parent.rglob("*.sql"):
        assert not re.search(r"lease\s*[*/]|[*/]\s*lease", path.read_text(encoding="utf-8")), path
