"""An outage that several parts of a process notice is said once."""

from __future__ import annotations

from rowlock.outage import LATE_SECONDS, Outage


def test_the_first_who_notices_says_it_and_the_first_who_goes_on_says_that() -> None:
    outage = Outage()
    assert [outage.is_new("gone", now=0.0) for _ in range(3)] == [True, False, False]
    assert [outage.ends(now=1.0) for _ in range(2)] == [True, False]


def test_another_cause_is_said_too() -> None:
    outage = Outage()
    assert outage.is_new("gone", now=0.0) and outage.is_new("full", now=0.0)
    assert outage.ends("gone", now=1.0) and not outage.is_new("full", now=1.0)
    assert outage.ends(now=1.0)


def test_who_notices_when_it_is_over_says_nothing_but_the_next_outage_is_said() -> None:
    outage = Outage()
    assert outage.is_new("gone", now=0.0) and outage.ends(now=1.0)
    assert not outage.is_new("gone", now=1.5)
    assert outage.is_new("full", now=1.5)
    assert outage.is_new("gone", now=1.0 + LATE_SECONDS)
