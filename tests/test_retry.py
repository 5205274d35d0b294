"""The retry policy: how long, how often, and what an error makes of a claim."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock import Retry, RetryLater
from rowlock.claim_outcomes import after_error
from rowlock.job import Ending
from rowlock.retry import policy
from tests.test_strategies import claim


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ("exponential", [2, 4, 8, 16, 20, 20]),
        ("linear", [2, 4, 6, 8, 10, 12]),
        ("constant", [2, 2, 2, 2, 2, 2]),
    ],
)
def test_waits_grow_as_the_backoff_says_up_to_the_cap(backoff: str, waits: list[float]) -> None:
    retry = Retry(backoff=backoff, base=2.0, cap=20.0, jitter=False)  # type: ignore[arg-type]
    assert [retry.delay(failures) for failures in range(1, 7)] == waits
    assert retry.delay(10_000) == (20.0 if backoff != "constant" else 2.0)


def test_jitter_spreads_between_half_and_all_of_the_wait() -> None:
    waits = [Retry(base=8.0).delay(1) for _ in range(500)]
    assert min(waits) >= 4 and max(waits) <= 8
    assert max(waits) - min(waits) > 3


def test_the_budget_of_the_row_counts_before_the_tasks() -> None:
    import msgspec

    last = msgspec.structs.replace(claim(1, 0), failures=2, max_attempts=3)
    assert after_error(last, ValueError(), Retry(max_attempts=9)).ending is Ending.FAILED
    unset = msgspec.structs.replace(last, max_attempts=None)
    assert after_error(unset, ValueError(), Retry(max_attempts=9)).ending is Ending.RETRY
    assert after_error(unset, ValueError(), policy(False)).ending is Ending.FAILED


def test_subclasses_of_never_are_never_retried() -> None:
    retry = Retry(never=(LookupError,))
    assert after_error(claim(1, 0), KeyError("x"), retry).ending is Ending.FAILED
    assert after_error(claim(1, 0), OSError("x"), retry).ending is Ending.RETRY


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "30", None])
def test_retry_later_takes_seconds(seconds: Any) -> None:
    with pytest.raises(ValueError, match="must be seconds"):
        RetryLater(seconds)


@pytest.mark.parametrize(
    "given",
    [{"max_attempts": 0}, {"max_attempts": True}, {"base": "2"}, {"cap": -1.0}, {"backoff": "random"}],
)
def test_a_policy_that_means_nothing_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"Retry\(.*{next(iter(given))}=.*must be"):
        Retry(**given)
