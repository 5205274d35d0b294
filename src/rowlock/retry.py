"""The user's retry policy: how often a job is tried, and how long it waits in between.

What an ending costs is decided in `endings.py`.
"""

from __future__ import annotations

import random
from typing import Literal, get_args

import msgspec

from rowlock.errors import LONGEST, ConfigurationError

Backoff = Literal["exponential", "linear", "constant"]


class Retry(msgspec.Struct, frozen=True):
    """How often and after how long a failed run is tried again.

    The n-th wait is `base * 2**(n-1)` (exponential), `base * n` (linear) or `base` (constant) seconds,
    at most `cap`; with `jitter` between half of that and all of it, so that a crowd of failures spreads.
    """

    max_attempts: int = 3
    backoff: Backoff = "exponential"
    base: float = 2.0
    cap: float = 300.0
    never: tuple[type[BaseException], ...] = ()
    jitter: bool = True

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ConfigurationError(
                f"Retry(max_attempts={self.max_attempts!r}): must be a whole number >= 1"
            )
        if self.backoff not in get_args(Backoff):
            raise ConfigurationError(
                f"Retry(backoff={self.backoff!r}): must be one of {', '.join(get_args(Backoff))}"
            )
        if not all(isinstance(one, (int, float)) and 0 <= one <= LONGEST for one in (self.base, self.cap)):
            raise ConfigurationError(
                f"Retry(base={self.base!r}, cap={self.cap!r}): both must be seconds from 0 to 100 years"
            )
        if not isinstance(self.never, tuple) or not all(_is_error(one) for one in self.never):
            raise ConfigurationError(f"Retry(never={self.never!r}): must be a tuple of exception classes")

    def delay(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure."""
        growth = {"exponential": 2.0 ** min(failures - 1, 60), "linear": failures, "constant": 1}
        wait = min(self.base * growth[self.backoff], self.cap)
        return wait * random.uniform(0.5, 1.0) if self.jitter else wait  # noqa: S311 - not a secret


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseException)


DEFAULT = Retry()
ONCE = Retry(max_attempts=1)


def policy(retry: Retry | bool | None) -> Retry:
    """The policy that a task's `retry=` option stands for: False means at most once."""
    if retry is None or retry is True:
        return DEFAULT
    if retry is False:
        return ONCE
    if not isinstance(retry, Retry):
        raise ConfigurationError(f"retry={retry!r}: must be Retry(...), False or None")
    return retry
