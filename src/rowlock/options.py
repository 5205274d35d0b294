"""How a job is enqueued: the options, each with its check; a bad value raises and names the option.

Pure checks; nothing here writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec

from rowlock import codec
from rowlock.errors import LONGEST, ConfigurationError
from rowlock.job import NewJob

LOWEST, HIGHEST = -100, 100
CONSUMERS = "consumer:"  # how the names of queues begin that are consumers
_UNIQUE_UNTIL = {"unfinished": "finished", "queued": "claimed"}
_MAX_META = 65_536
Seconds = float | int | timedelta


class EnqueueOptions(TypedDict, total=False):
    """How a job is enqueued, as users write it; None leaves an option as it is."""

    queue: str | None
    priority: int | None
    delay: Seconds | None
    run_at: datetime | None
    expires: Seconds | None
    unique_key: str | None
    unique: str | None
    meta: Mapping[str, Any] | None


def with_options(job: NewJob, given: EnqueueOptions) -> NewJob:
    """The job under these options, too; None leaves one as it is, a bad value raises, naming the option."""
    check_keywords("enqueue", given, EnqueueOptions)
    changes = {name: _CHECKS[name](name, value) for name, value in given.items() if value is not None}
    if "delay" in changes and "run_at" in changes:
        raise ConfigurationError("give either delay= or run_at=, not both")
    if "delay" in changes or "run_at" in changes:  # what was configured last counts
        changes = {"delay": None, "run_at": None, **changes}
    if "unique" in changes:
        changes["unique_until"] = changes.pop("unique")
    return msgspec.structs.replace(job, **changes)


def check_keywords(call: str, given: Mapping[str, Any], options: Any) -> None:
    """Raise if the call was given an option that this `TypedDict` lacks, or not all that it needs."""
    for name in given:
        if name not in options.__annotations__:
            known = ", ".join(sorted(options.__annotations__))
            raise ConfigurationError(f"{call}: unknown option {name!r}; there are: {known}")
    if missing := sorted(options.__required_keys__ - set(given)):
        raise ConfigurationError(f"{call}: give it {', '.join(f'{name}=...' for name in missing)}")


def check_name(what: str, value: Any) -> str:
    """A name of a queue, task or key: text of 1 to 200 characters without control characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable():
        raise ConfigurationError(f"{what}={value!r}: must be printable text of 1 to 200 characters")
    return value


def check_strategy_applies(queue: str, strategy: str) -> None:
    """Raise for a strategy that cannot order this queue: a consumer has an order of its own."""
    if queue.startswith(CONSUMERS) and strategy.upper() not in ("FIFO", "LIFO"):
        raise ConfigurationError(
            f"{queue}: {strategy} does not apply to a consumer; its rows are taken in the order of "
            "order_by=... (FIFO), or in the same order backwards (LIFO)"
        )


def check_priority(what: str, value: Any) -> int:
    """A priority from -100 to 100."""
    if not isinstance(value, int) or isinstance(value, bool) or not LOWEST <= value <= HIGHEST:
        raise ConfigurationError(f"{what}={value!r}: must be a whole number from {LOWEST} to {HIGHEST}")
    return value


def check_seconds(what: str, value: Any) -> float | None:
    """A number of seconds >= 0, or a timedelta; None means none."""
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= LONGEST:
        raise ConfigurationError(f"{what}={value!r}: must be seconds from 0 to 100 years, or a timedelta")
    return float(number)


def _check_moment(what: str, value: Any) -> float:
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{what}={value!r}: must be a datetime with a timezone")
    if value.tzinfo is None:
        raise ConfigurationError(f"{what}={value!r} has no timezone; use datetime.now(timezone.utc) + ...")
    seconds = value.timestamp()
    if seconds > time.time() + LONGEST:
        raise ConfigurationError(f"{what}={value!r} lies more than 100 years ahead")
    return seconds


def _check_unique(what: str, value: Any) -> str:
    if value not in _UNIQUE_UNTIL:
        raise ConfigurationError(f"{what}={value!r}: must be one of {', '.join(_UNIQUE_UNTIL)}")
    return _UNIQUE_UNTIL[value]


def _check_meta(what: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{what}={value!r}: must be a dict of JSON values")
    return codec.encode(dict(value), what, _MAX_META)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": check_name,
    "priority": check_priority,
    "delay": check_seconds,
    "run_at": _check_moment,
    "expires": check_seconds,
    "unique_key": check_name,
    "unique": _check_unique,
    "meta": _check_meta,
}
