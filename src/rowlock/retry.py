"""When a job whose run raised is tried again, and what a raised error makes of its claim.

Pure decisions: no clock, no store.
"""

from __future__ import annotations

import random
import traceback
from typing import Literal

import msgspec

from rowlock.errors import CancelRequested, ConfigurationError, Fail, RetryLater, RunTimedOut
from rowlock.job import Claim, Ending, Outcome

Backoff = Literal["exponential", "linear", "constant"]
_BACKOFFS = ("exponential", "linear", "constant")
_MAX_ERROR = 32_768
_UNKNOWN_FIRST, LONGEST_UNKNOWN = 5.0, 300.0  # seconds that a job waits whose task no living worker knows
LONGEST = 100 * 365 * 86_400.0  # seconds; what lies further ahead is a mistake


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
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise ConfigurationError(
                f"Retry(max_attempts={self.max_attempts!r}): must be a whole number >= 1"
            )
        if self.backoff not in _BACKOFFS:
            raise ConfigurationError(
                f"Retry(backoff={self.backoff!r}): must be one of {', '.join(_BACKOFFS)}"
            )
        if not (0 <= self.base <= LONGEST and 0 <= self.cap <= LONGEST):
            raise ConfigurationError(
                f"Retry(base={self.base!r}, cap={self.cap!r}): both must be seconds from 0 to 100 years"
            )
        if not isinstance(self.never, tuple) or not all(_is_error(one) for one in self.never):
            raise ConfigurationError(f"Retry(never={self.never!r}): must be a tuple of exception classes")

    def delay(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure."""
        if self.backoff == "exponential":
            wait = self.base * 2.0 ** min(failures - 1, 60)
        elif self.backoff == "linear":
            wait = self.base * failures
        else:
            wait = self.base
        wait = min(wait, self.cap)
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


def after_error(claim: Claim, error: BaseException, retry: Retry) -> Outcome:
    """What an error raised by a run makes of its claim."""
    if isinstance(error, RetryLater):
        text = storable(str(error))
        return claim.ended(
            Ending.RETRY, error=text, error_kind="retry_later", delay=error.seconds, pause=error.pause
        )
    if isinstance(error, CancelRequested):
        return claim.ended(Ending.CANCELLED, error=str(error) or None, error_kind="cancelled")
    if isinstance(error, Fail):
        text = storable(str(error) or "Fail")
        return claim.ended(Ending.FAILED, error=text, error_kind="fail", charge=1)
    kind = "timeout" if isinstance(error, RunTimedOut) else "exception"
    text = storable(str(error) if kind == "timeout" else describe(error))
    failures = claim.failures + 1
    budget = retry.max_attempts if claim.max_attempts is None else claim.max_attempts
    if failures >= budget or isinstance(error, retry.never):
        return claim.ended(Ending.FAILED, error=text, error_kind=kind, charge=1)
    delay = retry.delay(failures)
    return claim.ended(Ending.RETRY, error=text, error_kind=kind, delay=delay, charge=1)


def put_off(claim: Claim, unless_known: bool = False) -> Outcome:
    """What becomes of a job whose task its worker does not know: given back for later, and later each time.

    With `unless_known` it goes back at once if another living worker knows the task.
    """
    delay = min(LONGEST_UNKNOWN, _UNKNOWN_FIRST * 2.0 ** min(claim.claim - 1, 10))
    error = f"worker {claim.claimed_by} knows no task {claim.task!r}; the job waits for one that does"
    return claim.ended(
        Ending.RELEASED, error=error, error_kind="unknown_task", delay=delay, unless_known=unless_known
    )


def describe(error: BaseException) -> str:
    """The error with its traceback; `headline` finds the line that names it."""
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # a broken __str__ must not lose the job's outcome
        return f"{type(error).__qualname__} (its message could not be made)"


def storable(text: str) -> str:
    """The text as any database takes it: no NUL, no lone surrogates, the middle cut out when it is long."""
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= _MAX_ERROR:
        return clean
    half = _MAX_ERROR // 2
    return f"{clean[:half]}\n… {len(clean) - 2 * half} characters left out …\n{clean[-half:]}"
